// Boxes moved by every level equal those of the reference to the bit, and nothing beside them is written.
#include "kernels/strided_copy.h"

#include <cstring>
#include <numeric>
#include <random>

#include "tests/kernels/matmul_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

void move_box(StridedCopyArgs& a, Isa isa, ThreadPool* pool) {
  const Kernel& k = *KernelRegistry::cpu().find({KernelFamily::kStridedCopy}, isa);
  KernelPlan plan;
  k.plan(&a, pool ? pool->workers() : 1, &plan);
  if (pool != nullptr) return pool->run(k, &a, plan, nullptr);
  for (int64_t i = plan.chunks[0]; i-- > 0;) k.run(&a, 0, i, i + 1, {});
}

// A box of `dims` in some order of axes on both sides, with gaps, repeats and axes that go backwards.
struct MovedBox {
  StridedCopyArgs args;
  int64_t x_elements = 1, out_elements = 1, x_first = 0;

  MovedBox(std::vector<int64_t> dims, std::vector<int> x_order, int64_t gap, uint32_t repeated,
           uint32_t backwards, int element) {
    args.rank = static_cast<int32_t>(dims.size());
    args.element = element;
    std::copy(dims.begin(), dims.end(), args.dims);
    for (int k = args.rank - 1; k >= 0; --k) {
      args.out_steps[k] = out_elements;
      out_elements = out_elements * dims[static_cast<size_t>(k)] + gap;
    }
    for (size_t i = dims.size(); i-- > 0;) {
      const int k = x_order[i];
      if ((repeated >> k & 1) != 0) continue;
      args.x_steps[k] = x_elements;
      x_elements = x_elements * args.dims[k] + gap;
      if ((backwards >> k & 1) == 0) continue;
      x_first += args.x_steps[k] * (args.dims[k] - 1);
      args.x_steps[k] = -args.x_steps[k];
    }
  }
};

void check_box(const MovedBox& p, ThreadPool& pool) {
  const auto width = static_cast<size_t>(p.args.element);
  Guarded<std::byte> x(static_cast<size_t>(p.x_elements) * width);
  std::mt19937 random(7);
  for (std::byte& b : x) b = static_cast<std::byte>(random());
  const auto moved = [&](Isa isa, ThreadPool* threads, bool zeros) {
    Guarded<std::byte> out(static_cast<size_t>(p.out_elements) * width);
    std::fill(out.begin(), out.end(), std::byte{0xA5});
    StridedCopyArgs a = p.args;
    a.out = out.data();
    if (!zeros) a.x = x.data() + static_cast<size_t>(p.x_first) * width;
    move_box(a, isa, threads);
    return std::vector<std::byte>(out.begin(), out.end());
  };
  for (const bool zeros : {false, true}) {
    const auto want = moved(Isa::kReference, nullptr, zeros);
    CHECK(moved(best_isa(), nullptr, zeros) == want);
    CHECK(moved(best_isa(), &pool, zeros) == want);
  }
}

}  // namespace

TEST_CASE("strided copies: every order of axes, gaps, repeats and steps backwards equal the reference") {
  ThreadPool pool({.threads = 3});
  for (const auto& dims :
       {std::vector<int64_t>{5}, {3, 1}, {17, 33}, {2, 3, 19}, {4, 5, 1, 7}, {2, 1, 3, 2, 5}}) {
    std::vector<int> order(dims.size());
    std::iota(order.begin(), order.end(), 0);
    do {
      for (const int element : {1, 2, 4, 8}) {
        for (const int64_t gap : {0, 3}) {
          for (const uint32_t repeated : {0u, 1u, 2u}) {
            for (const uint32_t backwards : {0u, 1u, 4u})
              check_box(MovedBox(dims, order, gap, repeated, backwards, element), pool);
          }
        }
      }
    } while (dims.size() < 5 && std::next_permutation(order.begin(), order.end()));
  }
}

TEST_CASE("strided copies: sizes around tiles and lines, images both ways, nothing at all") {
  ThreadPool pool({.threads = 3});
  for (const int element : {1, 4}) {
    for (const int64_t rows : {1, 3, 4, 15, 16, 17, 65}) {
      for (const int64_t cols : {1, 2, 4, 5, 16, 63, 64, 130})
        check_box(MovedBox({rows, cols}, {1, 0}, 0, 0, 0, element), pool);
    }
    check_box(MovedBox({2, 40, 30, 3}, {0, 3, 1, 2}, 0, 0, 0, element), pool);              // to pixels
    check_box(MovedBox({2, 64, 20, 24}, {0, 2, 3, 1}, 0, 0, 0, element), pool);             // and back
    check_box(MovedBox({2, 6, 12, 2, 12, 2}, {0, 3, 5, 1, 2, 4}, 0, 0, 0, element), pool);  // depth to space
    check_box(MovedBox({0, 4}, {1, 0}, 0, 0, 0, element), pool);
    check_box(MovedBox({3, 0}, {0, 1}, 0, 0, 0, element), pool);
    check_box(MovedBox({}, {}, 0, 0, 0, element), pool);
  }
}
