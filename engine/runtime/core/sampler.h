// Sampler: one row of logits -> one token id, with log-probabilities when asked. The order of operations is
// that of request.h. What a sequence needs remembered (how often it has seen each token) is SamplerState,
// updated by one token at a time: no step clears or scans anything of the vocabulary's size for it. What it
// is not: it decides no end of a sequence and knows no scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/runtime/core/request.h"

namespace oar {

// Distinct tokens of one sequence with their counts: open addressing, insertion order kept for scanning.
class TokenCounts {
 public:
  struct Entry {
    int32_t token;
    int32_t output;  // occurrences in the output; 0: in the prompt only
  };
  // Room for `distinct` tokens without allocating again.
  void reset(size_t distinct);
  void add(int32_t token, bool output);
  std::span<const Entry> entries() const { return entries_; }

 private:
  void grow(size_t buckets);
  std::vector<Entry> entries_;
  std::vector<int32_t> table_;  // index into entries_, -1: empty; a power of two, at most half full
};

// Per choice; engine thread only.
struct SamplerState {
  bool ready = false;
  bool counts_tokens = false;  // some penalty is on
  uint64_t seed = 0;
  TokenCounts counts;
};

struct Sampled {
  int32_t token = -1;
  float logprob = 0.f;                     // of `token` under the raw logits; when asked
  std::vector<TokenLogprob> top_logprobs;  // descending, ties by id; when asked
};

// Owns scratch for one vocabulary; one per thread.
class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);

  // Prepares a choice: its seed, and counts of its prompt when a penalty needs them. `length`: tokens at
  // most.
  void start(SamplerState& state, const SamplingParams& params, uint64_t seed,
             std::span<const int32_t> prompt, int64_t length) const;

  // Draws the token at output position `n` (0: the first after the prompt). `banned`: tokens that must not be
  // drawn here (end and stop tokens before min_tokens). INTERNAL when the row holds NaN or +inf, or nothing
  // can be drawn. The caller calls observe() once the token counts.
  Status sample(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                int64_t n, std::span<const int32_t> banned, Sampled& out);
  void observe(SamplerState& state, int32_t token) const;

  // What sample() can draw at temperature > 0, and how likely, by ascending token.
  struct Probability {
    int32_t token;
    double probability;
  };
  Status distribution(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                      std::span<const int32_t> banned, std::vector<Probability>& out);

  // The `count` most likely tokens and, first of all, `token` itself, from raw logits.
  Status logprobs(std::span<const float> logits, int32_t token, int32_t count,
                  std::vector<TokenLogprob>& out);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };
  std::span<const float> adjust(std::span<const float> logits, const SamplingParams& params,
                                const SamplerState& state, std::span<const int32_t> banned);
  // The largest of a row, and where the search for its first place may begin.
  struct Peak {
    float logit;
    size_t from;
  };
  // adjust(), checked: the row to draw from and its largest value.
  Status prepare(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                 std::span<const int32_t> banned, std::span<const float>& row, Peak& peak);
  // Fills candidates_ and weights_ (0: not kept); returns their sum.
  double keep(std::span<const float> row, float largest, const SamplingParams& params);
  void keep_top_k(int32_t k);
  void keep_top_p(double p);
  double log_sum_exp(std::span<const float> logits, float largest) const;
  void top(std::span<const float> logits, int32_t count);

  std::vector<float> adjusted_;        // [V]
  std::vector<Candidate> candidates_;  // ascending by token
  std::vector<Candidate> order_;       // scratch of selections
  std::vector<double> weights_;        // of candidates_
};

}  // namespace oar
