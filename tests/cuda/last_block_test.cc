// What the last block of a launch does beside its own work, on the emulated device: the same bits whichever
// block comes last, in one launch, and again when the launch is replayed.
#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/attention.h"
#include "kernels/cuda/counters.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/kv_quant.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;
namespace emulation = oar::cuda::emulation;

namespace {

std::vector<uint16_t> random_bf16(int64_t n) {
  std::vector<uint16_t> out;
  for (const float v : random_values(static_cast<size_t>(n), Values::kNormal, 9))
    out.push_back(to_bf16(v).bits);
  return out;
}

// `run` makes `want` in one launch, which leaves all counters zero for the next.
template <class Run, class Result>
void check_once(const Run& run, const Result& want) {
  REQUIRE(!want.empty());
  emulation::counters() = {};
  CHECK((run() == want));
  CHECK(emulation::counters().launches == 1);
  uint32_t* counters = nullptr;
  REQUIRE(cuda::counters_of(nullptr, &counters) == 0);
  std::vector<uint32_t> left(cuda::kCounters, 1);
  REQUIRE(cudaMemcpy(left.data(), counters, left.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost) ==
          cudaSuccess);
  CHECK(std::ranges::count(left, 0u) == cuda::kCounters);
}

// In each order.
template <class Run, class Result>
void check_in_every_order(const Run& run, const Result& want) {
  in_every_order([&] { check_once(run, want); });
}
template <class Run>
void check_in_every_order(const Run& run) {
  check_in_every_order(run, run());
}

// Of more shapes: forth and back, with copies that come late and at once.
template <class Run, class Result>
void check_both_ways(const Run& run, const Result& want) {
  emulation::options() = {emulation::Order::kAscending, 7, true};
  check_once(run, want);
  emulation::options() = {emulation::Order::kDescending, 7, false};
  check_once(run, want);
  emulation::options() = {};
}

// A transform behind attention.
struct Turn {
  int64_t blocks = 1;   // of a head
  int64_t missing = 0;  // rows at the end
  bool twice = false;
  int64_t over = -1;  // where its result lies, in elements of the queries; -1: by itself
  int64_t rows = 1;   // of a sequence
};

// A row for each context, or the last ones of it, of a cache whose pages hold random values.
std::vector<float> attend(const char* format, const char* codes, int32_t D,
                          const std::vector<int32_t>& contexts, const Turn* turn = nullptr,
                          bool held = true) {
  constexpr int64_t kHeads = 6, kKvHeads = 2, kPageTokens = 16, kBlocks = 48;
  const auto B = static_cast<int64_t>(contexts.size());
  const int64_t each = turn != nullptr ? turn->rows : 1, T = B * each;
  std::vector<int32_t> start, table, none(static_cast<size_t>(B * kBlocks), -1);
  for (int64_t b = 0; b <= B; ++b) start.push_back(static_cast<int32_t>(b * each));
  for (int64_t b = 0; b < B; ++b)
    for (int32_t b = 0; b < kBlocks; ++b) table.push_back(b);
  const bool quantized = codes[0] != '\0';
  // Bytes 0x3c and around: small numbers in every format.
  std::vector<char> bytes(static_cast<size_t>(kBlocks * kPageTokens * kKvHeads * 2 * D * 4));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(0x38 + (i * 7 + i / 11) % 5);
  DeviceCopy<char> pool(bytes);
  // Behind the queries there is room for what lies over them in part.
  DeviceArray q(random_values(static_cast<size_t>((T + 1) * kHeads * D), Values::kNormal, 1)),
      out(nothing_yet(T * kHeads * D));
  DeviceCopy<int32_t> starts(start), context(contexts), tables(table), nothing(none);
  PagedAttentionArgs a;
  a.out = out.data();
  a.q = q.data();
  a.pool = pool.data();
  a.block_tables = tables.data();
  a.seq_start = starts.data();
  a.context_len = context.data();
  a.T = T;
  a.B = B;
  a.H = kHeads;
  a.ldq = a.ldo = kHeads * D;
  a.max_blocks = kBlocks;
  a.scale = 0.125f;
  const DType type = format[0] == 'b' ? DType::kBF16 : format[1] == '1' ? DType::kF16 : DType::kF32;
  a.shape = {type, kPageTokens, kKvHeads, D};
  if (!quantized) {
    launch_on_device(KernelFamily::kPagedAttention, format, &a);
    return out.host();
  }
  QuantPagedAttentionArgs of_codes;
  of_codes.common = a;
  of_codes.open = pool.data();
  of_codes.sinks = pool.data();
  of_codes.open_tables = tables.data();
  of_codes.sink_tables = tables.data();
  of_codes.open_max_blocks = of_codes.sink_max_blocks = kBlocks;
  of_codes.shape = {KvCode::kInt8, KvCode::kInt8, kPageTokens, kKvHeads, D};
  if (turn == nullptr) {
    launch_on_device(KernelFamily::kQuantPagedAttention, format, &of_codes, codes, codes);
    return out.host();
  }
  DeviceArray signs(random_values(static_cast<size_t>(kHeads * D), Values::kNormal, 5)),
      turned(nothing_yet(T * kHeads * D));
  HadamardArgs h;
  h.out = turn->over >= 0 ? q.data() + turn->over : turned.data();
  h.x = out.data();
  h.signs = signs.data();
  h.inverse = 1;
  h.rows = T - turn->missing;
  h.n = h.ldx = h.ldo = kHeads * D;
  h.block = h.power = D / turn->blocks;
  const cuda::DeviceKernel& attention =
      *cuda::find_device_kernel(KernelFamily::kQuantPagedAttention, format, codes, codes);
  DeviceCopy<char> scratch(std::vector<char>(attention.scratch(&of_codes), '\x7f'));
  cuda::HeldLaunches launches;
  REQUIRE(launches.launch(attention, &of_codes, scratch.data(), nullptr).ok());
  if (!held) REQUIRE(launches.release().ok());
  REQUIRE(
      launches.launch(*cuda::find_device_kernel(KernelFamily::kHadamard, "f32"), &h, nullptr, nullptr).ok());
  if (turn->twice) {
    REQUIRE(launches.launch(*cuda::find_device_kernel(KernelFamily::kHadamard, "f32"), &h, nullptr, nullptr)
                .ok());
  }
  REQUIRE(launches.release().ok());
  std::vector<float> all = turned.host();
  for (DeviceArray* part : {&q, &out}) {
    const std::vector<float> its = part->host();
    all.insert(all.end(), its.begin(), its.end());
  }
  return all;
}

// NaN where nothing was written: bits are compared.
std::vector<uint32_t> bits(const std::vector<float>& values) {
  std::vector<uint32_t> out(values.size());
  std::memcpy(out.data(), values.data(), values.size() * sizeof(float));
  return out;
}

}  // namespace

TEST_CASE("cuda emulated: spans of attention are put together by whichever block comes last") {
  const std::vector<int32_t> contexts = {530, 3, 256, 257};
  for (const int32_t D : {64, 24}) {
    for (const char* format : {"bf16", "f16", "f32"}) {
      INFO(format << " D " << D);
      const auto run = [&] { return attend(format, "", D, contexts); };
      // All orders once by tensor cores, and by other units.
      if (D == 64 ? format[0] == 'b' : format[1] == '1') check_in_every_order(run);
      else check_both_ways(run, run());
    }
  }
  check_in_every_order([&] { return attend("bf16", "int8", 64, contexts); });
}

TEST_CASE("cuda emulated: heads are transformed in the launch of their attention") {
  // By tensor cores, and by other units.
  for (const int32_t D : {64, 16}) {
    INFO("D " << D);
    const auto run = [&](const std::vector<int32_t>& contexts, const Turn& turn, bool held) {
      return bits(attend("bf16", "int8", D, contexts, &turn, held));
    };
    const std::vector<int32_t> contexts = {530, 3, 256, 257};
    const Turn fits, over_queries{.over = 0};
    check_in_every_order([&] { return run(contexts, fits, true); }, run(contexts, fits, false));
    check_both_ways([&] { return run(contexts, over_queries, true); }, run(contexts, over_queries, false));
    const Turn of_several{.rows = 3};  // in one block
    check_both_ways([&] { return run({300}, of_several, true); }, run({300}, of_several, false));
    for (const Turn& turn :
         {Turn{.blocks = 2}, Turn{.missing = 1}, Turn{.twice = true}, Turn{.missing = 1, .over = 6 * D}}) {
      emulation::counters() = {};
      const auto got = run({257, 3, 2}, turn, true);
      CHECK(emulation::counters().launches == 2);
      CHECK((got == run({257, 3, 2}, turn, false)));
    }
  }
}

TEST_CASE("cuda emulated: heads of many rows are transformed behind their attention") {
  for (const Turn& turn : {Turn{.rows = 24}, Turn{.over = 0, .rows = 24}}) {
    emulation::counters() = {};
    const auto got = bits(attend("bf16", "int8", 64, {300}, &turn, true));
    CHECK(emulation::counters().launches == 2);
    CHECK((got == bits(attend("bf16", "int8", 64, {300}, &turn, false))));
  }
}

TEST_CASE("cuda emulated: a transform that queries of other rows lie under comes behind their attention") {
  const Turn turn{.over = 17};
  CHECK((bits(attend("bf16", "int8", 64, {3, 2, 7}, &turn, true)) ==
         bits(attend("bf16", "int8", 64, {3, 2, 7}, &turn, false))));
}

TEST_CASE("cuda emulated: pages come to codes in the launch that fills them") {
  constexpr int64_t T = 23, kKvHeads = 3, D = 32, kPageTokens = 16;
  DeviceArray x(random_values(T * kKvHeads * D, Values::kNormal, 1)),
      v(random_values(T * kKvHeads * D, Values::kNormal, 2)), frequencies(std::vector<float>(D / 2, 0.5f));
  // The end of a page, a whole one in two blocks and more, a row that is not stored, and one of another page.
  std::vector<int32_t> slot, position, none(T, -1);
  for (int32_t t = 0; t < T; ++t) {
    slot.push_back(t == 20 ? -1 : t < 20 ? 12 + t : 47 + 16 * (t - 21));
    position.push_back(t);
  }
  DeviceCopy<int32_t> slots(slot), positions(position), nowhere(none);
  for (const char* codes : {"int8", "int4"}) {
    check_in_every_order([&] {
      DeviceArray k(nothing_yet(T * kKvHeads * D)), q(nothing_yet(T * kKvHeads * D));
      DeviceCopy<char> pool(std::vector<char>(1 << 15, '\x11')), open(std::vector<char>(1 << 15, '\x11'));
      RopeArgs rope;
      rope.out = k.data();
      rope.x = x.data();
      rope.positions = positions.data();
      rope.inv_freq = frequencies.data();
      rope.T = T;
      rope.heads = kKvHeads;
      rope.D = rope.rot_dim = D;
      rope.ldx = rope.ldo = kKvHeads * D;
      QuantKvAppendArgs a;
      a.pool = pool.data();
      a.open = a.sinks = open.data();
      a.k = k.data();
      a.v = v.data();
      a.slots = a.open_slots = slots.data();
      a.sink_slots = nowhere.data();
      a.T = T;
      a.ldk = a.ldv = kKvHeads * D;
      a.shape = {KvCode::kInt8, KvCode::kInt8, kPageTokens, kKvHeads, D};
      cuda::HeldLaunches launches;
      const auto run = [&](KernelFamily family, const char* format, const char* code, const void* args) {
        REQUIRE(launches.launch(*cuda::find_device_kernel(family, format, code, code), args, nullptr, nullptr)
                    .ok());
      };
      RopeArgs of_queries = rope;
      of_queries.out = q.data();
      run(KernelFamily::kRope, "f32", "", &of_queries);
      run(KernelFamily::kRope, "f32", "", &rope);
      run(KernelFamily::kQuantKvAppend, "bf16", codes, &a);
      const std::vector<char> got = pool.host();
      launch_on_device(KernelFamily::kQuantKvAppend, "bf16", &a, codes,
                       codes);  // the same of rows that are there
      emulation::counters().launches -= 2;
      CHECK((pool.host() == got));
      CHECK(std::count(got.begin(), got.end(), '\x11') < std::ssize(got) - 4000);
      return got;
    });
  }
}

TEST_CASE("cuda emulated: heads beside one another in memory are one launch, and one each where they meet") {
  constexpr int64_t T = 3, kKvHeads = 2, D = 32, width = kKvHeads * D;
  DeviceArray x(random_values(T * width, Values::kNormal, 1)), frequencies(std::vector<float>(D / 2, 0.5f)),
      all(nothing_yet(3 * T * width));
  DeviceCopy<int32_t> slots(std::vector<int32_t>{0, 1, 2});
  DeviceCopy<char> pool(std::vector<char>(1 << 14, '\x11'));
  const auto rope_to = [&](float* out) {
    RopeArgs a;
    a.out = out;
    a.x = x.data();
    a.positions = slots.data();
    a.inv_freq = frequencies.data();
    a.T = T;
    a.heads = kKvHeads;
    a.D = a.rot_dim = D;
    a.ldx = a.ldo = width;
    return a;
  };
  // How much queries and keys, and keys and values, have in common.
  for (const auto& [first, second] : {std::pair{0, 0}, {1, 0}, {0, 1}}) {
    const RopeArgs queries = rope_to(all.data()), keys = rope_to(all.data() + T * width - first);
    HadamardArgs values;
    values.out = keys.out + T * width - second;
    values.x = x.data();
    values.rows = T;
    values.n = values.ldx = values.ldo = width;
    values.block = values.power = D;
    KvAppendArgs a;
    a.pool = pool.data();
    a.k = keys.out;
    a.v = values.out;
    a.slots = slots.data();
    a.T = T;
    a.ldk = a.ldv = width;
    a.shape = {DType::kBF16, 16, kKvHeads, D};
    emulation::counters() = {};
    cuda::HeldLaunches launches;
    const auto run = [&](KernelFamily family, const char* format, const void* args) {
      REQUIRE(launches.launch(*cuda::find_device_kernel(family, format), args, nullptr, nullptr).ok());
    };
    run(KernelFamily::kRope, "f32", &queries);
    run(KernelFamily::kRope, "f32", &keys);
    run(KernelFamily::kHadamard, "f32", &values);
    run(KernelFamily::kKvAppend, "bf16", &a);
    REQUIRE(launches.release().ok());
    // Queries and keys that do not meet are rotated in one.
    CHECK(emulation::counters().launches == (first + second == 0 ? 1 : first > 0 ? 4 : 3));
  }
}

TEST_CASE("cuda emulated: elements of columns that are copied take one launch with the copy") {
  DeviceArray x(random_values(97, Values::kNormal, 1)), all(nothing_yet(240));
  DeviceCopy<int32_t> positions(std::vector<int32_t>{0, 1, 2});
  RopeArgs copy;
  copy.out = all.data(), copy.x = x.data(), copy.positions = positions.data(), copy.inv_freq = x.data();
  copy.T = 3, copy.heads = 1, copy.D = copy.ldo = 20, copy.ldx = 30;
  UnaryArgs minus;
  minus.x = all.data(), minus.out = all.data() + 60, minus.n = 60;
  emulation::counters() = {};
  cuda::HeldLaunches launches;
  const auto run = [&](KernelFamily family, const void* args) {
    REQUIRE(launches.launch(*cuda::find_device_kernel(family, "f32"), args, nullptr, nullptr).ok());
  };
  run(KernelFamily::kRope, &copy);
  run(KernelFamily::kUnary, &minus);
  // And others behind those.
  RopeArgs again = copy;
  again.x = x.data() + 7, again.out = all.data() + 120;
  UnaryArgs back = minus;
  back.x = all.data() + 120, back.out = all.data() + 180;
  run(KernelFamily::kRope, &again);
  run(KernelFamily::kUnary, &back);
  REQUIRE(launches.release().ok());
  CHECK(emulation::counters().launches == 1);
  CHECK(all.host()[60 + 20] == -x.host()[30]);
  CHECK(all.host()[180 + 20] == -x.host()[37]);
}

TEST_CASE("cuda emulated: rows of a product are normed by whichever block comes last") {
  constexpr int64_t T = 20, K = 1088, n = 72;
  DeviceArray x(random_values(T * K, Values::kNormal, 1)), norm_w(random_values(n, Values::kNormal, 3));
  DeviceCopy<uint16_t> w(std::vector<uint16_t>(n * K, 0x3c11));
  const MatmulSegment segment{w.data(), nullptr, n, 0};
  // By tensor cores, and by other units.
  for (const char* format : {"bf16", "q4_1"}) {
    INFO(format);
    check_in_every_order([&] {
      DeviceArray out(nothing_yet(T * n)), normed(nothing_yet(T * n)), twice(nothing_yet(T * n));
      const MatmulArgs m = product_of(x, segment, T, K, out);
      const RmsNormArgs r = rms_norm_of(out, norm_w, T, n, normed);
      RmsNormArgs second = rms_norm_of(normed, norm_w, T, n, twice);
      second.residual = second.sum_out = out.data();
      cuda::HeldLaunches launches;
      REQUIRE(launches.launch(*cuda::find_device_kernel(KernelFamily::kMatmul, format), &m, nullptr, nullptr)
                  .ok());
      REQUIRE(launches.launch(*cuda::find_device_kernel(KernelFamily::kRmsNorm, "f32"), &r, nullptr, nullptr)
                  .ok());
      REQUIRE(
          launches.launch(*cuda::find_device_kernel(KernelFamily::kRmsNorm, "f32"), &second, nullptr, nullptr)
              .ok());
      REQUIRE(launches.release().ok());
      std::vector<float> all = normed.host();
      for (DeviceArray* part : {&out, &twice}) {
        const std::vector<float> its = part->host();
        all.insert(all.end(), its.begin(), its.end());
      }
      return all;
    });
  }
  const auto launches_of = [&](const MatmulArgs& m, std::initializer_list<RmsNormArgs> norms) {
    emulation::counters() = {};
    cuda::HeldLaunches launches;
    REQUIRE(
        launches.launch(*cuda::find_device_kernel(KernelFamily::kMatmul, "bf16"), &m, nullptr, nullptr).ok());
    for (const RmsNormArgs& r : norms)
      REQUIRE(launches.launch(*cuda::find_device_kernel(KernelFamily::kRmsNorm, "f32"), &r, nullptr, nullptr)
                  .ok());
    REQUIRE(launches.release().ok());
    return emulation::counters().launches;
  };
  DeviceArray out(nothing_yet(T * n)), normed(nothing_yet(T * n)), twice(nothing_yet(T * n));
  // Over what the product reads: where all rows are of one tile.
  DeviceArray own(random_values(T * K, Values::kNormal, 1));
  CHECK(launches_of(product_of(own, segment, 3, K, out), {rms_norm_of(out, norm_w, 3, n, own)}) == 1);
  CHECK(launches_of(product_of(own, segment, T, K, out), {rms_norm_of(out, norm_w, T, n, own)}) == 2);
  // What both norms read need not lie row upon row.
  DeviceArray more(random_values((T + 1) * n, Values::kNormal, 4));
  RmsNormArgs first = rms_norm_of(out, norm_w, T, n, normed),
              second = rms_norm_of(normed, norm_w, T, n, twice);
  first.residual = more.data(), second.residual = more.data() + n;
  CHECK(launches_of(product_of(x, segment, T, K, out), {first, second}) == 1);
}

// An output product with its norm, and two layers behind it: whichever block begins first takes the first
// tile.
TEST_CASE("cuda emulated: products follow one another in a launch, in every order of blocks") {
  struct Chain {
    const char *format, *second;
    int64_t T;
  };
  for (const auto& [format, second_format, T] : {Chain{"bf16", "bf16", 3},
                                                 {"bf16", "bf16", 20},
                                                 {"q4_1", "q4_1", 3},
                                                 {"f32", "f32", 20},
                                                 {"q8_0", "bf16", 3},
                                                 {"bf16", "q4_1", 3},
                                                 {"q4_1", "f32", 20}}) {
    INFO(format << " and " << second_format << ", " << T << " rows");
    constexpr int64_t E = 128, F = 576;  // more than a span
    DeviceArray x(random_values(T * E, Values::kNormal, 1)), norm_w(random_values(E, Values::kNormal, 3));
    DeviceCopy<uint16_t> w(std::vector<uint16_t>(4 * F * E, 0x3c11));
    const MatmulSegment of_output{w.data(), nullptr, E, 0}, of_first{w.data(), nullptr, 2 * F, 0};
    const auto run_all = [&, of = format, of_second = second_format, T = T] {
      DeviceArray hidden(random_values(T * E, Values::kNormal, 4)), normed(nothing_yet(T * E)),
          gate(nothing_yet(T * 2 * F));
      cuda::HeldLaunches launches;
      const auto run = [&](KernelFamily family, const char* format, const void* args) {
        REQUIRE(launches.launch(*cuda::find_device_kernel(family, format), args, nullptr, nullptr).ok());
      };
      MatmulArgs output = product_of(x, of_output, T, E, hidden);
      output.residual = hidden.data();
      const RmsNormArgs norm = rms_norm_of(hidden, norm_w, T, E, normed);
      const MatmulArgs first = product_of(normed, of_first, T, E, gate);
      GatedMatmulArgs second;
      second.matmul = product_of(gate, of_output, T, F, hidden);
      second.matmul.residual = hidden.data();
      second.matmul.ldx = second.ld_gate = 2 * F;
      second.gate = gate.data() + F;
      run(KernelFamily::kMatmul, of, &output);
      run(KernelFamily::kRmsNorm, "f32", &norm);
      run(KernelFamily::kMatmul, of, &first);
      run(KernelFamily::kGatedMatmul, of_second, &second);
      run(KernelFamily::kRmsNorm, "f32", &norm);
      CHECK(launches.held() == 1);
      REQUIRE(launches.release().ok());
      std::vector<float> all = hidden.host();
      const std::vector<float> rest = normed.host();
      all.insert(all.end(), rest.begin(), rest.end());
      return all;
    };
    if (T == 3) check_in_every_order(run_all);
    else check_both_ways(run_all, run_all());  // tiles of rows behind each other
  }
}

namespace {

// Heads' products between one of more K and one of their results: blocks of two warps, of which each has a
// head's tile of its own.
struct OfHeads {
  const char *format, *of_heads;
  int64_t T, heads;
  static constexpr int64_t kWide = 576, kNope = 32, kRank = 40, kLast = 16;

  int64_t width() const { return heads * kRank; }
  std::vector<float> run() const {
    const int64_t made = heads * kNope;
    DeviceArray x(random_values(static_cast<size_t>(T * kWide), Values::kNormal, 1)),
        rows(nothing_yet(T * made)), over(nothing_yet(T * width())), out(nothing_yet(T * kLast));
    DeviceCopy<uint16_t> w(std::vector<uint16_t>(static_cast<size_t>(2 * made * kWide), 0x3c11));
    const MatmulSegment first{w.data(), nullptr, made, 0}, last{w.data(), nullptr, kLast, 0};
    cuda::HeldLaunches launches;
    const auto run = [&](const char* its, const MatmulArgs& m) {
      const cuda::DeviceKernel& kernel = *cuda::find_device_kernel(KernelFamily::kMatmul, its);
      REQUIRE(launches.launch(kernel, &m, nullptr, nullptr).ok());
    };
    run(format, product_of(x, first, T, kWide, rows));
    for (int64_t head = 0; head < heads; ++head) {
      const MatmulSegment its{w.data() + 8 * head, nullptr, kRank, 0};
      MatmulArgs m = product_of(rows, its, T, kNope, over);
      m.x += head * kNope;
      m.ldx = made;
      m.out += head * kRank;
      m.ldo = width();
      run(of_heads, m);
    }
    run(format, product_of(over, last, T, width(), out));
    CHECK(launches.held() == 1);
    REQUIRE(launches.release().ok());
    return out.host();
  }
};

}  // namespace

TEST_CASE("cuda emulated: products of heads follow others in their launch, in every order of blocks") {
  for (const OfHeads& p : {OfHeads{"bf16", "bf16", 3, 3},
                           {"bf16", "bf16", 20, 5},
                           {"f32", "f32", 3, 3},
                           {"f16", "bf16", 3, 3},
                           {"bf16", "f16", 3, 3}}) {
    INFO(p.format << ", heads " << p.of_heads << ", " << p.T << " rows");
    const auto run = [&] { return p.run(); };
    if (p.T == 3) check_in_every_order(run);
    else check_both_ways(run, run());
  }
}

TEST_CASE("cuda emulated: columns of keys and queries rotate in the launch that appends the keys") {
  constexpr int64_t T = 5, kHeads = 2, kRank = 24, kTurned = 8, D = kRank + kTurned;
  DeviceArray x(random_values(T * kHeads * kTurned, Values::kNormal, 1)),
      frequencies(std::vector<float>(kTurned / 2, 0.5f));
  DeviceCopy<int32_t> slots(std::vector<int32_t>{12, 13, 14, 15, 16});
  for (const char* codes : {"", "int8"}) {
    check_in_every_order([&] {
      DeviceArray k(random_values(T * D, Values::kNormal, 2)), q(nothing_yet(T * kHeads * D));
      DeviceCopy<char> pool(std::vector<char>(1 << 13, '\x11')), open(std::vector<char>(1 << 13, '\x11'));
      RopeArgs keys;
      keys.version = 2;
      keys.out = k.data() + kRank;
      keys.x = x.data();
      keys.positions = slots.data();
      keys.inv_freq = frequencies.data();
      keys.T = T;
      keys.heads = 1;
      keys.D = keys.rot_dim = kTurned;
      keys.ldx = kHeads * kTurned;
      keys.ldo = D;
      RopeArgs queries = keys;
      queries.out = q.data() + kRank;
      queries.heads = kHeads;
      queries.out_step = D;
      queries.ldo = kHeads * D;
      cuda::HeldLaunches launches;
      const auto run = [&](KernelFamily family, const char* format, const char* code, const void* args) {
        const bool latent = family != KernelFamily::kRope;
        REQUIRE(
            launches
                .launch(*cuda::find_device_kernel(family, format, code, code, latent), args, nullptr, nullptr)
                .ok());
      };
      run(KernelFamily::kRope, "f32", "", &queries);
      run(KernelFamily::kRope, "f32", "", &keys);
      if (codes[0] == '\0') {
        KvAppendArgs a;
        a.pool = pool.data();
        a.k = k.data();
        a.slots = slots.data();
        a.T = T;
        a.ldk = D;
        a.shape = {DType::kBF16, 16, 1, D, kRank};
        run(KernelFamily::kKvAppend, "bf16", "", &a);
      } else {
        QuantKvAppendArgs a;
        a.pool = pool.data();
        a.open = a.sinks = open.data();
        a.k = k.data();
        a.slots = a.open_slots = a.sink_slots = slots.data();
        a.T = T;
        a.ldk = D;
        a.shape = {KvCode::kInt8, KvCode::kInt8, 16, 1, D, kRank};
        run(KernelFamily::kQuantKvAppend, "bf16", codes, &a);
      }
      CHECK(launches.held() == 0);
      std::vector<char> all = pool.host();
      const std::vector<char> its = open.host();
      all.insert(all.end(), its.begin(), its.end());
      const std::vector<float> turned = q.host();
      all.insert(all.end(), reinterpret_cast<const char*>(turned.data()),
                 reinterpret_cast<const char*>(turned.data() + turned.size()));
      return all;
    });
  }
}

TEST_CASE("cuda emulated: experts are chosen by whichever block of the router's product comes last") {
  for (const auto& [format, T] : {std::pair<const char*, int64_t>{"bf16", 3}, {"bf16", 20}, {"f32", 3}}) {
    INFO(format << ", " << T << " rows");
    constexpr int64_t K = 576, kExperts = 40, kTopK = 3;
    DeviceArray x(random_values(T * K, Values::kNormal, 1));
    DeviceCopy<uint16_t> w(random_bf16(2 * kExperts * K));
    const MatmulSegment segment{w.data(), nullptr, kExperts, 0};
    const auto run_all = [&, of = format, T = T] {
      DeviceArray logits(nothing_yet(T * kExperts)), weight(nothing_yet(T * kTopK));
      const std::vector<int32_t> none(T * kTopK, -1);
      DeviceCopy<int32_t> token(none), slot(none), chosen(none),
          start(std::vector<int32_t>(kExperts + 1, -1));
      MoeRouteArgs route;
      route.pair_token = token.data();
      route.pair_slot = slot.data();
      route.pair_weight = weight.data();
      route.expert_start = start.data();
      route.logits = logits.data();
      route.T = T;
      route.experts = kExperts;
      route.top_k = kTopK;
      const MatmulArgs m = product_of(x, segment, T, K, logits);
      cuda::HeldLaunches launches;
      REQUIRE(
          launches.launch(*cuda::find_device_kernel(KernelFamily::kMatmul, of), &m, nullptr, nullptr).ok());
      REQUIRE(launches
                  .launch(*cuda::find_device_kernel(KernelFamily::kMoeRoute, "f32"), &route, chosen.data(),
                          nullptr)
                  .ok());
      CHECK(launches.held() == 0);
      std::vector<int32_t> all = token.host();
      for (DeviceCopy<int32_t>* part : {&slot, &start}) {
        const std::vector<int32_t> its = part->host();
        all.insert(all.end(), its.begin(), its.end());
      }
      for (const float its : weight.host()) all.push_back(std::bit_cast<int32_t>(its));
      return all;
    };
    if (T == 3) check_in_every_order(run_all);
    else check_both_ways(run_all, run_all());
  }
}

// Behind a product with a norm: their layers with the gate, the sum of their rows, its norm, and a product of
// that. Norm and sum have one counter, and an expert has no rows.
TEST_CASE("cuda emulated: experts' layers follow one another in a launch, in every order of blocks") {
  constexpr int64_t T = 3, kTopK = 2, P = T * kTopK, E = 64, F = 48, kExperts = 4;
  DeviceArray x(random_values(T * E, Values::kNormal, 1)), norm_w(random_values(E, Values::kNormal, 3)),
      weight(random_values(P, Values::kNormal, 2));
  DeviceCopy<uint16_t> w(random_bf16(kExperts * 4 * F * E));
  DeviceCopy<int32_t> token(std::vector<int32_t>{0, 2, 1, 0, 1, 2}),
      slot(std::vector<int32_t>{0, 3, 2, 4, 1, 5}), start(std::vector<int32_t>{0, 2, 2, 5, 6});
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [others, format] :
       {Pair{"bf16", "bf16"}, {"f32", "f32"}, {"f16", "bf16"}, {"bf16", "f16"}}) {
    INFO(format << " between " << others);
    check_in_every_order([&, others = others, of = format] {
      DeviceArray both(nothing_yet(P * 2 * F)), made(nothing_yet(P * F)), y(nothing_yet(P * E)),
          sum(nothing_yet(T * E)), normed(nothing_yet(T * E)), out(nothing_yet(T * 16)),
          made_first(nothing_yet(T * E)), rows(nothing_yet(T * E));
      std::vector<MatmulSegment> first, second;
      for (int64_t e = 0; e < kExperts; ++e) {
        for (int64_t i = 0; i < 2; ++i) first.push_back({w.data() + (2 * e + i) * F * E, nullptr, F, i * F});
        second.push_back({w.data() + 2 * e * F * E, nullptr, E, 0});
      }
      GroupedMatmulArgs m;
      m.out = both.data();
      m.x = rows.data();
      m.pair_token = token.data();
      m.expert_start = start.data();
      m.segments = first.data();
      m.segments_per_expert = 2;
      m.experts = kExperts;
      m.P = P;
      m.K = m.ldx = E;
      m.ldo = 2 * F;
      SwiGluArgs gate;
      gate.gate = both.data();
      gate.up = both.data() + F;
      gate.out = made.data();
      gate.T = P;
      gate.F = gate.ldo = F;
      gate.ldg = gate.ldu = 2 * F;
      GroupedMatmulArgs n = m;
      n.out = y.data();
      n.x = made.data();
      n.pair_token = nullptr;
      n.segments = second.data();
      n.segments_per_expert = 1;
      n.K = n.ldx = F;
      n.ldo = E;
      MoeCombineArgs c;
      c.out = sum.data();
      c.y = y.data();
      c.pair_slot = slot.data();
      c.pair_weight = weight.data();
      c.T = T;
      c.top_k = kTopK;
      c.E = E;
      const RmsNormArgs norm = rms_norm_of(sum, norm_w, T, E, normed);
      const MatmulSegment segment{w.data(), nullptr, 16, 0}, square{w.data(), nullptr, E, 0};
      const MatmulArgs before = product_of(x, square, T, E, made_first),
                       next = product_of(normed, segment, T, E, out);
      const RmsNormArgs its_norm = rms_norm_of(made_first, norm_w, T, E, rows);
      cuda::HeldLaunches launches;
      const auto run = [&](KernelFamily family, const char* format, const void* args) {
        REQUIRE(launches.launch(*cuda::find_device_kernel(family, format), args, nullptr, nullptr).ok());
      };
      run(KernelFamily::kMatmul, others, &before);
      run(KernelFamily::kRmsNorm, "f32", &its_norm);
      run(KernelFamily::kGroupedMatmul, of, &m);
      run(KernelFamily::kSwiGlu, "f32", &gate);
      run(KernelFamily::kGroupedMatmul, of, &n);
      run(KernelFamily::kMoeCombine, "f32", &c);
      run(KernelFamily::kRmsNorm, "f32", &norm);
      run(KernelFamily::kMatmul, others, &next);
      CHECK(launches.held() == 1);
      REQUIRE(launches.release().ok());
      std::vector<float> all = out.host();
      for (DeviceArray* part : {&made, &y, &sum}) {
        const std::vector<float> its = part->host();
        all.insert(all.end(), its.begin(), its.end());
      }
      return all;
    });
  }
}
