// Drawing tokens from rows of logits, and the arithmetic that every sampler shares.
//
// A token's weight is a whole number: 2^-z of its distance z to the row's largest logit, in units of 2^-bits.
// Whole numbers add up to the same sum in any order. So the processor, which goes through candidates one by
// one, and a device, whose threads share them, keep the same tokens and draw the same one. What takes no part
// in that, the logarithm of a log-probability, is left to the host: a device gives it the whole sum.
//
// Roofline: the rows over memory bandwidth.
#pragma once

#include <bit>

#include "kernels/kernel.h"

#if defined(__CUDACC__)
#define OAR_SAMPLE_FUNCTION __host__ __device__ inline
#else
#define OAR_SAMPLE_FUNCTION inline
#endif

namespace oar {

// The upper half of a product of two 64-bit numbers.
OAR_SAMPLE_FUNCTION uint64_t high_product(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__)
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// Bits of a weight of 1, so that the weights of a whole vocabulary stay below 2^64.
inline int weight_bits(int64_t vocab) { return 63 - std::bit_width(static_cast<uint64_t>(vocab - 1)); }

// 2^-z for z >= 0, rounded to units of 2^-bits; 0 where z is NaN. 2^-(f / 4) is a sum of 12 terms for the
// fraction f of z, squared twice: right to 2^-48.
OAR_SAMPLE_FUNCTION uint64_t weight_of(double z, int bits) {
  if (!(z < 64)) return 0;
  const auto fixed = static_cast<uint64_t>(z * 4503599627370496.0);  // 2^52
  const int whole = static_cast<int>(fixed >> 52);
  const uint64_t y = high_product(fixed << 12, 0xb17217f7d1cf79abu) >> 2;  // f / 4 ln 2, of 2^64
  // 2^63 / k!, k descending.
  uint64_t sum = 0x35cc8acfebu;
  sum = 0x24fc9f6ef14u - high_product(y, sum);
  sum = 0x171de3a556c7u - high_product(y, sum);
  sum = 0xd00d00d00d01u - high_product(y, sum);
  sum = 0x6806806806806u - high_product(y, sum);
  sum = 0x2d82d82d82d82eu - high_product(y, sum);
  sum = 0x111111111111111u - high_product(y, sum);
  sum = 0x555555555555555u - high_product(y, sum);
  sum = 0x1555555555555555u - high_product(y, sum);
  sum = 0x4000000000000000u - high_product(y, sum);
  sum = 0x8000000000000000u - high_product(y, sum);
  sum = 0x8000000000000000u - high_product(y, sum);
  sum = high_product(sum, sum) << 1;
  sum = high_product(sum, sum) << 1;
  const int shift = 63 - bits + whole;
  if (shift == 0) return sum;
  return shift < 64 ? (sum + (uint64_t{1} << (shift - 1))) >> shift : 0;
}

// The smallest sum that is at least share / 2^64 of `total`, and at least 1.
OAR_SAMPLE_FUNCTION uint64_t share_of(uint64_t share, uint64_t total) {
  const uint64_t sum = high_product(share, total) + (share * total != 0 ? 1 : 0);
  return sum > 0 ? sum : 1;
}

// What to do with one row of logits. Lists are offsets into SampleArgs::words and counts.
struct SampleRow {
  int32_t logit_row = 0;
  int32_t token = -1;     // >= 0: nothing is drawn, only log-probabilities are told, this token's too
  int32_t logprobs = -1;  // the sum, and so many most likely tokens; -1: none of it
  int32_t greedy = 0;     // the largest logit, ties to the lower token
  int32_t top_k = 0;      // keep the k largest and all that equal the k-th; 0: all
  int32_t has_top_p = 0;
  int32_t bias_at = 0, bias_count = 0;      // pairs of a token and the bits of a float, ascending by token
  int32_t seen_at = 0, seen_count = 0;      // pairs of a token and how often it was put out; distinct
  int32_t banned_at = 0, banned_count = 0;  // tokens
  int32_t mask_at = -1;                     // bit t % 32 of word t / 32: token t may be drawn; -1: all
  float repetition = 1, presence = 0, frequency = 0;
  double inverse = 0;  // log2(e) / temperature
  double span = 0;     // tokens whose logits are less than the largest minus this are not kept
  uint64_t top_p = 0;  // keep the smallest set, largest first, of this share of the weight, of 2^64
  uint64_t min_p = 0;  // keep weights of at least this
  uint64_t draw = 0;   // of 2^64: where in the sum of what is kept, in order of tokens
};

enum class SampleStatus : int32_t {
  kDrawn = 0,
  kBadLogits,    // NaN or +inf
  kNothingLeft,  // of logits of which some are more than -inf
  kNoLogits,     // every logit is -inf
};

// What came of a row.
struct SampleDraw {
  int32_t token = 0;  // 0 where nothing was drawn, so that the next step may read it
  SampleStatus status = SampleStatus::kDrawn;
  float logit = 0;    // of the token, before anything was added to it; with the rest where logprobs >= 0
  float largest = 0;  // of the row
  uint64_t sum = 0;   // of the weights of all logits at temperature 1
};
struct SampleTop {
  int32_t token;
  float logit;
};

struct SampleArgs {
  uint32_t size = sizeof(SampleArgs);
  uint32_t version = 1;
  SampleDraw* draws = nullptr;      // [rows]
  SampleTop* tops = nullptr;        // [rows, max_logprobs], descending, ties by token; -1: none
  const float* logits = nullptr;    // [.., V]
  const SampleRow* rows = nullptr;  // [num_rows]
  const int32_t* words = nullptr;
  int64_t num_rows = 0, V = 0, max_logprobs = 0;
};

// tokens[t] of ~r becomes what row r of the draws has.
struct FeedTokensArgs {
  uint32_t size = sizeof(FeedTokensArgs);
  uint32_t version = 1;
  int32_t* tokens = nullptr;  // [T]
  const SampleDraw* draws = nullptr;
  int64_t T = 0;
};

}  // namespace oar
