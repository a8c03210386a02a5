// A warp has one query and up to 128 dims of its values; 32 keys at a time, counted from the first that the
// query sees, so that its sum does not depend on its company. Lanes are keys for scores, dims for values.
// Keys come through shared memory, 32 dims at a time: their rows are read side by side.
#include "kernels/cuda/attention_dense.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/math.h"
#include "kernels/cuda/pack.h"

namespace oar::cuda {
namespace {

constexpr int kWarps = 4;  // of a block, each with a query of its own
constexpr int kThreads = kWarps * kWarp;
constexpr int kLaneDims = 4;
constexpr int kDims = kLaneDims * kWarp;

// A query: itself, the keys that it sees, key 0 and its value, and how far their rows are apart.
struct Query {
  const float *q, *k, *v;
  float* out;
  int64_t k_row, v_row;
  KeyRange seen;
  int64_t mask_row;  // of padded batches
  int64_t D, DV;
  bool blind_is_nan;
};

struct PaddedBatch {
  DenseAttentionArgs a;
  OAR_DEVICE int64_t queries() const { return a.B * a.H * a.S; }
  OAR_DEVICE static int64_t at(const AttentionSteps& s, int64_t b, int64_t h, int64_t i) {
    return b * s.batch + h * s.head + i * s.row;
  }
  OAR_DEVICE Query query(int64_t r) const {
    const int64_t b = r / (a.H * a.S), h = r / a.S % a.H, i = r % a.S, kv = h / (a.H / a.K);
    return {a.q + at(a.q_steps, b, h, i),
            a.k + at(a.k_steps, b, kv, 0),
            a.v + at(a.v_steps, b, kv, 0),
            a.out + at(a.out_steps, b, h, i),
            a.k_steps.row,
            a.v_steps.row,
            seen_keys(a, b, i),
            at(a.mask_steps, b, h, i),
            a.D,
            a.DV,
            a.blind_is_nan != 0};
  }
  OAR_DEVICE float score(const Query& query, int64_t key, float dot) const {
    float score = dot * a.scale;
    if (a.softcap > 0.f) score = a.softcap * tanhf(__fdividef(score, a.softcap));
    if (a.mask == nullptr) return score;
    const int64_t at = query.mask_row + key * a.mask_column;
    if (a.mask_bool != 0) return static_cast<const uint8_t*>(a.mask)[at] != 0 ? score : -INFINITY;
    return score + static_cast<const float*>(a.mask)[at];
  }
};

struct Segments {
  SegmentAttentionArgs a;
  OAR_DEVICE int64_t queries() const { return a.T * a.H; }
  // How many rows in the direction of `step`, 1 or -1, row t sees: they lie together. The whole warp asks.
  OAR_DEVICE int64_t reach(int64_t t, int64_t step) const {
    int64_t n = 0;
    for (; n < a.T; n += kWarp) {
      const int64_t s = t + step * (n + 1 + lane());
      const bool seen = s >= 0 && s < a.T && a.segments[s] == a.segments[t] &&
                        (a.window <= 0 || step * (int64_t{a.positions[s]} - a.positions[t]) < a.window);
      const uint32_t hidden = ~__ballot_sync(kAllLanes, seen);
      if (hidden != 0) return n + __ffs(hidden) - 1;
    }
    return n;  // not reached: there are T rows
  }
  OAR_DEVICE Query query(int64_t r) const {
    const int64_t t = r / a.H, h = r % a.H, kv = h / (a.H / a.K);
    return {a.q + t * a.ldq + h * a.D,
            a.k + kv * a.D,
            a.v + kv * a.D,
            a.out + t * a.ldo + h * a.D,
            a.ldk,
            a.ldv,
            {t - reach(t, -1), t + reach(t, 1) + 1},
            0,
            a.D,
            a.D,
            false};
  }
  OAR_DEVICE float score(const Query&, int64_t, float dot) const { return dot * a.scale; }
};

constexpr int kPart = 32;  // dims of keys in shared memory
// Floats of a key there: lanes read packs of their own keys from different banks.
template <int kWidth>
constexpr int kKeyRow = kPart + kWidth;

// `dims` dims, from k on, of so many keys, by a warp.
template <int kWidth>
OAR_DEVICE void take_keys(float* to, const float* k, int64_t row, int keys, int dims) {
  constexpr int kLanes = kPart / kWidth;  // of a key
  const int at = lane() % kLanes * kWidth;
  if (at >= dims) return;
#pragma unroll 4
  for (int key = lane() / kLanes; key < keys; key += kWarp / kLanes) {
    const Pack<kWidth> x = load_pack<kWidth>(k + key * row + at);
    float* const its = to + key * kKeyRow<kWidth> + at;
    if constexpr (kWidth == kWide)
      store(reinterpret_cast<float4*>(its), make_float4(x.v[0], x.v[1], x.v[2], x.v[3]));
    else store(its, x.v[0]);
  }
}

template <class Rows, int kWidth>
__global__ void __launch_bounds__(kThreads, 5) dense_attention_kernel(Rows rows) {
  wait_for_launches();
  constexpr int kKeys = kWarp * kKeyRow<kWidth>;
  float* const keys = SharedMemory().take<float>(kWarps * kKeys) + warp() * kKeys;
  const int64_t r = int64_t{blockIdx.x} * kWarps + warp();
  if (r >= rows.queries()) return;
  const Query query = rows.query(r);
  const int64_t first_dim = int64_t{blockIdx.y} * kDims + lane();
  float top = -INFINITY, total = 0.f, sums[kLaneDims] = {};
  for (int64_t first = query.seen.from; first < query.seen.to; first += kWarp) {
    const int64_t left = query.seen.to - first;
    const int count = left < kWarp ? static_cast<int>(left) : kWarp;
    float dot = 0.f;
    for (int64_t d = 0; d < query.D; d += kPart) {
      const int dims = query.D - d < kPart ? static_cast<int>(query.D - d) : kPart;
      __syncwarp();
      take_keys<kWidth>(keys, query.k + first * query.k_row + d, query.k_row, count, dims);
      __syncwarp();
#pragma unroll 2
      for (int i = 0; i < dims; i += kWidth) {
        const Pack<kWidth> x = load_pack<kWidth>(query.q + d + i),
                           y = load_pack<kWidth>(keys + lane() * kKeyRow<kWidth> + i);
#pragma unroll
        for (int e = 0; e < kWidth; ++e) dot = __fmaf_rn(x.v[e], y.v[e], dot);
      }
    }
    const float score = lane() < count ? rows.score(query, first + lane(), dot) : -INFINITY;
    const float most = fmaxf(top, warp_max(score));
    if (most == -INFINITY) continue;  // all hidden so far
    const float old = softmax_shrink(top, most), weight = softmax_shrink(score, most);
    top = most;
    total = __fmaf_rn(total, old, warp_sum(weight));
#pragma unroll
    for (float& x : sums) x *= old;
    for (int j = 0; j < count; ++j) {
      const float w = __shfl_sync(kAllLanes, weight, j);
      const float* v = query.v + (first + j) * query.v_row;
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i) {
        const int64_t d = first_dim + i * kWarp;
        if (d < query.DV) sums[i] = __fmaf_rn(w, v[d], sums[i]);
      }
    }
  }
  const bool blind = top == -INFINITY;
#pragma unroll
  for (int i = 0; i < kLaneDims; ++i) {
    const int64_t d = first_dim + i * kWarp;
    if (d >= query.DV) break;
    query.out[d] = !blind ? quotient(sums[i], total) : query.blind_is_nan ? NAN : 0.f;
  }
}

template <class Rows>
CudaStatus run(const Rows& rows, int64_t queries, int64_t DV, bool aligned, Stream stream) {
  if (queries <= 0 || DV <= 0) return {};
  const dim3 grid(static_cast<unsigned>((queries + kWarps - 1) / kWarps),
                  static_cast<unsigned>((DV + kDims - 1) / kDims));
  const size_t shared = sizeof(float) * kThreads * static_cast<size_t>(aligned ? kKeyRow<kWide> : kKeyRow<1>);
  return {launch(aligned ? dense_attention_kernel<Rows, kWide> : dense_attention_kernel<Rows, 1>, grid,
                 kThreads, shared, stream, rows)};
}

bool wide_steps(const float* p, const AttentionSteps& s) {
  return wide(p, s.batch) && wide(p, s.head) && wide(p, s.row);
}

}  // namespace

CudaStatus dense_attention(const DenseAttentionArgs& a, Stream stream) {
  const bool aligned = a.D % kWide == 0 && wide_steps(a.q, a.q_steps) && wide_steps(a.k, a.k_steps);
  return run(PaddedBatch{a}, a.B * a.H * a.S, a.DV, aligned, stream);
}

CudaStatus segment_attention(const SegmentAttentionArgs& a, Stream stream) {
  const bool aligned = a.D % kWide == 0 && wide(a.q, a.ldq) && wide(a.k, a.ldk);
  return run(Segments{a}, a.T * a.H, a.D, aligned, stream);
}

}  // namespace oar::cuda
