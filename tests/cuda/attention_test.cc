// Paged attention and its append on the device against the reference: pages of f32, f16 and bf16, heads that
// share keys, windows, caps, contexts around a warp's 32 positions and a span's 256; decode equals prefill to
// the bit.
#include "kernels/cuda/attention.h"

#include <map>

#include "tests/cuda/on_device.h"
#include "tests/kernels/attention_problem.h"

using namespace oar;
using namespace oar_test;

namespace {

using Chunk = AttentionProblem::Chunk;

// The problem's cache on the device. What no query may see is NaN, and table entries point outside of the
// pool.
class DeviceCache {
 public:
  explicit DeviceCache(const AttentionProblem& p) : p_(p), pool_(std::vector<char>(p.pool.size(), '\xff')) {}

  // Rows [begin, end) of a sequence, and one that is not stored.
  void append(size_t s, int64_t begin, int64_t end) {
    const int64_t row = p_.heads.K * p_.heads.D;
    const auto part = [&](const std::vector<float>& all) {
      std::vector<float> rows(all.begin() + begin * row, all.begin() + end * row);
      rows.resize(rows.size() + static_cast<size_t>(row), NAN);
      return rows;
    };
    std::vector<int32_t> slots;
    for (int64_t t = begin; t < end; ++t) slots.push_back(p_.slot(static_cast<int64_t>(s), t));
    slots.push_back(-1);
    DeviceArray k(part(p_.k[s])), v(part(p_.v[s]));
    DeviceCopy<int32_t> dslots(slots);
    KvAppendArgs a;
    a.pool = pool_.data();
    a.k = k.data();
    a.v = v.data();
    a.slots = dslots.data();
    a.T = end - begin + 1;
    a.ldk = a.ldv = row;
    a.shape = p_.shape;
    launch_on_device(KernelFamily::kKvAppend, dtype_name(p_.shape.type), &a, "", "", p_.shape.latent > 0);
  }

  std::vector<float> run(const std::vector<Chunk>& chunks, const AttentionProblem::Options& o) {
    // Between rows: so that accesses of 16 bytes are possible, or not.
    const int64_t row = p_.heads.H * p_.heads.D, between = p_.shape.page_tokens == 32 ? 4 : 1;
    std::vector<int32_t> start = {0}, context, tables;
    std::vector<float> queries;
    int64_t max_blocks = 0;  // no more: what lies behind the longest context is not read
    for (const Chunk& c : chunks)
      max_blocks = std::max(max_blocks, (c.context + p_.shape.page_tokens - 1) / p_.shape.page_tokens);
    for (const Chunk& c : chunks) {
      start.push_back(static_cast<int32_t>(start.back() + c.count));
      context.push_back(static_cast<int32_t>(c.context));
      const auto begin = p_.table.begin() + c.sequence * p_.max_blocks;
      tables.insert(tables.end(), begin, begin + max_blocks);
      for (int64_t i = c.context - c.count; i < c.context; ++i) {
        const auto from = p_.q[static_cast<size_t>(c.sequence)].begin() + i * row;
        queries.insert(queries.end(), from, from + row);
        queries.insert(queries.end(), static_cast<size_t>(between), NAN);
      }
    }
    if (!queries.empty())
      queries.resize(queries.size() - static_cast<size_t>(between));  // none behind the last
    const int64_t T = start.back();
    const int64_t row_out = p_.heads.H * p_.shape.value_dim();
    DeviceArray q(queries), out(nothing_yet(T * row_out));
    DeviceCopy<int32_t> dstart(start), dcontext(context), dtables(tables);
    PagedAttentionArgs a;
    a.out = out.data();
    a.q = q.data();
    a.pool = pool_.data();
    a.block_tables = dtables.data();
    a.seq_start = dstart.data();
    a.context_len = dcontext.data();
    a.T = T;
    a.B = static_cast<int64_t>(chunks.size());
    a.H = p_.heads.H;
    a.ldq = row + between;
    a.ldo = row_out;
    a.max_blocks = max_blocks;
    a.shape = p_.shape;
    a.scale = 1.f / std::sqrt(static_cast<float>(p_.heads.D));
    a.softcap = o.softcap;
    a.window = o.window;
    a.chunked = o.chunked ? 1 : 0;
    DeviceCopy<float> logits(o.sinks);
    if (!o.sinks.empty()) a.sink_logits = logits.data();
    launch_on_device(KernelFamily::kPagedAttention, dtype_name(p_.shape.type), &a, "", "",
                     p_.shape.latent > 0);
    return out.host();
  }

 private:
  const AttentionProblem& p_;
  DeviceCopy<char> pool_;
};

// Sequences whose keys and values both caches have.
struct Sequences {
  Sequences(Heads heads, DType type, int page, std::vector<int64_t> lengths, int32_t latent = 0)
      : p(heads, type, page, std::move(lengths), 1, latent), device(p) {
    p.append_all(Isa::kReference);
    // In two parts, as a chunked prompt comes.
    for (size_t s = 0; s < p.lengths.size(); ++s) {
      device.append(s, 0, p.lengths[s] / 2);
      device.append(s, p.lengths[s] / 2, p.lengths[s]);
    }
  }

  void check(const AttentionProblem::Options& o, const std::vector<Chunk>& chunks) {
    INFO(dtype_name(p.shape.type) << " H " << p.heads.H << " K " << p.heads.K << " D " << p.heads.D
                                  << " page " << p.shape.page_tokens << " window " << o.window << " cap "
                                  << o.softcap << " first context " << chunks[0].context << " latent "
                                  << p.shape.latent);
    const std::vector<float> want = p.run(Isa::kReference, chunks, o), got = device.run(chunks, o);
    const double bound = p.bound(
        false, o, p.shape.type == DType::kBF16 && cuda::by_tensor_cores(cuda::KvType::kBF16, p.shape));
    check_close(got, want, [&](size_t) { return bound; });

    // The first row of a chunk and the last are the same rows alone, wherever they come again.
    size_t at = 0;
    const auto row = static_cast<size_t>(p.heads.H * p.shape.value_dim());
    std::map<std::pair<int64_t, int64_t>, std::vector<float>> alone;
    for (const Chunk& c : chunks) {
      for (int64_t i = c.context - c.count + 1; i <= c.context; ++i, at += row) {
        if (i != c.context && i != c.context - c.count + 1) continue;
        std::vector<float>& its = alone[{c.sequence, i}];
        if (its.empty()) its = device.run({{c.sequence, i, 1}}, o);
        CHECK(std::equal(its.begin(), its.end(), got.begin() + static_cast<std::ptrdiff_t>(at)));
      }
    }
  }

  AttentionProblem p;
  DeviceCache device;
};

void check(const AttentionProblem::Options& o, Heads heads, DType type, int page,
           std::vector<int64_t> lengths, const std::vector<Chunk>& chunks, int32_t latent = 0) {
  Sequences(heads, type, page, std::move(lengths), latent).check(o, chunks);
}

}  // namespace

TEST_CASE("cuda: paged attention against the reference", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::vector<Chunk> mixed = {{0, 5, 5}, {1, 33, 3}, {2, 70, 1}};
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    check({}, {4, 2, 64}, type, 16, {5, 40, 70}, mixed);
    check({}, {2, 2, 8}, type, 16, {5, 40, 70}, mixed);
    check({}, {6, 1, 80}, type, 32, {5, 40, 70}, mixed);
    check({}, {6, 2, 96}, type, 32, {5, 40, 70}, mixed);
    check({.window = 7}, {2, 1, 128}, type, 16, {5, 40, 70}, mixed);
    check({.softcap = 2.f}, {2, 1, 256}, type, 16, {5, 40, 70}, {{1, 33, 1}});
    // A sequence without rows between others, and no more blocks than rows.
    check({}, {4, 1, 64}, type, 16, {5, 40, 70}, {{0, 5, 2}, {1, 6, 0}, {2, 9, 2}});
  }
}

TEST_CASE(
    "cuda: sinks of heads, and windows that are chunks, of few rows, of tiles and of rows that are not split",
    "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::vector<float> sinks{0.5f, -3.f, 4.f, 30.f};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const AttentionProblem::Options& o : {AttentionProblem::Options{.sinks = sinks},
                                               {.window = 9, .softcap = 2.f, .sinks = sinks},
                                               {.window = 32, .chunked = true},
                                               {.window = 9, .chunked = true, .sinks = sinks}}) {
      Sequences s({4, 2, 64}, type, 16, {5, 300, 90});
      s.check(o, {{0, 5, 5}, {1, 300, 1}, {2, 70, 3}});
      s.check(o, {{2, 90, 80}, {1, 290, 2}});
    }
  }
  Sequences most({4, 2, 64}, DType::kF32, 16, {300});
  most.check({.window = 100, .chunked = true, .sinks = sinks}, {{0, 300, 290}});
}

TEST_CASE("cuda: paged attention over contexts around its spans", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  // By tensor cores, and by other units.
  for (int64_t context : {1, 31, 32, 33, 255, 256, 257, 1024, 1025, 2100}) {
    check({}, {2, 1, 32}, DType::kBF16, 16, {context}, {{0, context, 1}});
    if (context < 1024) check({}, {2, 1, 32}, DType::kF16, 16, {context}, {{0, context, 1}});
  }
  Sequences tensor({2, 1, 32}, DType::kBF16, 16, {700}), other({1, 1, 8}, DType::kF16, 16, {530});
  for (int64_t window : {1, 31, 32, 33, 255, 256, 257, 258, 300, 4000}) {
    tensor.check({.window = window}, {{0, 700, 1}, {0, 513, 2}});
    other.check({.window = window}, {{0, 530, 1}, {0, 513, 2}});
  }
}

TEST_CASE("cuda: heads that share keys, any number of them, in spans of their own", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const int heads : {1, 2, 3, 5, 9}) {
    check({}, {2 * heads, 2, 16}, DType::kBF16, 16, {530}, {{0, 530, 1}});
  }
  for (const int heads : {1, 3, 5})
    check({.window = 90, .softcap = 2.f}, {heads, 1, 264}, DType::kBF16, 16, {270}, {{0, 270, 1}});
}

TEST_CASE("cuda: many rows, which are not split, are the rows that are", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  check({}, {1, 1, 8}, DType::kBF16, 16, {1100, 260},
        {{0, 1100, 2}, {1, 260, 255}});  // more spans than warps
  check({.window = 70}, {2, 1, 8}, DType::kF32, 16, {530}, {{0, 530, 257}});
  // By tensor cores, of so many sequences that tiles would not pay; one has rows in two launches.
  std::vector<Chunk> few;
  for (int64_t i = 0; i < 90; ++i) few.push_back({0, 17 + i % 4 * 8, 3});
  check({}, {1, 1, 32}, DType::kBF16, 16, {41}, few);
}

TEST_CASE("cuda: tiles of rows and heads are the rows alone", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  check({}, {8, 2, 64}, DType::kBF16, 32, {300, 70, 1}, {{0, 300, 40}, {2, 0, 0}, {1, 70, 70}, {2, 1, 1}});
  check({.window = 70}, {3, 1, 128}, DType::kBF16, 16, {290}, {{0, 290, 60}});
  check({.window = 9, .softcap = 2.f}, {17, 1, 32}, DType::kBF16, 16, {45, 530}, {{0, 45, 45}, {1, 530, 7}});
  check({}, {20, 1, 96}, DType::kBF16, 32, {33}, {{0, 33, 3}});
  check({.window = 9}, {2, 1, 32}, DType::kBF16, 16, {272}, {{0, 272, 50}});   // some see one span of two
  check({.window = 274}, {4, 1, 32}, DType::kBF16, 16, {530}, {{0, 530, 7}});  // the same of few rows a block
}

TEST_CASE("cuda: a row of a tile beside values that it does not see, and that are not finite", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const AttentionProblem::Options o = {.window = 7};
  AttentionProblem p({2, 1, 32}, DType::kBF16, 16, {40});
  for (int64_t d = 0; d < 32; d += 3) p.v[0][static_cast<size_t>(20 * 32 + d)] = d % 2 == 0 ? INFINITY : NAN;
  p.append_all(Isa::kReference);
  DeviceCache device(p);
  device.append(0, 0, 40);
  const std::vector<float> got = device.run({{0, 40, 40}}, o);
  const double bound = 1e-4;  // two bf16 of each query and weight; 7 normal values
  std::vector<float> want = p.run(Isa::kReference, {{0, 40, 40}}, o);
  for (size_t i = 0; i < want.size(); ++i) {  // infinite times the lower half of a weight is NaN
    if (std::isinf(want[i]) && std::isnan(got[i])) want[i] = NAN;
  }
  check_close(got, want, [&](size_t) { return bound; });
  const std::vector<float> few = device.run({{0, 29, 6}}, o);  // three of a block see it, two do not
  for (const int64_t context : {14, 20, 21, 24, 25, 27, 28, 29, 33}) {
    const std::vector<float> alone = device.run({{0, context, 1}}, o);
    const auto same = [&](const std::vector<float>& rows, int64_t row) {
      for (size_t i = 0; i < alone.size(); ++i) {
        const float here = rows[static_cast<size_t>(row) * alone.size() + i];
        CHECK((alone[i] == here || (std::isnan(alone[i]) && std::isnan(here))));
      }
    };
    same(got, context - 1);
    if (context > 23 && context <= 29) same(few, context - 24);
  }
}

TEST_CASE("cuda: many heads beside a value that no query sees, and that is not finite", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const AttentionProblem::Options o = {.window = 7};
  AttentionProblem p({4, 1, 16}, DType::kBF16, 16, {40});
  for (int64_t d = 0; d < 16; ++d) p.v[0][static_cast<size_t>(32 * 16 + d)] = INFINITY;  // 33 is seen
  p.append_all(Isa::kReference);
  DeviceCache device(p);
  device.append(0, 0, 40);
  const double bound = 1e-5;  // f32 sums of 7 normal values: D 16 has no tensor cores
  check_close(device.run({{0, 40, 1}}, o), p.run(Isa::kReference, {{0, 40, 1}}, o),
              [&](size_t) { return bound; });

  // More rows than are split: the first sees what comes behind the value.
  AttentionProblem rows({1, 1, 8}, DType::kBF16, 16, {300});
  for (int64_t d = 0; d < 8; ++d) rows.v[0][static_cast<size_t>(36 * 8 + d)] = INFINITY;
  rows.append_all(Isa::kReference);
  DeviceCache cache_of_rows(rows);
  cache_of_rows.append(0, 0, 300);
  check_close(cache_of_rows.run({{0, 300, 257}}, o), rows.run(Isa::kReference, {{0, 300, 257}}, o),
              [&](size_t) { return bound; });
}

TEST_CASE("cuda: paged attention over keys that hold values", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    check({}, {4, 1, 32}, type, 16, {5, 40, 70}, {{0, 5, 5}, {1, 33, 3}, {2, 70, 1}}, 24);
    check({.window = 21}, {3, 1, 72}, type, 32, {70}, {{0, 70, 2}}, 64);
    check({}, {2, 2, 24}, type, 16, {40}, {{0, 33, 3}}, 16);
  }
  check({}, {5, 1, 576}, DType::kBF16, 16, {290}, {{0, 290, 1}}, 512);
  check({.softcap = 2.f}, {1, 1, 320}, DType::kF32, 16, {40}, {{0, 40, 1}}, 256);
  // More rows than are split.
  check({.window = 40}, {1, 1, 16}, DType::kBF16, 16, {300}, {{0, 300, 257}}, 8);
  check({.window = 9}, {1, 1, 80}, DType::kBF16, 16, {300}, {{0, 300, 257}}, 72);  // values in two parts
}
