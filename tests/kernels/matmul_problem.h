// A matmul with all its operands, and ways to run it: on a pool, or chunk by chunk in any partition. Shared
// by the tests of the plain and the grouped kernel.
#pragma once

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/matmul.h"
#include "kernels/moe.h"
#include "kernels/thread_pool.h"
#include "tests/kernels/guarded.h"

namespace oar_test {

using oar::Format;
using oar::Isa;
using oar::Kernel;
using oar::KernelFamily;
using oar::KernelPlan;

// Instruction-set levels of this machine, the reference aside; with OAR_TEST_LEVEL, that one alone, where it
// runs.
inline std::vector<Isa> levels() {
  const char* only = std::getenv("OAR_TEST_LEVEL");
  std::vector<Isa> out;
  for (int i = 1; i <= static_cast<int>(oar::best_isa()); ++i) {
    const auto isa = static_cast<Isa>(i);
    if (only == nullptr || std::string_view(only) == oar::isa_name(isa)) out.push_back(isa);
  }
  return out;
}

enum class Values {
  kNormal,    // N(0, 1)
  kIntegers,  // -3 .. 3: products and sums are exact in every float kernel, so results must be equal to the
              // bit
};

inline std::vector<float> random_values(size_t n, Values values, uint32_t seed) {
  std::mt19937 gen(seed);
  std::vector<float> out(n);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> integer(-3, 3);
  for (float& v : out) v = values == Values::kNormal ? normal(gen) : static_cast<float>(integer(gen));
  return out;
}

// Formats that are only decoded: where a block's f16 scales lie (-1: none) and how large they may be for
// weights of about one, and which bytes are levels where there are minima.
struct RandomBlocks {
  const char* name;
  int d, dmin;
  float d_most, dmin_most;
  int levels_begin, levels_end;
};
inline constexpr RandomBlocks kRandomBlocks[] = {
    {"q2_k", 80, 82, 1.f / 15, 1.f / 15, 16, 80}, {"q3_k", 108, -1, 1.f / 48, 0, 0, 0},
    {"q4_k", 0, 2, 1.f / 300, 1.f / 60, 16, 144}, {"q5_k", 0, 2, 1.f / 600, 1.f / 60, 16, 176},
    {"q6_k", 208, -1, 1.f / 1500, 0, 0, 0},       {"iq4_nl", 0, -1, 1.f / 60, 0, 0, 0},
    {"iq4_xs", 0, -1, 1.f / 1500, 0, 0, 0},       {"iq2_xxs", 0, -1, 1.f / 170, 0, 0, 0},
    {"iq2_xs", 0, -1, 1.f / 170, 0, 0, 0},        {"iq2_s", 0, -1, 1.f / 170, 0, 0, 0},
    {"iq3_xxs", 0, -1, 1.f / 480, 0, 0, 0},       {"iq3_s", 0, -1, 1.f / 470, 0, 0, 0},
};
inline const RandomBlocks* random_blocks(Format format) {
  for (const RandomBlocks& r : kRandomBlocks) {
    if (format.name() == std::string_view(r.name)) return &r;
  }
  return nullptr;
}

// Any bytes are valid blocks once their scales are finite.
inline void fill_random_blocks(const RandomBlocks& r, int64_t block_bytes, std::span<char> out,
                               uint32_t seed) {
  std::mt19937 gen(seed);
  for (char& c : out) c = static_cast<char>(gen());
  std::uniform_real_distribution<float> part(-1.f, 1.f);
  for (size_t b = 0; b < out.size(); b += static_cast<size_t>(block_bytes)) {
    const oar::f16 d = oar::to_f16(r.d_most * part(gen)), dmin = oar::to_f16(r.dmin_most * part(gen));
    std::memcpy(out.data() + b + r.d, &d, 2);
    if (r.dmin >= 0) std::memcpy(out.data() + b + r.dmin, &dmin, 2);
  }
}

// The values, rows of K, in storage format `format`, row-major, ending at a guard page. K is a multiple of
// the format's block. Formats without an encoder get random blocks, the values only tell how many.
inline Guarded<char> encode(const std::vector<float>& values, int64_t K, Format format) {
  const int64_t rows = static_cast<int64_t>(values.size()) / K, stride = format.stride(K);
  Guarded<char> out(static_cast<size_t>(rows * stride), static_cast<size_t>(format.info().alignment));
  if (const RandomBlocks* r = random_blocks(format)) {
    fill_random_blocks(*r, format.block_bytes(), out, static_cast<uint32_t>(std::abs(values[0]) * 1e6f));
    return out;
  }
  REQUIRE(format.info().encode != nullptr);
  for (int64_t r = 0; r < rows; ++r) format.encode_row(values.data() + r * K, K, out.data() + r * stride);
  return out;
}

inline std::vector<float> decode(const Guarded<char>& bytes, int64_t K, Format format) {
  const int64_t stride = format.stride(K), rows = static_cast<int64_t>(bytes.size()) / stride;
  std::vector<float> out(static_cast<size_t>(rows * K));
  for (int64_t r = 0; r < rows; ++r) format.decode_row(bytes.data() + r * stride, K, out.data() + r * K);
  return out;
}

// What a block's minima alone contribute to its elements, where bytes [begin, end) of a block are levels.
inline std::vector<float> decode_minima(const Guarded<char>& bytes, int64_t K, Format format, int begin,
                                        int end) {
  Guarded<char> zero(bytes.size(), static_cast<size_t>(format.info().alignment));
  std::memcpy(zero.data(), bytes.data(), bytes.size());
  for (size_t b = 0; b < zero.size(); b += static_cast<size_t>(format.block_bytes()))
    std::memset(zero.data() + b + begin, 0, static_cast<size_t>(end - begin));
  return decode(zero, K, format);
}
// The same of formats that are only decoded: kernels multiply levels and minima apart, and round both. Empty
// for those without.
inline std::vector<float> decode_minima(const Guarded<char>& bytes, int64_t K, Format format) {
  const RandomBlocks* r = random_blocks(format);
  if (r == nullptr || r->levels_end == 0) return {};
  return decode_minima(bytes, K, format, r->levels_begin, r->levels_end);
}

// A weight as the kernels of `isa` want it: the row-major bytes themselves or their packed form.
struct Weight {
  Guarded<char> row_major, packed;
  const void* for_kernel = nullptr;

  Weight(const std::vector<float>& values, Format format, Isa isa, int64_t n, int64_t K)
      : row_major(encode(values, K, format)) {
    const oar::WeightLayout& layout = oar::weight_layout(format, isa);
    for_kernel = row_major.data();
    if (layout.in_place) return;
    REQUIRE(layout.accepts(format, n, K));
    packed = Guarded<char>(layout.bytes(n, K), 64);
    // In two parts, as a loader with several threads does.
    const int64_t middle =
        std::min(n, (n / 2 + layout.row_granule - 1) / layout.row_granule * layout.row_granule);
    layout.pack(packed.data(), row_major.data(), format, n, K, 0, middle);
    layout.pack(packed.data(), row_major.data(), format, n, K, middle, n);
    for_kernel = packed.data();
  }
};

struct AlignedScratch {
  explicit AlignedScratch(size_t bytes) : memory(bytes, 64) {}
  Guarded<char> memory;
  void* data() { return memory.data(); }
};

// Runs all phases on this thread, `step` chunks per call, in descending order when asked; worker scratch is
// filled with 0xff bytes before each call.
inline void run_in_steps(const Kernel& kernel, const void* args, int64_t step, bool descending) {
  KernelPlan plan;
  kernel.plan(args, 3, &plan);
  AlignedScratch worker(plan.worker_scratch), shared(plan.shared_scratch);
  std::memset(shared.data(), 0xff, plan.shared_scratch);
  for (int phase = 0; phase < plan.phases; ++phase) {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (int64_t b = 0; b < plan.chunks[phase]; b += step) {
      ranges.emplace_back(b, std::min(plan.chunks[phase], b + step));
    }
    if (descending) std::reverse(ranges.begin(), ranges.end());
    for (auto [b, e] : ranges) {
      std::memset(worker.data(), 0xff, plan.worker_scratch);
      kernel.run(args, phase, b, e, {worker.data(), shared.data()});
    }
  }
}

inline void run_on_pool(oar::ThreadPool& pool, const Kernel& kernel, const void* args) {
  KernelPlan plan;
  kernel.plan(args, pool.workers(), &plan);
  AlignedScratch shared(plan.shared_scratch);
  pool.reserve_scratch(plan.worker_scratch);
  pool.run(kernel, args, plan, shared.data());
}

// How far a kernel may be from the exact sum of |w||x| = `magnitude` over K terms, with x quantization error
// `x_error` = sum of |w||dx| given by the caller: K + 8 roundings of 2^-24 each on sums bounded by the
// magnitude.
inline double float_sum_bound(int64_t K, double magnitude) {
  return static_cast<double>(K + 8) * std::ldexp(1.0, -24) * magnitude;
}

}  // namespace oar_test
