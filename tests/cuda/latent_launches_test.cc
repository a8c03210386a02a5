// What a device does at once between the products and the attention of a layer over latents: keys that hold
// values and queries are rotated in some of their columns, and the keys appended. The bits are those of
// launches one by one, and what would meet in memory is done so.
#include "kernels/cuda/heads.h"
#include "kernels/cuda/held_launches.h"
#include "kernels/kv_quant.h"
#include "tests/cuda/on_device.h"

using namespace oar;
using namespace oar_test;

namespace {

constexpr int64_t kHeads = 3, kTurned = 16, kRank = 40, kDims = kRank + kTurned;
constexpr int32_t kPageTokens = 16;

struct Cache {
  const char *format, *codes;  // empty: pages of 16 or 32 bits
};
constexpr Cache kCaches[] = {{"f32", ""},      {"f16", ""},     {"bf16", ""},
                             {"bf16", "int8"}, {"bf16", "fp8"}, {"bf16", "int4_mean"}};

// Floats from where they would be otherwise.
struct Shifts {
  int64_t key = 0;        // of the rotated columns of a key
  int64_t query = 0;      // of those of a query
  int64_t queries = 0;    // of all of them; -1: where keys are rotated from
  bool in_place = false;  // queries are rotated where they are
};

// A layer's rows: queries (T, heads, nope + turned) and what a key rotates of, keys (T, kDims) and queries
// over latents (T, heads, kDims).
struct Layer {
  int64_t T = 5;
  bool queries = true, norm = false, second_key = false, transform = false;
  int64_t turned_heads = 1;  // of a key
  int32_t keys_of_row = 1;   // of which the first one rotates
  Shifts shift = {};

  // Memory of activations, then the cache's, as all steps leave them; launched one by one, or held.
  std::vector<char> run(const Cache& cache, bool held) const {
    const int64_t from = kHeads * (24 + kTurned), made = kHeads * kDims, wide = keys_of_row * kDims;
    std::vector<float> memory =
        random_values(static_cast<size_t>(T * (from + 64 + wide + made) + 256), Values::kNormal, 1);
    DeviceArray activations(memory),
        frequencies(std::vector<float>{1.f, 0.5f, 0.25f, 0.1f, 0.03f, 0.01f, 0.003f, 1e-3f}),
        norm_w(random_values(kTurned, Values::kNormal, 2));
    std::vector<int32_t> positions, slots;
    for (int32_t t = 0; t < T; ++t) {
      positions.push_back(13 + t);
      slots.push_back(t == 1 ? -1 : kPageTokens + 13 + t);  // the last of a page, and those of the next
    }
    slots.back() = kPageTokens - 1;  // a page that is full
    DeviceCopy<int32_t> at(positions), to(slots);
    const std::vector<char> pages(static_cast<size_t>(wide * (1024 + 16 * T)), '\x11');
    DeviceCopy<char> pool(pages), open(pages), sinks(pages);
    float *const q = activations.data(), *const turning = q + T * from, *const keys = turning + T * 64,
                 *const over = keys + T * wide;
    const NextOrder order;
    cuda::HeldLaunches together;
    const auto launch = [&](KernelFamily family, const auto& args, bool append = false) {
      const cuda::DeviceKernel* kernel =
          cuda::find_device_kernel(family, append ? cache.format : "f32", append ? cache.codes : "",
                                   append ? cache.codes : "", append);
      REQUIRE(kernel != nullptr);
      REQUIRE(
          (held ? together.launch(*kernel, &args, nullptr, nullptr) : kernel->launch(&args, nullptr, nullptr))
              .ok());
    };
    RopeArgs rope;
    rope.positions = at.data();
    rope.inv_freq = frequencies.data();
    rope.norm_w = norm ? norm_w.data() : nullptr;
    rope.T = T;
    rope.D = rope.rot_dim = kTurned / turned_heads;
    rope.heads = turned_heads;
    rope.x = turning + kRank;
    rope.ldx = 64;
    rope.out = keys + kRank + shift.key;
    rope.ldo = wide;
    launch(KernelFamily::kRope, rope);
    if (second_key) {
      RopeArgs again = rope;
      again.out = keys;
      launch(KernelFamily::kRope, again);
    }
    if (transform) {
      HadamardArgs h;
      h.x = h.out = rope.out;
      h.rows = T;
      h.n = h.block = h.power = kTurned;
      h.ldx = h.ldo = wide;
      launch(KernelFamily::kHadamard, h);
    }
    if (queries) {
      rope.version = 2;
      rope.heads = kHeads;
      rope.D = rope.rot_dim = kTurned;
      rope.x = q + 24;
      rope.ldx = from;
      rope.x_step = from / kHeads;
      rope.out = (shift.queries < 0 ? turning : over + shift.queries) + kRank + shift.query;
      rope.ldo = made;
      rope.out_step = kDims;
      if (shift.in_place) rope.out = q + 24, rope.ldo = from, rope.out_step = rope.x_step;
      launch(KernelFamily::kRope, rope);
    }
    const auto append = [&](auto a, KernelFamily family) {
      a.k = keys;
      a.slots = to.data();
      a.T = T;
      a.ldk = wide;
      a.pool = pool.data();
      launch(family, a, true);
    };
    if (cache.codes[0] == '\0') {
      const DType type = cache.format[0] == 'b'   ? DType::kBF16
                         : cache.format[1] == '1' ? DType::kF16
                                                  : DType::kF32;
      KvAppendArgs a;
      a.shape = {type, kPageTokens, keys_of_row, kDims, kRank};
      append(a, KernelFamily::kKvAppend);
    } else {
      QuantKvAppendArgs a;
      a.open = open.data();
      a.sinks = sinks.data();
      a.open_slots = a.sink_slots = to.data();
      a.shape = {KvCode::kInt8, KvCode::kInt8, kPageTokens, keys_of_row, kDims, kRank};
      append(a, KernelFamily::kQuantKvAppend);
    }
    REQUIRE(together.release().ok());
    const std::vector<float> floats = activations.host();
    std::vector<char> all(reinterpret_cast<const char*>(floats.data()),
                          reinterpret_cast<const char*>(floats.data() + floats.size()));
    for (DeviceCopy<char>* part : {&pool, &open, &sinks}) {
      const std::vector<char> bytes = part->host();
      all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
  }
};

void check(const Layer& layer, const Cache& cache) {
  INFO(cache.format << " " << cache.codes << ", rows " << layer.T);
  CHECK((layer.run(cache, true) == layer.run(cache, false)));
}

}  // namespace

TEST_CASE("cuda: parts of keys and queries rotated, and keys appended, at once are those of one by one",
          "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Cache& cache : kCaches) {
    check({}, cache);
    check({.T = 23, .norm = true}, cache);
    check({.T = 1, .queries = false}, cache);
  }
  check({.T = 290}, {"bf16", "int8"});  // more rows than come to codes in the launch
}

TEST_CASE("cuda: what no append of latents takes along is done one by one", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (const Cache& cache : {kCaches[2], kCaches[3]}) {
    check({.second_key = true}, cache);
    check({.transform = true}, cache);
    check({.turned_heads = 2}, cache);
    check({.keys_of_row = 2}, cache);
    // Rotated columns that end in the next key, and begin in the one before; queries upon what keys are
    // rotated from, upon keys, and upon what they themselves are rotated from.
    check({.shift = {.key = 1}}, cache);
    check({.shift = {.key = -kRank - 1}}, cache);
    check({.shift = {.queries = -1}}, cache);
    check({.shift = {.query = -5 * kDims}}, cache);
    check({.shift = {.in_place = true}}, cache);
  }
}

TEST_CASE("cuda: latents that are too wide are refused", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  QuantKvAppendArgs q;
  q.shape = {KvCode::kInt8, KvCode::kInt8, 16, 1, 576, 512};
  CHECK(cuda::quant_append_heads({}, q, KvCode::kInt8, KvCode::kInt8, nullptr).ok());
  q.shape.head_dim = 584;
  CHECK(!cuda::quant_append_heads({}, q, KvCode::kInt8, KvCode::kInt8, nullptr).ok());
}
