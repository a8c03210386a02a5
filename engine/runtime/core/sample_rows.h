// SampleRows: a SampleSpec as rows and lists of numbers, as kernels/sample.h has them, and what came of them
// as a SampleResult. Here lies what samplers of the processor and of devices must agree on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/base/status.h"
#include "engine/runtime/core/sample_spec.h"
#include "kernels/sample.h"

namespace oar {

inline constexpr double kLog2E = 1.4426950408889634;

// What follows from parameters alone.
SampleRow row_of(const SamplingParams& params, int64_t vocab);

// The logarithm of the sum of a row's exponentials, from its largest logit and the sum of weights.
double log_sum_exp(float largest, uint64_t sum, int64_t vocab);

// Whose fault it is that no token is left. The mask and the bans alone are looked at first: where they leave
// a token, it is the logits that do not.
struct Restrictions {
  bool masked = false, mask_is_empty = false, banned = false;
  std::string mask_field;
};
Restrictions restrictions_of(const AllowedTokens& allowed);
Status why_not_drawn(SampleStatus status, const Restrictions& restrictions);

class SampleRows {
 public:
  explicit SampleRows(int64_t vocab) : vocab_(vocab) {}

  // Everything of `spec` that is needed until read(): it may be gone by then. All rows of a chain are drawn;
  // those behind a wrong draft are not looked at.
  void make(const SampleSpec& spec);
  std::span<const SampleRow> rows() const { return rows_; }
  std::span<const int32_t> words() const { return words_; }
  int64_t max_logprobs() const { return max_logprobs_; }
  // The row that a chain draws first; -1: it draws nothing.
  int32_t first_row(size_t chain) const { return chains_[chain].rows > 0 ? chains_[chain].first_row : -1; }
  // `tops`: [rows, max_logprobs].
  void read(std::span<const SampleDraw> draws, std::span<const SampleTop> tops, SampleResult& out) const;

 private:
  struct Chain {
    int32_t first_row = 0, rows = 0, first_draft = 0;
    Restrictions restrictions;  // of its rows but for masks without a token
  };
  void add_row(const SampleSpec& spec, const SampleSpec::Chain& chain, size_t k);
  int32_t add_words(std::span<const int32_t> words);

  const int64_t vocab_;
  std::vector<SampleRow> rows_;
  std::vector<int32_t> words_;
  std::vector<Chain> chains_;
  std::vector<uint8_t> bans_, empty_masks_;  // by row
  std::vector<int32_t> drafts_;
  std::vector<int32_t> prompt_rows_;  // their rows; -1: nobody wants to know any longer
  int64_t max_logprobs_ = 0;
  std::vector<TokenCounts::Entry> seen_;  // scratch
};

}  // namespace oar
