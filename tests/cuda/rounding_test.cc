// How a device rounds: matrix instructions and functions on 100 cases each, against exact sums within the
// bound that any order of additions and any rounding of each keeps. OAR_ROUNDINGS=FILE writes every result,
// one line a case, so that those of a GPU and of the emulated device can be compared (./dev gpu).
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <random>

#include "tests/cuda/device_memory.h"
#include "tests/cuda/rounding_kernels.h"

using namespace oar_test;

namespace {

constexpr int kCases = 100;

std::ofstream* record() {
  static std::ofstream file;
  const char* path = std::getenv("OAR_ROUNDINGS");
  if (path == nullptr) return nullptr;
  if (!file.is_open()) file.open(path);
  REQUIRE(file.good());
  return &file;
}

void write(const std::string& name, int i, const uint32_t* words, size_t n) {
  std::ofstream* file = record();
  if (file == nullptr) return;
  *file << name << " " << i << std::hex << std::setfill('0');
  for (size_t w = 0; w < n; ++w) *file << " " << std::setw(8) << words[w];
  *file << std::dec << "\n";
}

float as_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
uint32_t as_bits(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

// A type of operands: how many k a product has, and what element e of a register's word stands for.
struct Type {
  const char* name;
  int k, in_word;
  double (*value)(uint32_t word, int e);
  bool integer;
};
const Type kTypes[] = {
    {"bf16", 16, 2, [](uint32_t w, int e) -> double { return as_float(e == 0 ? w << 16 : w & 0xffff0000u); },
     false},
    {"e4m3", 32, 4,
     [](uint32_t w, int e) -> double {
       const uint32_t b = w >> 8 * e & 0xff, exponent = b >> 3 & 15;
       const double m = std::ldexp((exponent == 0 ? 0 : 8) + static_cast<double>(b & 7),
                                   static_cast<int>(exponent == 0 ? 1 : exponent) - 10);
       return (b & 0x80) != 0 ? -m : m;
     },
     false},
    {"s8", 32, 4, [](uint32_t w, int e) -> double { return static_cast<int8_t>(w >> 8 * e & 0xff); }, true},
    {"f16", 16, 2,
     [](uint32_t w, int e) -> double {
       const uint32_t b = w >> 16 * e & 0xffff, exponent = b >> 10 & 31;
       const double m = std::ldexp((exponent == 0 ? 0 : 1024) + static_cast<double>(b & 1023),
                                   static_cast<int>(exponent == 0 ? 1 : exponent) - 25);
       return (b & 0x8000) != 0 ? -m : m;
     },
     false},
    {"tf32", 8, 1, [](uint32_t w, int) -> double { return as_float(w); }, false},
};

// Random operands: bf16 and TF32 of 2^-20 to 2^20, every e4m3 but NaN, every finite f16, every byte.
uint32_t random_word(const Type& type, std::mt19937& random) {
  uint32_t word = 0;
  if (type.in_word == 1) {
    const uint32_t x = random();
    return (x & 0x807fe000) | (107 + x % 41) << 23;
  }
  for (int e = 0; e < type.in_word; ++e) {
    uint32_t x = random();
    if (type.k == 16 && type.name[0] == 'f') x ^= (x & 0x7c00) == 0x7c00 ? 0x4000u : 0u;
    else if (type.in_word == 2) x = (x & 0x807f) | (107 + x / 65536 % 41) << 7;
    else if (!type.integer && (x & 0x7f) == 0x7f) x ^= 1;
    word |= (x & (type.in_word == 2 ? 0xffffu : 0xffu)) << (32 / type.in_word * e);
  }
  return word;
}

// Of a sum of f32 parts: each of its additions may round as it likes, by a unit in the last place of the
// largest value that it can have; and a part may be cut to as many bits.
double bound(double magnitude, int parts) { return 2.0 * (parts + 1) * std::ldexp(magnitude, -23); }

}  // namespace

TEST_CASE("cuda: matrix instructions round within any order's bound", "[cuda][rounding]") {
  OAR_SKIP_WITHOUT_DEVICE();
  for (int t = 0; t < 5; ++t) {
    const Type& type = kTypes[t];
    std::mt19937 random(17 + t);
    std::vector<uint32_t> a(128 * kCases), b(64 * kCases), c(128 * kCases);
    for (uint32_t& w : a) w = random_word(type, random);
    for (uint32_t& w : b) w = random_word(type, random);
    for (uint32_t& w : c) {
      const int exponent = static_cast<int>(random() % 24) - 4;
      w = type.integer ? random() >> 8
                       : as_bits(std::ldexp(static_cast<float>(random() % 2048) - 1024.f, exponent));
    }
    DeviceCopy<uint32_t> da(a), db(b), dc(c), dd(std::vector<uint32_t>(c.size()));
    REQUIRE(launch_fragments(dd.data(), da.data(), db.data(), dc.data(), static_cast<MmaOf>(t), kCases) ==
            cudaSuccess);
    const std::vector<uint32_t> d = dd.host();
    for (int i = 0; i < kCases; ++i) {
      write(std::string("mma ") + type.name, i, d.data() + 128 * i, 128);
      for (int l = 0; l < 32; ++l) {
        for (int j = 0; j < 4; ++j) {
          // Row and column of this sum, and where their elements lie: device.h.
          const int row = l / 4 + j / 2 * 8, column = l % 4 * 2 + j % 2, half = type.k / 2;
          const uint32_t start = c[static_cast<size_t>(128 * i + 4 * l + j)];
          double sum = type.integer ? static_cast<double>(static_cast<int32_t>(start)) : as_float(start),
                 magnitude = std::fabs(sum);
          for (int k = 0; k < type.k; ++k) {
            const int quad = k % half / type.in_word, e = k % type.in_word;
            const int left = 4 * (row % 8 * 4 + quad) + row / 8 + k / half * 2,
                      right = 2 * (column * 4 + quad) + k / half;
            const double product = type.value(a[static_cast<size_t>(128 * i + left)], e) *
                                   type.value(b[static_cast<size_t>(64 * i + right)], e);
            sum += product;
            magnitude += std::fabs(product);
          }
          const uint32_t word = d[static_cast<size_t>(128 * i + 4 * l + j)];
          INFO(type.name << " case " << i << " lane " << l << " sum " << j);
          if (type.integer) REQUIRE(static_cast<double>(static_cast<int32_t>(word)) == sum);
          // Tensor cores add e4m3 in 14 bits at least: 2^-13 of the largest.
          else if (t == 1) REQUIRE(std::fabs(as_float(word) - sum) <= bound(magnitude, type.k) * 1024);
          else REQUIRE(std::fabs(as_float(word) - sum) <= bound(magnitude, type.k));
        }
      }
    }
  }
}

TEST_CASE("cuda: matrices come from shared memory as fragments, plain and transposed", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::vector<uint32_t> rows(32 * 4);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint32_t>((2 * i + 1) << 16 | 2 * i);
  for (const size_t valid : {size_t{32}, size_t{29}, size_t{0}}) {
    DeviceCopy<uint32_t> from(rows), out(std::vector<uint32_t>(32 * 8, 0xffffffffu));
    REQUIRE(launch_matrices(out.data(), from.data(), static_cast<int>(valid)) == cudaSuccess);
    const std::vector<uint32_t> got = out.host();
    const auto element = [&](size_t row, size_t column) {  // its 16 bits
      return row < valid ? rows[4 * row + column / 2] >> (column % 2 * 16) & 0xffffu : 0u;
    };
    for (size_t l = 0; l < 32; ++l) {
      const size_t g = l / 4, t = l % 4;
      for (size_t i = 0; i < 4; ++i) {
        INFO("lane " << l << ", matrix " << i << ", " << valid << " rows");
        CHECK(got[8 * l + i] == (element(8 * i + g, 2 * t) | element(8 * i + g, 2 * t + 1) << 16));
        CHECK(got[8 * l + 4 + i] == (element(8 * i + 2 * t, g) | element(8 * i + 2 * t + 1, g) << 16));
      }
    }
  }
}

TEST_CASE("cuda: numbers become f16 and TF32 as IEEE's roundings say", "[cuda][rounding]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::mt19937 random(47);
  // In the middle of two of either type too, at the ends of f16, beyond them.
  std::vector<float> x = {0.f,     -0.f,    1.f + 0x1p-11f, 1.f + 0x3p-11f, 0x1p-25f, 0x3p-25f, 0x1p-24f,
                          65504.f, 65519.f, 65520.f,        0x1.ffffp127f,  INFINITY, -INFINITY};
  while (x.size() < kCases) {
    const uint32_t bits = random();
    x.push_back(as_float((bits & 0x807fffff) | (97 + bits / 65536 % 50) << 23));
  }
  DeviceCopy<float> dx(x);
  DeviceCopy<uint32_t> dy(std::vector<uint32_t>(2 * x.size()));
  REQUIRE(launch_operands(dy.data(), dx.data(), kCases) == cudaSuccess);
  const std::vector<uint32_t> y = dy.host();
  // The nearest multiple of a step that leaves `bits` of precision; away: between two, away from zero.
  const auto nearest = [](double v, int bits, int least, bool away) {
    if (v == 0 || std::isinf(v)) return v;
    int exponent = 0;
    std::frexp(v, &exponent);
    const int step = std::max(exponent - bits, least);
    const double steps = std::ldexp(v, -step);
    return std::ldexp(away ? std::round(steps) : std::nearbyint(steps), step);
  };
  for (int i = 0; i < kCases; ++i) {
    const auto at = static_cast<size_t>(i);
    write("operands f16,tf32", i, y.data() + 2 * at, 2);
    INFO("x " << x[at]);
    double half = nearest(static_cast<double>(x[at]), 11, -24, false);
    if (std::fabs(half) > 65504) half = std::copysign(INFINITY, half);
    const double finite = std::isinf(half) ? std::copysign(65536., half) : half;
    const auto same = [&](uint32_t bits, double sign) {
      if ((bits & 0x7fff) == 0x7c00)
        return std::isinf(half) && (bits >> 15 != 0) == std::signbit(sign * half);
      return !std::isinf(half) && kTypes[3].value(bits, 0) == sign * finite;
    };
    CHECK(same(y[2 * at] & 0xffff, 1));
    CHECK(same(y[2 * at] >> 16, -1));
    const auto wide = static_cast<float>(nearest(static_cast<double>(x[at]), 11, -136, true));
    CHECK(y[2 * at + 1] == as_bits(wide));
  }
  x = {NAN};
  DeviceCopy<float> dn(x);
  REQUIRE(launch_operands(dy.data(), dn.data(), 1) == cudaSuccess);
  const std::vector<uint32_t> none = dy.host();
  CHECK((none[0] & 0x7fff) > 0x7c00);
  CHECK(std::isnan(as_float(none[1])));
}

namespace {

// What each element of some operands stands for, one after another.
std::vector<double> values_of(const std::vector<uint32_t>& words, const Type& type) {
  std::vector<double> out;
  out.reserve(words.size() * static_cast<size_t>(type.in_word));
  for (const uint32_t w : words)
    for (int e = 0; e < type.in_word; ++e) out.push_back(type.value(w, e));
  return out;
}

}  // namespace

TEST_CASE("cuda: warp groups' products round within any order's bound", "[cuda][rounding]") {
  OAR_SKIP_WITHOUT_DEVICE();
  constexpr size_t kThreads = 128, kBytes = 128;  // of a row
  constexpr size_t kRows = 64, kWords = kRows * kBytes / 4, kSums = 32;
  for (int t = 0; t < 3; ++t) {
    const Type& type = kTypes[t];
    std::mt19937 random(27 + t);
    std::vector<uint32_t> a(kWords * kCases), b(a.size());
    for (uint32_t& w : a) w = random_word(type, random);
    for (uint32_t& w : b) w = random_word(type, random);
    DeviceCopy<uint32_t> da(a), db(b), dd(std::vector<uint32_t>(kSums * kThreads * kCases));
    REQUIRE(launch_groups(dd.data(), da.data(), db.data(), static_cast<MmaOf>(t), kCases) == cudaSuccess);
    const std::vector<uint32_t> d = dd.host();
    const std::vector<double> left = values_of(a, type), right = values_of(b, type);
    const size_t K = kBytes / 4 * static_cast<size_t>(type.in_word);
    for (size_t c = 0; c < kCases; ++c) {
      const uint32_t* words = d.data() + c * kSums * kThreads;
      write(std::string("wgmma ") + type.name, static_cast<int>(c), words, kSums * kThreads);
      for (size_t at = 0; at < kSums * kThreads; ++at) {
        const size_t thread = at / kSums, i = at % kSums;
        const size_t row = thread / 32 * 16 + thread % 32 / 4 + (i % 4 >= 2 ? 8 : 0);
        const size_t column = i / 4 * 8 + thread % 4 * 2 + (i & 1);
        const double *x = left.data() + (c * kRows + row) * K, *y = right.data() + (c * kRows + column) * K;
        double sum = 0, magnitude = 0;
        for (size_t k = 0; k < K; ++k) {
          sum += x[k] * y[k];
          magnitude += std::fabs(x[k] * y[k]);
        }
        const bool near = type.integer ? static_cast<double>(static_cast<int32_t>(words[at])) == sum
                                       : std::fabs(as_float(words[at]) - sum) <=
                                             bound(magnitude, static_cast<int>(K)) * (t == 1 ? 1024 : 1);
        if (near) continue;
        INFO(type.name << " case " << c << " thread " << thread << " sum " << i);
        FAIL("a sum beyond its bound");
      }
    }
  }
}

TEST_CASE("cuda: exponentials and quotients are within two units in the last place", "[cuda][rounding]") {
  OAR_SKIP_WITHOUT_DEVICE();
  std::mt19937 random(37);
  std::vector<float> x(kCases);
  for (float& v : x)
    v = std::ldexp(static_cast<float>(random() % 100000) + 1, -15) * (random() % 2 == 0 ? 1.f : -1.f);
  DeviceCopy<float> dx(x), dy(std::vector<float>(3 * x.size()));
  REQUIRE(launch_functions(dy.data(), dx.data(), kCases) == cudaSuccess);
  const std::vector<float> y = dy.host();
  for (int i = 0; i < kCases; ++i) {
    const auto at = static_cast<size_t>(i);
    const uint32_t words[] = {as_bits(y[3 * at]), as_bits(y[3 * at + 1]), as_bits(y[3 * at + 2])};
    write("functions exp,quotient,ex2", i, words, 3);
    const double e = std::exp(static_cast<double>(x[at])), q = 1 / static_cast<double>(x[at]);
    INFO("x " << x[at]);
    CHECK(std::fabs(y[3 * at] - e) <= 2 * std::ldexp(e, -23));
    CHECK(std::fabs(y[3 * at + 1] - q) <= 2 * std::ldexp(std::fabs(q), -23));
    // Its argument, up to 4.5, is rounded twice before.
    CHECK(std::fabs(y[3 * at + 2] - e) <= 5 * std::ldexp(e, -23));
  }
}
