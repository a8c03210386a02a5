// A thread has a channel of a convolution, or a column of a head's matrix, which lies in shared memory: no
// thread reads what another writes.
#include "kernels/cuda/state.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/sequences.h"

namespace oar::cuda {
namespace {

constexpr int kConvThreads = 256;

// Rows lie along y and, beyond the grid's limit, in turns.
__global__ void __launch_bounds__(kConvThreads) causal_conv_kernel(CausalConvArgs a) {
  wait_for_launches();
  const int64_t c = int64_t{blockIdx.x} * kConvThreads + threadIdx.x;
  if (c >= a.C) return;
  const StateArgs& s = a.state;
  const int64_t P = s.page_tokens;
  for (int64_t t = blockIdx.y; t < a.T; t += gridDim.y) {
    const int64_t b = sequence_of(s.seq_start, s.B, t), row0 = s.seq_start[b];
    const int64_t from = s.context_len[b] - (s.seq_start[b + 1] - row0), p = from + t - row0;
    // The channel at position q: out of this step, of an open row, or of the border in front of those.
    const auto input = [&](int64_t q) {
      if (q >= from) return a.x[(row0 + q - from) * a.ldx + c];
      const int64_t chunk = from / P;
      if (q >= chunk * P) {
        const int64_t block = s.row_tables[b * s.max_row_blocks + chunk];
        return s.rows[(block * P + q - chunk * P) * s.row_floats + c];
      }
      const int64_t block = s.border_tables[b * s.max_borders + chunk - 1];
      return s.borders[block * s.border_floats + (q - chunk * P + a.L - 1) * a.C + c];
    };
    float sum = a.bias != nullptr ? a.bias[c] : 0.f;
    for (int64_t i = p < a.L - 1 ? a.L - 1 - p : 0; i < a.L; ++i) {
      sum = __fmaf_rn(a.w[i * a.C + c], input(p - (a.L - 1) + i), sum);
    }
    a.out[t * a.ldo + c] = sum;
    if (s.row_slots[t] >= 0) s.rows[s.row_slots[t] * s.row_floats + c] = a.x[t * a.ldx + c];
    if ((p + 1) % P != 0) continue;
    const int64_t block = s.border_tables[b * s.max_borders + p / P];
    if (block < 0) continue;
    for (int64_t i = 0; i + 1 < a.L; ++i) {
      s.borders[block * s.border_floats + i * a.C + c] = input(p - (a.L - 2) + i);
    }
  }
}

// A column of a head's matrix: the recurrence of state_scan.h.
struct Column {
  float* S;  // [Dk], a warp apart
  int Dk;

  OAR_DEVICE float dot(const float* x) const {
    float sum = 0.f;
    for (int d = 0; d < Dk; ++d) sum = __fmaf_rn(S[d * kWarp], x[d], sum);
    return sum;
  }
  // The same to the bit for a position of this step and one that was kept.
  OAR_DEVICE void take(const float* k, float u, float decay) const {
    for (int d = 0; d < Dk; ++d) S[d * kWarp] = __fmaf_rn(k[d], u, __fmul_rn(decay, S[d * kWarp]));
  }
};

// A warp a block: 32 columns of one head of a sequence along x, of the next columns along y; without a state
// of the segment that begins at a row.
__global__ void __launch_bounds__(kWarp) state_scan_kernel(StateScanArgs a) {
  wait_for_launches();
  SharedMemory shared;
  const StateArgs& s = a.state;
  const int Hk = a.shape.key_heads, H = a.shape.heads, Dk = a.shape.key_dim, Dv = a.shape.value_dim;
  float* matrix = shared.take<float>(Dk * kWarp);
  const int64_t unit = blockIdx.x / H;
  const int h = static_cast<int>(blockIdx.x % H), kv = h / (H / Hk),
            first = static_cast<int>(blockIdx.y) * kWarp;
  const int j = first + lane();
  const bool keeps_keys = first == 0 && h % (H / Hk) == 0;
  const bool has_state = s.borders != nullptr;
  if (!has_state && unit > 0 && a.segments[unit] == a.segments[unit - 1]) return;  // not where it begins

  // Rows [row0, end) of this step, the first at position `from`.
  const int64_t row0 = has_state ? s.seq_start[unit] : unit, end = has_state ? s.seq_start[unit + 1] : a.T;
  const int64_t from = has_state ? s.context_len[unit] - (end - row0) : 0, P = s.page_tokens;
  const int64_t chunk = from / P, open = from % P;
  const Column column{matrix + lane(), Dk};
  const int64_t place = (int64_t{h} * Dk) * Dv + j;  // of the column in a border
  const float* border =
      chunk > 0 && row0 < end
          ? s.borders + s.border_tables[unit * s.max_borders + chunk - 1] * s.border_floats + place
          : nullptr;
  for (int d = 0; d < Dk; ++d) {
    column.S[d * kWarp] = border != nullptr && j < Dv ? border[int64_t{d} * Dv] : 0.f;
  }
  // Where a row keeps its keys, updates and decays.
  const int64_t keys = int64_t{kv} * Dk, updates = int64_t{Hk} * Dk + int64_t{h} * Dv + j,
                decays = int64_t{Hk} * Dk + int64_t{H} * Dv + h;
  for (int64_t i = 0; i < open && row0 < end; ++i) {
    const float* row = s.rows + (s.row_tables[unit * s.max_row_blocks + chunk] * P + i) * s.row_floats;
    column.take(row + keys, j < Dv ? row[updates] : 0.f, row[decays]);
  }
  for (int64_t t = row0; t < end; ++t) {
    if (!has_state && a.segments[t] != a.segments[unit]) return;
    const float *k = a.k + t * a.ldk + keys, *q = a.q + t * a.ldq + keys;
    const float decay = expf(a.g[t * a.ldg + h]), beta = a.beta[t * a.ldb + h];
    const float v = j < Dv ? a.v[t * a.ldv + int64_t{h} * Dv + j] : 0.f;
    const float old = a.delta != 0 ? column.dot(k) : 0.f;
    const float u = __fmul_rn(beta, __fmaf_rn(-decay, old, v));
    column.take(k, u, decay);
    const float result = column.dot(q);
    if (j < Dv) a.out[t * a.ldo + int64_t{h} * Dv + j] = result;
    if (!has_state) continue;
    if (s.row_slots[t] >= 0) {
      float* row = s.rows + s.row_slots[t] * s.row_floats;
      if (j < Dv) row[updates] = u;
      if (j == 0) row[decays] = decay;
      for (int d = lane(); keeps_keys && d < Dk; d += kWarp) row[keys + d] = k[d];
    }
    const int64_t p = from + t - row0;
    if ((p + 1) % P != 0 || j >= Dv) continue;
    const int64_t block = s.border_tables[unit * s.max_borders + p / P];
    if (block < 0) continue;
    float* kept = s.borders + block * s.border_floats + place;
    for (int d = 0; d < Dk; ++d) kept[int64_t{d} * Dv] = column.S[d * kWarp];
  }
}

}  // namespace

CudaStatus causal_conv(const CausalConvArgs& a, Stream stream) {
  constexpr int64_t kMaxGridY = 65535;
  if (a.T <= 0 || a.C <= 0) return {};
  const dim3 grid(static_cast<unsigned>((a.C + kConvThreads - 1) / kConvThreads),
                  static_cast<unsigned>(a.T < kMaxGridY ? a.T : kMaxGridY));
  return {launch(causal_conv_kernel, grid, kConvThreads, 0, stream, a)};
}

CudaStatus state_scan(const StateScanArgs& a, Stream stream) {
  constexpr size_t kMostShared = 227 << 10, kOfDim = kWarp * sizeof(float);
  static_assert(kMostKeyDims * kOfDim <= kMostShared && (kMostKeyDims + 1) * kOfDim > kMostShared);
  const int64_t units = a.state.borders != nullptr ? a.state.B : a.T;
  if (a.T <= 0 || units <= 0 || a.shape.heads <= 0 || a.shape.value_dim <= 0) return {};
  if (a.shape.key_dim > kMostKeyDims) return {cudaErrorInvalidValue};
  const size_t bytes = static_cast<size_t>(a.shape.key_dim) * kOfDim;
  const dim3 grid(static_cast<unsigned>(units * a.shape.heads),
                  static_cast<unsigned>((a.shape.value_dim + kWarp - 1) / kWarp));
  return {launch(state_scan_kernel, grid, kWarp, bytes, stream, a)};
}

}  // namespace oar::cuda
