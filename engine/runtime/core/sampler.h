// Sampler: one row of logits -> one token id, with log-probabilities when asked. The order of operations is
// that of request.h. What a sequence needs remembered (how often it has seen each token) is SamplerState,
// updated by one token at a time: no step clears or scans anything of the vocabulary's size for it. What it
// is not: it decides no end of a sequence and knows no scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/runtime/core/sample_rows.h"
#include "engine/runtime/core/sample_spec.h"

namespace oar {

// Owns scratch for one vocabulary; one per thread.
class Sampler {
 public:
  explicit Sampler(int64_t vocab_size);

  // A whole step: every chain of the spec as far as its draws go on, every row of a prompt. `logits`: all
  // rows of the step, [R, V]. What cannot be drawn fails its own chain.
  void draw(const SampleSpec& spec, std::span<const float> logits, SampleResult& out);

  // Draws the token at output position `n` (0: the first after the prompt). INTERNAL when the row holds NaN
  // or +inf; INVALID_ARGUMENT, naming the request's field, when what it asks for leaves no token. The caller
  // calls observe() once the token counts.
  Status sample(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                int64_t n, const AllowedTokens& allowed, Sampled& out);

  // The largest value of a row, where the first of them may be sought from, and whether any is NaN or +inf.
  struct Extent {
    float largest;
    size_t from;
    bool bad;
  };

  // What sample() can draw at temperature > 0, and how likely, by ascending token.
  struct Probability {
    int32_t token;
    double probability;
  };
  Status distribution(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                      const AllowedTokens& allowed, std::vector<Probability>& out);

  // The `count` most likely tokens and, first of all, `token` itself, from raw logits.
  Status logprobs(std::span<const float> logits, int32_t token, int32_t count,
                  std::vector<TokenLogprob>& out);

 private:
  struct Candidate {
    float logit;
    int32_t token;
  };
  std::span<const float> adjust(std::span<const float> logits, const SamplingParams& params,
                                const SamplerState& state, const AllowedTokens& allowed);
  void apply_mask(std::span<const uint32_t> mask);
  // The largest of a row, and where the search for its first place may begin.
  struct Peak {
    float logit;
    size_t from;
  };
  // adjust(), checked: the row to draw from and its largest value.
  Status prepare(std::span<const float> logits, const SamplingParams& params, const SamplerState& state,
                 const AllowedTokens& allowed, std::span<const float>& row, Peak& peak);
  // Fills candidates_ and weights_ (0: not kept); returns their sum.
  uint64_t keep(std::span<const float> row, float largest, const SamplingParams& p);
  void keep_top_k(int32_t k);
  void keep_top_p(uint64_t share);
  double log_sum(std::span<const float> logits, const Extent& e) const;
  void top(std::span<const float> logits, int32_t count);
  void name_alternatives(std::span<const float> logits, std::span<const int32_t> tokens, int32_t chosen);
  void tell_draw(const SamplingParams& params, Sampled& out);

  std::vector<float> adjusted_;        // [V]
  std::vector<Candidate> candidates_;  // ascending by token
  std::vector<Candidate> order_;       // scratch of selections
  std::vector<uint64_t> weights_;      // of candidates_
};

}  // namespace oar
