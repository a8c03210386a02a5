// Where the elements of matrix instructions lie on the emulated device, held against a second source: the
// tables that CUTLASS publishes for its own code (github.com/NVIDIA/cutlass, 7107b05, include/cute/atom):
// mma_traits_sm80.hpp and mma_traits_sm89.hpp for mma, copy_traits_sm75.hpp for ldmatrix,
// mma_traits_sm90_gmma.hpp and arch/mma_sm90_desc.hpp for warp groups. Only numbers are taken from there:
// each table maps a thread and a value it holds to an element by extents and strides.
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/tensor_map.h"
#include "quant/dtype.h"
#include "tests/cuda/box_kernels.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/layout_kernels.h"

namespace emulation = oar::cuda::emulation;
using namespace oar_test;

namespace {

// Digits of an index, the lowest first, and what each is worth.
struct Digit {
  size_t extent, stride;
};
using Digits = std::vector<Digit>;
// (thread, value) -> element; elements of a matrix count down its columns: row + rows * column.
struct Layout {
  Digits threads, values;
};

size_t place(const Digits& digits, size_t index) {
  size_t at = 0;
  for (const Digit& d : digits) {
    at += index % d.extent * d.stride;
    index /= d.extent;
  }
  return at;
}
size_t element(const Layout& l, size_t thread, size_t value) {
  return place(l.threads, thread) + place(l.values, value);
}
size_t count(const Digits& digits) {
  size_t n = 1;
  for (const Digit& d : digits) n *= d.extent;
  return n;
}

struct Instruction {
  size_t k;
  Layout a, b, c;
};
const Layout kAccumulators{{{4, 32}, {8, 1}}, {{2, 16}, {2, 8}}};  // 16 x 8
// m16n8k8 of TF32, m16n8k16 of 16 bits, m16n8k32 of 8: A is 16 x k, B 8 x k.
const Instruction kOfTf32{
    8, {{{4, 16}, {8, 1}}, {{2, 8}, {2, 64}}}, {{{4, 8}, {8, 1}}, {{2, 32}}}, kAccumulators};
const Instruction kOf16Bits{16,
                            {{{4, 32}, {8, 1}}, {{2, 16}, {2, 8}, {2, 128}}},
                            {{{4, 16}, {8, 1}}, {{2, 8}, {2, 64}}},
                            kAccumulators};
const Instruction kOf8Bits{32,
                           {{{4, 64}, {8, 1}}, {{4, 16}, {2, 8}, {2, 256}}},
                           {{{4, 32}, {8, 1}}, {{4, 8}, {2, 128}}},
                           kAccumulators};
// 64 x n of a warp group, in 32 bits.
Layout group_accumulators(size_t n) { return {{{4, 128}, {8, 1}, {4, 16}}, {{2, 64}, {2, 8}, {n / 8, 512}}}; }

// 16-byte pieces of rows of 128 bytes and less: bits 7.. of an offset are added without carry to bits 4..
size_t swizzled(size_t offset, size_t bits) {
  return offset ^ (offset >> 3 & ((size_t{1} << bits) - 1) << 4);
}

size_t bytes_of(LayoutOf type) {
  if (type == LayoutOf::kTf32) return 4;
  return type == LayoutOf::kBf16 || type == LayoutOf::kF16 ? 2 : 1;
}
const Instruction& instruction_of(LayoutOf type) {
  const size_t bytes = bytes_of(type);
  return bytes == 4 ? kOfTf32 : bytes == 2 ? kOf16Bits : kOf8Bits;
}

// Small whole numbers, so that sums are exact in any order.
std::vector<int> numbers(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int> out(n);
  for (int& v : out) v = static_cast<int>(random() % 15) - 7;
  return out;
}
void put(uint8_t* at, LayoutOf type, int value) {
  const auto x = static_cast<float>(value);
  if (type == LayoutOf::kBf16) {
    const auto bits = oar::to_bf16(x).bits;
    std::memcpy(at, &bits, sizeof bits);
  } else if (type == LayoutOf::kF16) {
    const auto bits = oar::to_f16(x).bits;
    std::memcpy(at, &bits, sizeof bits);
  } else if (type == LayoutOf::kTf32) {
    std::memcpy(at, &x, sizeof x);
  } else {
    *at = type == LayoutOf::kS8 ? static_cast<uint8_t>(value) : oar::to_e4m3(x).bits;
  }
}
int sum_of(uint32_t word, LayoutOf type) {
  float f;
  std::memcpy(&f, &word, sizeof f);
  return type == LayoutOf::kS8 ? static_cast<int>(word) : static_cast<int>(f);
}

// Registers of all lanes that hold `matrix` as the layout says.
std::vector<uint8_t> registers(const Layout& l, LayoutOf type, const std::vector<int>& matrix) {
  const size_t values = count(l.values), size = bytes_of(type);
  std::vector<uint8_t> out(32 * values * size);
  for (size_t t = 0; t < 32; ++t) {
    for (size_t v = 0; v < values; ++v)
      put(out.data() + (t * values + v) * size, type, matrix[element(l, t, v)]);
  }
  return out;
}

// Whether the emulated instruction multiplies matrices that lie as `i` says.
bool agrees(LayoutOf type, const Instruction& i) {
  const std::vector<int> a = numbers(16 * i.k, 1), b = numbers(8 * i.k, 2);
  const std::vector<uint8_t> ra = registers(i.a, type, a), rb = registers(i.b, type, b);
  DeviceValues<uint32_t> da(128), db(64), d(128);
  REQUIRE(ra.size() == 4 * da.size());
  REQUIRE(rb.size() == 4 * db.size());
  std::memcpy(da.data(), ra.data(), ra.size());
  std::memcpy(db.data(), rb.data(), rb.size());
  emulation::run_grid(1, 32, 0, [&] { mma_of_registers(type, d.data(), da.data(), db.data()); });
  REQUIRE(emulation::take_error() == "");
  for (size_t t = 0; t < 32; ++t) {
    for (size_t v = 0; v < 4; ++v) {
      const size_t at = element(i.c, t, v), m = at % 16, n = at / 16;
      int want = 0;
      for (size_t k = 0; k < i.k; ++k) want += a[m + 16 * k] * b[n + 8 * k];
      if (sum_of(d[4 * t + v], type) != want) return false;
    }
  }
  return true;
}

// Whether the emulated product of a warp group takes operands in rows of `span` bytes as published, and its
// threads hold what `c` says. `bits` of the swizzle go with the span.
bool agrees(LayoutOf type, size_t columns, size_t span, size_t bits, const Layout& c) {
  const size_t size = bytes_of(type), K = span / size;
  const size_t begin[2] = {0, 64 * span}, rows[2] = {64, columns};
  std::vector<uint8_t> image((64 + columns) * span);
  std::vector<int> matrix[2];
  for (int o = 0; o < 2; ++o) {
    matrix[o] = numbers(rows[o] * K, static_cast<unsigned>(3 + o));
    // ((8, m), (16 bytes, pieces)) : ((span, 8 span), (1, 16 bytes)), then the swizzle, of bytes.
    const Digits row{{8, span}, {rows[o] / 8, 8 * span}}, along{{16, 1}, {span / 16, 16}};
    for (size_t r = 0; r < rows[o]; ++r) {
      for (size_t k = 0; k < K; ++k) {
        const size_t at = begin[o] + swizzled(place(row, r) + place(along, k * size), bits);
        put(image.data() + at, type, matrix[o][r + rows[o] * k]);
      }
    }
  }
  // Bits [0, 14) where it begins, [16, 30) 1 where rows are swizzled, [32, 46) from 8 rows to the next, all
  // in 16 bytes; [62, 64) the swizzle. A step along k moves the beginning alone.
  const uint64_t mode = span == 128 ? 1 : span == 64 ? 2 : 3;
  const size_t steps = span / 32;
  DeviceValues<uint64_t> descriptors(2 * steps);
  for (size_t s = 0; s < steps; ++s) {
    for (size_t o = 0; o < 2; ++o) {
      descriptors[2 * s + o] =
          (begin[o] + 32 * s) / 16 | uint64_t{1} << 16 | uint64_t{8 * span / 16} << 32 | mode << 62;
    }
  }
  DeviceValues<uint64_t> ours(steps);
  emulation::run_grid(1, 1, 65 * span, [&] {
    descriptors_of(ours.data(), static_cast<int>(begin[1]), static_cast<uint32_t>(span));
  });
  REQUIRE(emulation::take_error() == "");
  for (size_t s = 0; s < steps; ++s) CHECK(ours[s] == descriptors[2 * s + 1]);

  DeviceValues<uint32_t> words(image.size() / 4), d(128 * columns / 2);
  std::memcpy(words.data(), image.data(), image.size());
  emulation::run_grid(1, 128, image.size(), [&] {
    wgmma_of_image(type, static_cast<int>(columns), d.data(), words.data(), static_cast<int>(words.size()),
                   descriptors.data(), static_cast<int>(steps));
  });
  REQUIRE(emulation::take_error() == "");
  for (size_t t = 0; t < 128; ++t) {
    for (size_t v = 0; v < columns / 2; ++v) {
      const size_t at = element(c, t, v), m = at % 64, n = at / 64;
      int want = 0;
      for (size_t k = 0; k < K; ++k) want += matrix[0][m + 64 * k] * matrix[1][n + columns * k];
      if (sum_of(d[columns / 2 * t + v], type) != want) return false;
    }
  }
  return true;
}

// What a table says if two of its digits were worth each other's.
Digits exchanged(Digits d, size_t i, size_t j) {
  std::swap(d[i].stride, d[j].stride);
  return d;
}

constexpr LayoutOf kTypes[] = {LayoutOf::kBf16, LayoutOf::kS8, LayoutOf::kE4m3};  // of warp groups, too

}  // namespace

TEST_CASE("emulated device: fragments of mma lie as CUTLASS publishes them, and in no other way") {
  for (const LayoutOf type :
       {LayoutOf::kBf16, LayoutOf::kF16, LayoutOf::kTf32, LayoutOf::kS8, LayoutOf::kE4m3}) {
    INFO("type " << static_cast<int>(type));
    const Instruction& right = instruction_of(type);
    CHECK(agrees(type, right));
    for (const auto part : {&Instruction::a, &Instruction::b, &Instruction::c}) {
      Instruction wrong = right;
      for (size_t i = 0; i + 1 < (right.*part).values.size(); ++i) {
        (wrong.*part).values = exchanged((right.*part).values, i, i + 1);
        CHECK(!agrees(type, wrong));
      }
    }
  }
}

TEST_CASE("emulated device: operands that were not rounded to TF32 are no numbers") {
  DeviceValues<uint32_t> a(128), b(64), d(128);
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  for (size_t i = 0; i < a.size(); ++i) a[i] = bits(1.f);
  for (size_t i = 0; i < b.size(); ++i) b[i] = bits(2.f);
  a[4 * 8] += 1u << 13;  // the last bit that there is: row 2, k 0
  b[2 * 4] += 1;         // column 1, k 0
  emulation::run_grid(1, 32, 0, [&] { mma_of_registers(LayoutOf::kTf32, d.data(), a.data(), b.data()); });
  REQUIRE(emulation::take_error() == "");
  for (size_t t = 0; t < 32; ++t) {
    for (size_t v = 0; v < 4; ++v) {
      const size_t at = element(kAccumulators, t, v), m = at % 16, n = at / 16;
      const auto got = std::bit_cast<float>(d[4 * t + v]);
      if (n == 1) CHECK(std::isnan(got));
      else CHECK(got == (m == 2 ? 16.f + 0x1p-9f : 16.f));
    }
  }
}

TEST_CASE("emulated device: ldmatrix gives registers as CUTLASS publishes them") {
  // In bits: 32 rows of 128 as lanes give their addresses; what a lane gets, from which of these.
  const Layout kPlain{{{32, 32}}, {{32, 1}, {4, 1024}}};
  const Layout kTransposed{{{4, 256}, {8, 16}}, {{16, 1}, {2, 128}, {4, 1024}}};
  DeviceValues<uint32_t> rows(128), got(128);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint32_t>((2 * i + 1) << 16 | 2 * i);
  const auto half = [](DeviceValues<uint32_t>& words, size_t bit) {
    return words[bit / 32] >> (bit % 32) & 0xffff;
  };
  for (const bool transpose : {false, true}) {
    INFO("transposed " << transpose);
    emulation::run_grid(1, 32, 512, [&] { ldmatrix_of_rows(got.data(), rows.data(), transpose); });
    REQUIRE(emulation::take_error() == "");
    const Layout& l = transpose ? kTransposed : kPlain;
    for (size_t t = 0; t < 32; ++t) {
      for (size_t bit = 0; bit < 128; bit += 16)
        CHECK(half(got, 128 * t + bit) == half(rows, element(l, t, bit)));
    }
  }
}

TEST_CASE("emulated device: operands and accumulators of warp groups lie as CUTLASS publishes them") {
  for (const LayoutOf type : kTypes) {
    for (const size_t columns : {64u, 128u}) {
      const Layout right = group_accumulators(columns);
      for (size_t bits = 1; bits <= 3; ++bits) {
        INFO("type " << static_cast<int>(type) << ", columns " << columns << ", swizzle bits " << bits);
        CHECK(agrees(type, columns, size_t{16} << bits, bits, right));
      }
      CHECK(!agrees(type, columns, 128, 2, right));
      CHECK(!agrees(type, columns, 32, 0, right));
      for (size_t i = 0; i < 2; ++i) {
        CHECK(!agrees(type, columns, 128, 3, {right.threads, exchanged(right.values, i, i + 1)}));
        CHECK(!agrees(type, columns, 128, 3, {exchanged(right.threads, i, i + 1), right.values}));
      }
    }
  }
}

TEST_CASE("emulated device: box copies swizzle as warp groups read") {
  for (size_t bits = 1; bits <= 3; ++bits) {
    const size_t span = size_t{16} << bits;
    DeviceValues<uint8_t> in(64 * span), out(64 * span);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 7 + i / 256);
    oar::cuda::TensorMap map{};
    REQUIRE(oar::cuda::make_tensor_map(map, {.base = in.data(),
                                             .element_bytes = 1,
                                             .size = {span, 64, 1},
                                             .stride = {span, 0},
                                             .box = {static_cast<uint32_t>(span), 64, 1},
                                             .swizzle = static_cast<uint32_t>(span)})
                .ok());
    emulation::run_grid(1, kBoxThreads, 10 << 10, [&] {
      reads_box(out.data(), map, 2, 0, 0, 0, static_cast<int>(in.size()), false, BoxFault::kNone);
    });
    REQUIRE(emulation::take_error() == "");
    for (size_t i = 0; i < in.size(); ++i) REQUIRE(out[swizzled(i, bits)] == in[i]);
  }
}
