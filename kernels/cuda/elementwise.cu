// Four elements a thread in accesses of 16 bytes where every operand's rows are aligned so, else one a thread
// and access: the arithmetic of an element is the same.
#include "kernels/cuda/elementwise.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/element_rows.h"
#include "kernels/cuda/hopper.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/pack.h"

namespace oar::cuda {
namespace {

template <int kWidth, class F>
OAR_DEVICE void map(float* out, const float* x, int64_t n, F f) {
  const int64_t i = first_element<kWidth>();
  if (i >= n) return;
  Pack<kWidth> p = load_pack<kWidth>(x + i);
#pragma unroll
  for (float& v : p.v) v = f(v);
  store_pack<kWidth>(out + i, p);
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) unary_kernel(UnaryArgs a) {
  wait_for_launches();
  map<kWidth>(a.out, a.x, a.n, [&](float x) { return unary(a.op, x); });
}

// 32 binary digits of 2 / pi, from digit 32 i - 31 on, the first behind the point being digit 1.
OAR_DEVICE uint32_t two_over_pi(int i) {
  static constexpr uint32_t kDigits[8] = {0,          0xa2f9836e, 0x4e441529, 0xfc2757d1,
                                          0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab};
  return kDigits[i];
}
// An angle in [-pi, pi) with the sine and cosine of x. In integers, x is multiplied by those 96 digits of
// 2 / pi that decide where in a turn it ends: a large x loses nothing.
OAR_DEVICE double within_turn(float x) {
  const uint32_t bits = __float_as_uint(x), m = (bits & 0x7fffffu) | 0x800000u;
  const int exponent = static_cast<int>(bits >> 23 & 255u);
  if (exponent < 126) return x;  // below 1 / 2
  if (exponent == 255) return NAN;
  // |x| is m 2^e. A digit k of 2 / pi counts m 2^(e - k) quarters: those before e - 1 are whole turns.
  const int first = exponent - 150 - 1 + 31, shift = first % 32;
  uint32_t words[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const uint64_t two = uint64_t{two_over_pi(first / 32 + i)} << 32 | two_over_pi(first / 32 + i + 1);
    words[i] = static_cast<uint32_t>(two << shift >> 32);
  }
  // Modulo a turn: two bits are quarters, and 62 what is behind the point.
  const uint64_t low = uint64_t{m} * words[2], middle = uint64_t{m} * words[1] + (low >> 32);
  const uint64_t turned = (uint64_t{m} * words[0] << 32) + middle;
  constexpr double kUnit = 1.57079632679489661923 * 0x1p-62;
  const double angle = static_cast<double>(static_cast<int64_t>(turned)) * kUnit;
  return (bits >> 31) != 0 ? -angle : angle;
}

// By themselves: the reduction of large angles takes registers.
template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) sine_kernel(UnaryArgs a) {
  wait_for_launches();
  map<kWidth>(a.out, a.x, a.n, [&](float x) {
    float sine, cosine;
    sine_cosine(within_turn(x), &sine, &cosine);
    return a.op == UnaryOp::kSin ? sine : cosine;
  });
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) activate_kernel(ActivateArgs a) {
  wait_for_launches();
  map<kWidth>(a.out, a.x, a.n, [&](float x) { return epilogue(a.epilogue, x, a.alpha, a.beta); });
}

// Rows lie along y and, beyond the grid's limit, in turns.
template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) binary_kernel(BinaryArgs a) {
  wait_for_launches();
  const int64_t j = first_element<kWidth>();
  if (j >= a.cols) return;
  const int64_t b_cols = a.b_col != 0 ? a.cols : 1;
  for (int64_t i = blockIdx.y; i < a.rows; i += gridDim.y) {
    const float* from = a.b + i * a.b_row * b_cols;
    Pack<kWidth> x = load_pack<kWidth>(a.a + i * a.cols + j), y;
    if (a.b_col != 0) {
      y = load_pack<kWidth>(from + j);
    } else {
#pragma unroll
      for (float& v : y.v) v = *from;
    }
#pragma unroll
    for (int e = 0; e < kWidth; ++e) x.v[e] = binary(a.op, x.v[e], y.v[e]);
    store_pack<kWidth>(a.out + i * a.cols + j, x);
  }
}

__global__ void __launch_bounds__(kPackThreads) elements_kernel(OAR_GRID_CONSTANT ElementSteps all) {
  wait_for_launches();
  do_elements(all.steps, all.count, first_element<1>());
}

template <int kWidth>
__global__ void __launch_bounds__(kPackThreads) swiglu_kernel(SwiGluArgs a) {
  wait_for_launches();
  const int64_t f = first_element<kWidth>();
  if (f >= a.F) return;
  for (int64_t t = blockIdx.y; t < a.T; t += gridDim.y) {
    Pack<kWidth> gate = load_pack<kWidth>(a.gate + t * a.ldg + f);
    const Pack<kWidth> up = load_pack<kWidth>(a.up + t * a.ldu + f);
#pragma unroll
    for (int e = 0; e < kWidth; ++e) gate.v[e] = gated(a, gate.v[e], up.v[e]);
    store_pack<kWidth>(a.out + t * a.ldo + f, gate);
  }
}

dim3 grid_of(int64_t n, int64_t rows, int width) {
  constexpr int64_t kMaxGridY = 65535;
  return dim3(blocks_of(n, width), static_cast<unsigned>(rows < kMaxGridY ? rows : kMaxGridY));
}

template <class Args>
CudaStatus run_flat(const Args& a, void (*four)(Args), void (*one)(Args), Stream stream) {
  if (a.n <= 0) return {};
  const bool aligned = wide(a.x, a.n) && wide(a.out, a.n);
  return {launch(aligned ? four : one, grid_of(a.n, 1, aligned ? kWide : 1), kPackThreads, 0, stream, a)};
}

constexpr int64_t kFewElements = 1 << 16;

// Floats from `at` on.
struct Floats {
  const float* at = nullptr;
  int64_t n = 0;
  bool meets(const Floats& o) const { return at < o.at + o.n && o.at < at + n; }
  bool operator==(const Floats&) const = default;
};
// Those of rows that an operand has: all, or every one of some columns, or fewer. Null: memory that no other
// has.
struct Operand {
  Floats all;
  bool whole;  // element i lies at i
};
Operand operand(const ElementStep& s, const float* at, int64_t row, int64_t col) {
  return {{at, (s.n / s.cols - 1) * row + (s.cols - 1) * col + 1},
          col == 1 && (row == s.cols || s.n == s.cols)};
}
Operand a_of(const ElementStep& s) { return operand(s, s.a, s.a_row, 1); }
Operand b_of(const ElementStep& s) { return operand(s, s.b, s.b_row, s.b_col); }

// Whether the later step finds, and leaves, what it would if it came when the earlier one was done.
bool follows(const ElementStep& earlier, const ElementStep& later) {
  const Operand made{{earlier.out, earlier.n}, true}, written{{later.out, later.n}, true};
  // Element upon element, or apart.
  const auto fit = [](const Operand& x, const Operand& y) {
    return (x.whole && y.whole && x.all == y.all) || !x.all.meets(y.all);
  };
  return fit(made, written) && fit(made, a_of(later)) && fit(made, b_of(later)) &&
         fit(a_of(earlier), written) && fit(b_of(earlier), written);
}

}  // namespace

bool ElementSteps::add(const ElementStep& step) {
  if (count == kMost) return false;
  for (int k = 0; k < count; ++k)
    if (!follows(steps[k], step)) return false;
  ElementStep& s = steps[count] = step;
  const Floats made = count > 0 ? Floats{steps[count - 1].out, steps[count - 1].n} : Floats{};
  const auto is_last = [&](const Operand& o) { return o.whole && o.all == made; };
  s.a_is_last = is_last(a_of(s)), s.b_is_last = is_last(b_of(s));
  ++count;
  return true;
}

bool element_step(const UnaryArgs& a, ElementStep* step) {
  if (a.n <= 0 || a.n > kFewElements || a.op == UnaryOp::kSin || a.op == UnaryOp::kCos) return false;
  *step = {.out = a.out, .a = a.x, .n = a.n, .cols = a.n, .a_row = a.n, .op = static_cast<int32_t>(a.op)};
  return true;
}

bool element_step(const RopeArgs& a, ElementStep* step) {
  const int64_t cols = a.heads * a.D;
  if (a.T <= 0 || cols <= 0 || a.T > kFewElements / cols || a.rot_dim != 0 || a.norm_w != nullptr)
    return false;
  const bool together = a.heads == 1 || (a.step_of_x() == a.D && a.step_of_out() == a.D);
  if (!together || (a.T > 1 && a.ldo != cols)) return false;
  *step = {.out = a.out, .a = a.x, .n = a.T * cols, .cols = cols, .a_row = a.ldx};
  return true;
}

bool element_step(const BinaryArgs& a, ElementStep* step) {
  if (a.rows <= 0 || a.cols <= 0 || a.rows > kFewElements / a.cols) return false;
  *step = {.out = a.out,
           .a = a.a,
           .b = a.b,
           .n = a.rows * a.cols,
           .cols = a.cols,
           .a_row = a.cols,
           .b_row = a.b_row * (a.b_col != 0 ? a.cols : 1),
           .b_col = a.b_col,
           .op = static_cast<int32_t>(a.op)};
  return true;
}

bool element_step(const SwiGluArgs& a, ElementStep* step) {
  if (a.T <= 0 || a.F <= 0 || a.T > kFewElements / a.F || !a.plain() || (a.T > 1 && a.ldo != a.F))
    return false;
  *step = {.out = a.out,
           .a = a.gate,
           .b = a.up,
           .n = a.T * a.F,
           .cols = a.F,
           .a_row = a.ldg,
           .b_row = a.ldu,
           .b_col = 1,
           .op = ElementStep::kGate - static_cast<int32_t>(a.act)};
  return true;
}

int64_t ElementSteps::most() const {
  int64_t n = 0;
  for (int k = 0; k < count; ++k) n = steps[k].n > n ? steps[k].n : n;
  return n;
}

CudaStatus elements(const ElementSteps& all, Stream stream) {
  return {launch(elements_kernel, grid_of(all.most(), 1, 1), kPackThreads, 0, stream, all)};
}

CudaStatus unary(const UnaryArgs& a, Stream stream) {
  if (a.op == UnaryOp::kSin || a.op == UnaryOp::kCos) {
    return run_flat(a, sine_kernel<kWide>, sine_kernel<1>, stream);
  }
  return run_flat(a, unary_kernel<kWide>, unary_kernel<1>, stream);
}

CudaStatus activate(const ActivateArgs& a, Stream stream) {
  return run_flat(a, activate_kernel<kWide>, activate_kernel<1>, stream);
}

CudaStatus binary(const BinaryArgs& a, Stream stream) {
  if (a.rows <= 0 || a.cols <= 0) return {};
  const bool aligned = wide(a.a, a.cols) && wide(a.out, a.cols) && (a.b_col == 0 || wide(a.b, a.cols));
  return {launch(aligned ? binary_kernel<kWide> : binary_kernel<1>,
                 grid_of(a.cols, a.rows, aligned ? kWide : 1), kPackThreads, 0, stream, a)};
}

CudaStatus swiglu(const SwiGluArgs& a, Stream stream) {
  if (a.T <= 0 || a.F <= 0) return {};
  const bool aligned = a.F % kWide == 0 && wide(a.out, a.ldo) && wide(a.gate, a.ldg) && wide(a.up, a.ldu);
  return {launch(aligned ? swiglu_kernel<kWide> : swiglu_kernel<1>, grid_of(a.F, a.T, aligned ? kWide : 1),
                 kPackThreads, 0, stream, a)};
}

}  // namespace oar::cuda
