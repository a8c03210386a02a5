// A block per row. A thread owns the tokens threadIdx.x + k kThreads, so it may change its own without a
// barrier. Nothing is sorted: borders of top-k and top-p are found digit by digit over keys that ascend with
// the logits, and the draw by narrowing the range in which its sum lies.
#include "kernels/cuda/sampling.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/device.h"

namespace oar::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kDigit = 4;  // bits of a key that one pass looks at
constexpr int kDigits = 1 << kDigit;
constexpr int kParts = kThreads / kDigits;  // threads that add up one digit's counts, of one warp
constexpr float kMost = 3.40282347e38f;
constexpr double kLog2E = 1.4426950408889634;
static_assert(kWarp % kParts == 0);
constexpr size_t kSharedBytes = sizeof(uint64_t) * kDigits * kThreads + 5 * 128;

// Ascends with the value; -0 and 0 are the same.
OAR_DEVICE uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(value + 0.f);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}
OAR_DEVICE float value_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : 0xffffffffu));
}

// Of each `kLanes` lanes side by side.
template <int kLanes = kWarp>
OAR_DEVICE uint64_t warp_total(uint64_t x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// A logit and its token; of equal ones the lower token is ahead.
struct Candidate {
  float value = -INFINITY;
  int32_t token = -1;

  OAR_DEVICE void offer(float v, int32_t t) {
    if (token < 0 || v > value || (v == value && t < token)) value = v, token = t;
  }
};

struct Shared {
  uint64_t* counts;   // [kDigits, kThreads]: a thread's own column
  uint64_t* sums;     // [kDigits]; of warps, too
  float* values;      // [kWarps]
  int32_t* tokens;    // [kWarps]
  int32_t* flags;     // [kWarps]
  float* raw_values;  // [kWarps]

  OAR_DEVICE Shared() {
    SharedMemory memory;
    counts = memory.take<uint64_t>(kDigits * kThreads);
    sums = memory.take<uint64_t>(kDigits);
    values = memory.take<float>(kWarps);
    tokens = memory.take<int32_t>(kWarps);
    flags = memory.take<int32_t>(kWarps);
    raw_values = memory.take<float>(kWarps);
  }

  // The best candidate of all threads, in all threads.
  OAR_DEVICE Candidate best(Candidate mine) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
      const float value = __shfl_xor_sync(kAllLanes, mine.value, offset);
      const int32_t token = __shfl_xor_sync(kAllLanes, mine.token, offset);
      if (token >= 0) mine.offer(value, token);
    }
    __syncthreads();
    if (lane() == 0) values[warp()] = mine.value, tokens[warp()] = mine.token;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w)
      if (tokens[w] >= 0) mine.offer(values[w], tokens[w]);
    return mine;
  }
  // The sum over all threads, in all threads.
  OAR_DEVICE uint64_t total(uint64_t mine) {
    mine = warp_total(mine);
    __syncthreads();
    if (lane() == 0) sums[warp()] = mine;
    __syncthreads();
    uint64_t sum = 0;
    for (int w = 0; w < kWarps; ++w) sum += sums[w];
    return sum;
  }
  // Whether `mine` holds for any thread.
  OAR_DEVICE bool any(bool mine) {
    const bool found = __ballot_sync(kAllLanes, mine) != 0;
    __syncthreads();
    if (lane() == 0) flags[warp()] = found;
    __syncthreads();
    bool all = false;
    for (int w = 0; w < kWarps; ++w) all |= flags[w] != 0;
    return all;
  }
};

// The key at which, from the largest down, the amounts of tokens reach `wanted`, and what lies above it.
struct Border {
  uint32_t key;
  uint64_t above;
};
// amount(i): 0 for tokens that have no part in it. wanted(total) is asked once, between 1 and the total.
template <class Key, class Amount, class Wanted>
OAR_DEVICE Border find_border(Shared& shared, int64_t V, const Key& key, const Amount& amount,
                              const Wanted& wanted) {
  Border border{0, 0};
  uint64_t target = 0;
  const int thread = static_cast<int>(threadIdx.x);
  for (int shift = 32 - kDigit; shift >= 0; shift -= kDigit) {
    for (int d = 0; d < kDigits; ++d) shared.counts[d * kThreads + thread] = 0;
    for (int64_t i = thread; i < V; i += kThreads) {
      const uint32_t k = key(i);
      const bool inside = shift + kDigit == 32 || (k ^ border.key) >> (shift + kDigit) == 0;
      if (inside) shared.counts[(k >> shift & (kDigits - 1)) * kThreads + thread] += amount(i);
    }
    __syncthreads();
    // Of digit thread / kParts this thread adds up one part.
    uint64_t sum = 0;
    for (int t = thread % kParts; t < kThreads; t += kParts)
      sum += shared.counts[thread / kParts * kThreads + t];
    sum = warp_total<kParts>(sum);
    if (thread % kParts == 0) shared.sums[thread / kParts] = sum;
    __syncthreads();
    if (shift + kDigit == 32) {
      uint64_t total = 0;
      for (int d = 0; d < kDigits; ++d) total += shared.sums[d];
      target = wanted(total);
    }
    int digit = kDigits - 1;
    while (digit > 0 && border.above + shared.sums[digit] < target) border.above += shared.sums[digit--];
    border.key |= static_cast<uint32_t>(digit) << shift;
  }
  return border;
}

// The first token with which the sum of amounts, in order of tokens, is more than `target`.
template <class Amount>
OAR_DEVICE int64_t find_token(Shared& shared, int64_t V, const Amount& amount, uint64_t target) {
  int64_t begin = 0, end = V;
  while (end - begin > kWarp) {
    const int64_t lines = (end - begin + kWarp - 1) / kWarp;
    const int64_t each = (lines + kWarps - 1) / kWarps * kWarp;  // tokens of a warp
    const int64_t from = begin + warp() * each;
    uint64_t sum = 0;
    for (int64_t i = from + lane(); i < from + each && i < end; i += kWarp) sum += amount(i);
    sum = warp_total(sum);
    __syncthreads();
    if (lane() == 0) shared.sums[warp()] = sum;
    __syncthreads();
    int w = 0;
    while (w + 1 < kWarps && target >= shared.sums[w]) target -= shared.sums[w++];
    begin += w * each;
    end = min(begin + each, end);
  }
  const int64_t own = begin + lane();
  const uint64_t mine = own < end ? amount(own) : 0;
  int at = 0;
  for (int l = 0; l < kWarp; ++l) {
    const uint64_t sum = __shfl_sync(kAllLanes, mine, l);
    if (target < sum) break;
    target -= sum;
    ++at;
  }
  return begin + at;
}

// `adjusted` becomes the row with what is added to it, and without what may not be drawn.
OAR_DEVICE void adjust(const SampleRow& row, const int32_t* words, const float* logits, int64_t V,
                       float* adjusted) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int64_t i = thread; i < V; i += kThreads) adjusted[i] = logits[i];
  // Each thread those of its own tokens, as one token may have several.
  for (int32_t k = 0; k < row.bias_count; ++k) {
    const int32_t token = words[row.bias_at + 2 * k];
    if (token % kThreads == thread)
      adjusted[token] += __uint_as_float(static_cast<uint32_t>(words[row.bias_at + 2 * k + 1]));
  }
  __syncthreads();
  for (int32_t k = thread; k < row.seen_count; k += kThreads) {
    const int32_t token = words[row.seen_at + 2 * k], output = words[row.seen_at + 2 * k + 1];
    float l = adjusted[token];
    l = l > 0.f ? __fdiv_rn(l, row.repetition) : __fmul_rn(l, row.repetition);
    if (output > 0) l -= __fadd_rn(row.presence, __fmul_rn(row.frequency, static_cast<float>(output)));
    adjusted[token] = l;
  }
  __syncthreads();
  // Own tokens again, as one may be there twice.
  for (int32_t k = 0; k < row.banned_count; ++k) {
    const int32_t token = words[row.banned_at + k];
    if (token % kThreads == thread) adjusted[token] = -INFINITY;
  }
  if (row.mask_at < 0) return;
  for (int64_t i = thread; i < V; i += kThreads) {
    const auto word = static_cast<uint32_t>(words[row.mask_at + i / 32]);
    if ((word >> (i % 32) & 1) == 0) adjusted[i] = -INFINITY;
  }
}

OAR_DEVICE bool is_bad(float logit) { return !(logit <= kMost); }

// The token of a row, drawn among those that the row's parameters keep.
OAR_DEVICE int64_t draw(Shared& shared, const SampleRow& row, const float* values, int64_t V, int bits,
                        float largest) {
  const auto floor = static_cast<float>(static_cast<double>(largest) - row.span);
  // Bias and penalties of a finite row may overflow: what is more than the most counts as that.
  const auto value = [&](int64_t i) { return fminf(values[i], kMost); };
  const auto weight = [&](float v) {
    return weight_of((static_cast<double>(largest) - static_cast<double>(v)) * row.inverse, bits);
  };
  uint32_t least = 0;  // keys below are not kept
  const auto candidate = [&](float v) { return v >= floor && v != -INFINITY && key_of(v) >= least; };
  const auto key = [&](int64_t i) { return key_of(value(i)); };
  if (row.top_k > 0) {
    const auto one = [&](int64_t i) -> uint64_t { return candidate(value(i)) ? 1 : 0; };
    const auto wanted = [&](uint64_t total) { return min(static_cast<uint64_t>(row.top_k), total); };
    least = find_border(shared, V, key, one, wanted).key;
  }
  const auto amount = [&](int64_t i) -> uint64_t {
    const float v = value(i);
    return candidate(v) ? weight(v) : 0;
  };
  int64_t last = V;  // of the tokens with the least key: the last that is kept
  if (row.has_top_p != 0) {
    uint64_t needed = 0;
    const auto wanted = [&](uint64_t total) { return needed = share_of(row.top_p, total); };
    const Border border = find_border(shared, V, key, amount, wanted);
    least = border.key;
    const uint64_t each = weight(value_of(least));
    const uint64_t ties = (needed - border.above + each - 1) / each;
    const auto tie = [&](int64_t i) -> uint64_t { return key(i) == least ? 1 : 0; };
    last = find_token(shared, V, tie, ties - 1);
  }
  const auto kept = [&](int64_t i) -> uint64_t {
    const float v = value(i);
    if (!candidate(v) || (key_of(v) == least && i > last)) return 0;
    const uint64_t w = weight(v);
    return w < row.min_p ? 0 : w;
  };
  uint64_t sum = 0;
  for (int64_t i = threadIdx.x; i < V; i += kThreads) sum += kept(i);
  return find_token(shared, V, kept, high_product(row.draw, shared.total(sum)));
}

// The largest logit of a row as it came, the sum of weights at temperature 1 and the most likely tokens.
OAR_DEVICE void tell(Shared& shared, const SampleRow& row, const float* logits, int64_t V, int bits,
                     float largest, SampleDraw& out, SampleTop* tops) {
  uint64_t sum = 0;
  for (int64_t i = threadIdx.x; i < V; i += kThreads)
    sum += weight_of((static_cast<double>(largest) - static_cast<double>(logits[i])) * kLog2E, bits);
  out.sum = shared.total(sum);
  out.largest = largest;
  out.logit = logits[out.token];
  Candidate before;
  for (int32_t j = 0; j < row.logprobs; ++j) {
    Candidate next;
    for (int64_t i = threadIdx.x; i < V; i += kThreads) {
      const float v = logits[i] == logits[i] ? logits[i] : -INFINITY;
      const auto token = static_cast<int32_t>(i);
      if (j == 0 || v < before.value || (v == before.value && token > before.token)) next.offer(v, token);
    }
    before = shared.best(next);
    if (threadIdx.x == 0) tops[j] = {before.token, before.token >= 0 ? logits[before.token] : 0.f};
  }
}

__global__ void __launch_bounds__(kThreads, 2) sample_kernel(SampleArgs a, int bits, float* scratch) {
  wait_for_launches();
  Shared shared;
  for (int64_t r = blockIdx.x; r < a.num_rows; r += gridDim.x) {
    const SampleRow row = a.rows[r];
    const float* logits = a.logits + row.logit_row * a.V;
    const bool told = row.token >= 0;
    const bool as_it_is =
        told || (row.bias_count == 0 && row.seen_count == 0 && row.banned_count == 0 && row.mask_at < 0);
    const float* values = logits;
    if (!as_it_is) {
      float* own = scratch + blockIdx.x * a.V;
      adjust(row, a.words, logits, a.V, own);
      values = own;
    }
    Candidate best;
    float raw = -INFINITY;
    bool raw_bad = false, bad = false;
    for (int64_t i = threadIdx.x; i < a.V; i += kThreads) {
      const float l = logits[i], v = values[i];
      raw = fmaxf(raw, l);
      raw_bad |= is_bad(l);
      bad |= is_bad(v);
      best.offer(fminf(v, kMost), static_cast<int32_t>(i));  // of NaN, of which the row is refused, too
    }
    best = shared.best(best);
    raw_bad = shared.any(raw_bad);
    // What parameters made infinite counts as the most.
    bad = shared.any(bad) && raw_bad;
    raw = warp_max(raw);
    if (lane() == 0) shared.raw_values[warp()] = raw;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) raw = fmaxf(raw, shared.raw_values[w]);

    SampleDraw out;
    if (bad) out.status = SampleStatus::kBadLogits;
    else if (raw == -INFINITY) out.status = SampleStatus::kNoLogits;
    else if (best.value == -INFINITY) out.status = SampleStatus::kNothingLeft;
    if (out.status == SampleStatus::kDrawn) {
      if (told) out.token = row.token;
      else if (row.greedy != 0) out.token = best.token;
      else out.token = static_cast<int32_t>(draw(shared, row, values, a.V, bits, best.value));
      if (row.logprobs >= 0) {
        // Where a logit is NaN or infinite there is no probability to tell.
        tell(shared, row, logits, a.V, bits, raw_bad ? NAN : raw, out, a.tops + r * a.max_logprobs);
      }
    }
    if (threadIdx.x == 0) a.draws[r] = out;
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads) feed_kernel(FeedTokensArgs a) {
  wait_for_launches();
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= a.T) return;
  const int32_t token = a.tokens[t];
  if (token < 0) a.tokens[t] = a.draws[~token].token;
}

unsigned blocks_of(const SampleArgs& a) {
  return static_cast<unsigned>(a.num_rows < kSampleBlocks ? a.num_rows : kSampleBlocks);
}

}  // namespace

uint64_t sample_scratch(const SampleArgs& a) {
  return a.num_rows <= 0 || a.V <= 0 ? 0 : blocks_of(a) * static_cast<uint64_t>(a.V) * sizeof(float);
}

CudaStatus sample(const SampleArgs& a, void* scratch, Stream stream) {
  if (a.num_rows <= 0 || a.V <= 0) return {};
  return {launch(sample_kernel, blocks_of(a), kThreads, kSharedBytes, stream, a, weight_bits(a.V),
                 static_cast<float*>(scratch))};
}

CudaStatus feed_tokens(const FeedTokensArgs& a, Stream stream) {
  if (a.T <= 0) return {};
  return {
      launch(feed_kernel, static_cast<unsigned>((a.T + kThreads - 1) / kThreads), kThreads, 0, stream, a)};
}

}  // namespace oar::cuda
