// What the lanes of a warp do together: they meet, and the last one computes for all.
#include <bit>

#include <utility>

#include "kernels/cuda/emulation/machine.h"
#include "kernels/cuda/emulation/mma_rounded.h"

namespace oar::cuda::emulation {
namespace {

struct Operands {
  uint32_t a[4], b[2], c[4];
};
static_assert(sizeof(Operands) <= sizeof(Fiber::in));

float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
// Element `e` of a register of each type.
float bf16_element(uint32_t word, int e) { return from_bits(e == 0 ? word << 16 : word & 0xffff0000u); }
float f16_element(uint32_t word, int e) {
  const uint32_t bits = word >> (16 * e), sign = (bits & 0x8000u) << 16, rest = (bits & 0x7fffu) << 13;
  constexpr uint32_t kInfinity = 0x1fu << 23;
  if (rest >= kInfinity) return from_bits(sign | 0x7f800000u | rest);
  return from_bits(sign | std::bit_cast<uint32_t>(from_bits(rest) * 0x1p112f));
}
float tf32_element(uint32_t word, int) { return (word & 0x1fffu) == 0 ? from_bits(word) : NAN; }
int32_t s8_element(uint32_t word, int e) { return static_cast<int8_t>(word >> (8 * e)); }
float e4m3_element(uint32_t word, int e) { return e4m3_value(static_cast<uint8_t>(word >> (8 * e))); }

// d (16 x 8) = a (16 x k) b (k x 8) + c, k = 8 kPerRegister, with the fragments of device.h. Products are
// added in ascending k, c at the end; real tensor cores have an order and a rounding of their own.
template <int kPerRegister, class Sum, auto kElement>
void multiply(Fiber* lanes) {
  constexpr int K = 8 * kPerRegister, kHalf = K / 2, kColumns = 8;
  using Row [[gnu::vector_size(kColumns * sizeof(Sum))]] = Sum;
  Sum a[16][K];
  Row b[K], sums[16];
  Operands in[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    std::memcpy(&in[l], lanes[l].in, sizeof in[l]);
    const int g = l / 4, t = l % 4;
    for (int e = 0; e < kPerRegister; ++e) {
      const int k = t * kPerRegister + e;
      for (int r = 0; r < 4; ++r) a[g + 8 * (r % 2)][k + kHalf * (r / 2)] = kElement(in[l].a[r], e);
      for (int r = 0; r < 2; ++r) b[k + kHalf * r][g] = kElement(in[l].b[r], e);
    }
  }
  for (int m = 0; m < 16; ++m) {
    Row sum = {};
    for (int k = 0; k < K; ++k) sum += a[m][k] * b[k];
    sums[m] = sum;
  }
  for (int l = 0; l < kLanes; ++l) {
    Sum c[4];
    std::memcpy(c, in[l].c, sizeof c);
    for (int i = 0; i < 4; ++i) c[i] += sums[l / 4 + 8 * (i / 2)][2 * (l % 4) + i % 2];
    std::memcpy(lanes[l].out, c, sizeof c);
  }
  ++counters().mma;
}

void load_matrices(Fiber* lanes) {
  const void* row[kLanes];
  for (int l = 0; l < kLanes; ++l) std::memcpy(&row[l], lanes[l].in, sizeof row[l]);
  for (int l = 0; l < kLanes; ++l) {
    const auto at = reinterpret_cast<uintptr_t>(row[l]);
    if (at % 16 != 0) return fail("ldmatrix: a row is not 16-byte aligned", lanes[l].place);
    if (!machine().within(row[l], 16, lanes[l].rank)) {
      return fail("ldmatrix: a row lies outside of the launch's shared memory", lanes[l].place);
    }
    if (tracing()) {
      Fiber* last = std::exchange(machine().now, &lanes[l]);  // the lane whose access it is
      watch_access(row[l], 16, false, nullptr);
      machine().now = last;
    }
  }
  if (has_l2()) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      uintptr_t address[8];
      for (int k = 0; k < 8; ++k) address[k] = reinterpret_cast<uintptr_t>(row[8 * matrix + k]);
      count_wavefronts(address, 8, 16);
    }
  }
  for (int l = 0; l < kLanes; ++l) {
    uint32_t r[4];
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t element[2];
      for (int e = 0; e < 2; ++e) {
        const int across = 2 * (l % 4) + e, down = l / 4;
        const int i = lanes[l].argument != 0 ? across : down, j = lanes[l].argument != 0 ? down : across;
        std::memcpy(&element[e], static_cast<const std::byte*>(row[8 * matrix + i]) + 2 * j, 2);
      }
      r[matrix] = element[0] | static_cast<uint32_t>(element[1]) << 16;
    }
    std::memcpy(lanes[l].out, r, sizeof r);
  }
}

// Deposits `in`, waits for the lanes of `mask` and fetches this lane's result.
template <size_t kInBytes, size_t kOutBytes>
void meet(WarpOperation operation, uint32_t mask, int argument, const void* in, void* out, Place place) {
  Machine& m = machine();
  Fiber& f = *m.now;
  Fiber* lanes = &m.fibers[static_cast<size_t>(f.warp() * kLanes)];
  f.operation = operation;
  f.mask = mask;
  f.argument = argument;
  f.place = place;
  std::memcpy(f.in, in, kInBytes);
  if ((mask >> f.lane() & 1) == 0) fail("a lane takes part in an operation whose mask leaves it out", place);
  // Lanes that wait already agree with one another, so one of them speaks for all.
  const auto warp = static_cast<size_t>(f.warp());
  uint32_t& waiting = m.warp_waiting[warp];
  if ((mask & m.warp_ended[warp]) != 0) fail("the mask names a lane that does not exist or has ended", place);
  if (const uint32_t others = waiting & mask; others != 0) {
    const Fiber& o = lanes[std::countr_zero(others)];
    if (o.operation != operation || o.mask != mask || o.place.line != place.line) {
      fail("the lanes of a warp meet in different operations", place);
    }
  }
  waiting |= 1u << f.lane();
  if ((mask & ~waiting & ~m.warp_ended[warp]) != 0) {
    m.state_of(f) = Fiber::State::kInWarp;
    yield_fiber();
  } else {
    waiting &= ~mask;
    ++counters().warp_operations;
    if (operation == WarpOperation::kBarrier) {
      ++m.warp_epoch[warp];
      meet_clocks(f.warp() * kLanes, kLanes, mask);
    }
    complete(operation, lanes, mask);
    if (has_l2()) end_requests(f.warp(), mask);
    Fiber::State* const states = &m.state_of(lanes[0]);
    for (int l = 0; l < kLanes; ++l)
      if ((mask >> l & 1) != 0 && states[l] == Fiber::State::kInWarp) states[l] = Fiber::State::kReady;
  }
  std::memcpy(out, f.out, kOutBytes);
}

template <class T>
void multiply_accumulate(WarpOperation operation, T (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         Place place) {
  Operands in;
  std::memcpy(in.a, a, sizeof in.a);
  std::memcpy(in.b, b, sizeof in.b);
  std::memcpy(in.c, c, sizeof in.c);
  meet<sizeof in, sizeof c>(operation, 0xffffffffu, 0, &in, c, place);
}

}  // namespace

void complete(WarpOperation operation, Fiber* lanes, uint32_t mask) {
  switch (operation) {
    case WarpOperation::kBarrier: return;
    case WarpOperation::kShuffle:
      for (int l = 0; l < kLanes; ++l) {
        if ((mask >> l & 1) == 0) continue;
        const int from = lanes[l].argument;
        if ((mask >> from & 1) == 0) fail("a shuffle reads a lane outside of its mask", lanes[l].place);
        std::memcpy(lanes[l].out, lanes[from].in, sizeof(uint64_t));
      }
      return;
    case WarpOperation::kBallot: {
      uint32_t votes = 0;
      for (int l = 0; l < kLanes; ++l) {
        if ((mask >> l & 1) != 0 && lanes[l].argument != 0) votes |= 1u << l;
      }
      for (int l = 0; l < kLanes; ++l) std::memcpy(lanes[l].out, &votes, sizeof votes);
      return;
    }
    case WarpOperation::kLdmatrix: return load_matrices(lanes);
    case WarpOperation::kMmaBf16: return multiply<2, float, bf16_element>(lanes);
    case WarpOperation::kMmaF16: return multiply<2, float, f16_element>(lanes);
    case WarpOperation::kMmaTf32: return multiply<1, float, tf32_element>(lanes);
    case WarpOperation::kMmaS8: return multiply<4, int32_t, s8_element>(lanes);
    case WarpOperation::kMmaE4m3: return multiply<4, float, e4m3_element>(lanes);
  }
}

void warp_barrier(uint32_t mask, Place place) {
  char nothing = 0;
  meet<0, 0>(WarpOperation::kBarrier, mask, 0, &nothing, &nothing, place);
}
uint64_t shuffle(uint32_t mask, uint64_t bits, int from_lane, Place place) {
  meet<sizeof bits, sizeof bits>(WarpOperation::kShuffle, mask, from_lane, &bits, &bits, place);
  return bits;
}
uint32_t ballot(uint32_t mask, bool vote, Place place) {
  uint32_t votes = 0;
  meet<0, sizeof votes>(WarpOperation::kBallot, mask, vote ? 1 : 0, &votes, &votes, place);
  return votes;
}
void ldmatrix_x4(uint32_t (&r)[4], const void* row, bool transpose, Place place) {
  meet<sizeof row, sizeof r>(WarpOperation::kLdmatrix, 0xffffffffu, transpose ? 1 : 0, &row, r, place);
}
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
  multiply_accumulate(WarpOperation::kMmaBf16, c, a, b, place);
}
void mma_f16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
  multiply_accumulate(WarpOperation::kMmaF16, c, a, b, place);
}
void mma_tf32(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
  multiply_accumulate(WarpOperation::kMmaTf32, c, a, b, place);
}
void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
  multiply_accumulate(WarpOperation::kMmaS8, c, a, b, place);
}
void mma_e4m3(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Place place) {
  multiply_accumulate(WarpOperation::kMmaE4m3, c, a, b, place);
}

}  // namespace oar::cuda::emulation
