#include "engine/runtime/core/sample_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "engine/base/format.h"
#include "engine/base/random.h"

namespace oar {

SampleRow row_of(const SamplingParams& p, int64_t vocab) {
  SampleRow row;
  row.logprobs = static_cast<int32_t>(std::min<int64_t>(p.logprobs, vocab));
  row.greedy = p.temperature == 0.f;
  row.top_k = p.top_k;
  row.repetition = p.repetition_penalty;
  row.presence = p.presence_penalty;
  row.frequency = p.frequency_penalty;
  if (row.greedy != 0) return row;
  const auto temperature = static_cast<double>(p.temperature);
  row.inverse = kLog2E / temperature;
  // What lies this far below the maximum has, all of it together, less than 2^-24 of the probability: no more
  // than one rounding of an f32. 24 ln 2 = 16.6, and V such tokens weigh V e^-x.
  row.span = (16.6356 + std::log(static_cast<double>(vocab))) * temperature;
  row.has_top_p = p.top_p < 1.f;
  if (row.has_top_p != 0) row.top_p = static_cast<uint64_t>(std::ldexp(static_cast<double>(p.top_p), 64));
  row.min_p = static_cast<uint64_t>(std::ceil(std::ldexp(static_cast<double>(p.min_p), weight_bits(vocab))));
  return row;
}

double log_sum_exp(float largest, uint64_t sum, int64_t vocab) {
  return static_cast<double>(largest) + std::log(std::ldexp(static_cast<double>(sum), -weight_bits(vocab)));
}

Restrictions restrictions_of(const AllowedTokens& allowed) {
  const bool masked = !allowed.mask.empty();
  return {masked,
          masked && std::all_of(allowed.mask.begin(), allowed.mask.end(), [](uint32_t w) { return w == 0; }),
          !allowed.banned.empty(), std::string(allowed.mask_field)};
}

Status why_not_drawn(SampleStatus status, const Restrictions& r) {
  if (status == SampleStatus::kBadLogits)
    return internal_error(
        "model produced NaN logits (or +inf): the weights or a kernel are broken; `oar "
        "check MODEL` reads all weights and names a damaged one");
  if (status == SampleStatus::kNoLogits)
    return internal_error("no token can be sampled: every logit is -inf");
  const auto refuse = [](const std::string& field, std::string_view why) {
    return invalid_argument(cat(field, ": ", why), field);
  };
  if (r.mask_is_empty)
    return refuse(
        r.mask_field,
        "no token of the vocabulary, except those at which this request stops, can continue the "
        "text here, or the text may go on in more ways at once than are followed (thousands); remove "
        "stop_token_ids that the text needs, allow other text, or write fewer alternatives and "
        "optional members");
  if (r.banned)
    return refuse("min_tokens",
                  "every token that could be sampled ends the text, and none may before min_tokens are "
                  "produced; lower min_tokens");
  if (r.masked)
    return refuse(r.mask_field,
                  "the model gives every token that may follow here a probability of zero (logit_bias "
                  "counted); allow other text, or remove the bias");
  return refuse("logit_bias", "it leaves no token that can be sampled; make the biases smaller");
}

int32_t SampleRows::add_words(std::span<const int32_t> words) {
  const auto at = static_cast<int32_t>(words_.size());
  words_.insert(words_.end(), words.begin(), words.end());
  return at;
}

// Row k of a chain: penalties count the drafts in front of it, as it is looked at only where all were right.
void SampleRows::add_row(const SampleSpec& spec, const SampleSpec::Chain& chain, size_t k) {
  const SamplingParams& p = *chain.params;
  const int64_t n = chain.counter + static_cast<int64_t>(k);
  SampleRow row = row_of(p, vocab_);
  row.logit_row = chain.logit_row + static_cast<int32_t>(k);
  row.draw = uniform_bits(chain.state->seed, static_cast<uint64_t>(n));
  row.bias_at = static_cast<int32_t>(words_.size());
  row.bias_count = static_cast<int32_t>(p.logit_bias.size());
  for (const auto& [token, bias] : p.logit_bias) {
    words_.push_back(token);
    words_.push_back(std::bit_cast<int32_t>(bias));
  }
  if (chain.state->counts_tokens) {
    const auto entries = chain.state->counts.entries();
    seen_.assign(entries.begin(), entries.end());
    for (const int32_t draft : chain.drafts.first(k)) {
      const auto at = std::ranges::find(seen_, draft, &TokenCounts::Entry::token);
      if (at == seen_.end()) seen_.push_back({draft, 1});
      else ++at->output;
    }
    row.seen_at = static_cast<int32_t>(words_.size());
    row.seen_count = static_cast<int32_t>(seen_.size());
    for (const TokenCounts::Entry& e : seen_) words_.insert(words_.end(), {e.token, e.output});
  }
  if (n < chain.banned_before) {
    row.banned_count = static_cast<int32_t>(chain.banned.size());
    row.banned_at = add_words(chain.banned);
  }
  bool empty = false;
  if (!chain.masks.empty()) {
    const auto mask = chain.masks.subspan(k * spec.mask_words, spec.mask_words);
    row.mask_at = static_cast<int32_t>(words_.size());
    for (const uint32_t word : mask) words_.push_back(std::bit_cast<int32_t>(word));
    empty = std::ranges::all_of(mask, [](uint32_t word) { return word == 0; });
  }
  bans_.push_back(row.banned_count > 0);
  empty_masks_.push_back(empty);
  max_logprobs_ = std::max<int64_t>(max_logprobs_, row.logprobs);
  rows_.push_back(row);
}

void SampleRows::make(const SampleSpec& spec) {
  rows_.clear();
  words_.clear();
  bans_.clear();
  empty_masks_.clear();
  drafts_.clear();
  max_logprobs_ = 0;
  chains_.resize(spec.chains.size());
  for (size_t i = 0; i < spec.chains.size(); ++i) {
    const SampleSpec::Chain& chain = spec.chains[i];
    Chain& kept = chains_[i];
    kept.first_row = static_cast<int32_t>(rows_.size());
    kept.first_draft = static_cast<int32_t>(drafts_.size());
    kept.rows = 0;
    if (chain.params == nullptr) continue;
    kept.rows = static_cast<int32_t>(chain.drafts.size()) + 1;
    kept.restrictions.masked = !chain.masks.empty();
    kept.restrictions.mask_field = chain.mask_field;
    drafts_.insert(drafts_.end(), chain.drafts.begin(), chain.drafts.end());
    for (size_t k = 0; k <= chain.drafts.size(); ++k) add_row(spec, chain, k);
  }
  prompt_rows_.clear();
  for (const SampleSpec::PromptRow& p : spec.prompt_rows) {
    prompt_rows_.push_back(p.token < 0 ? -1 : static_cast<int32_t>(rows_.size()));
    if (p.token < 0) continue;
    SampleRow row;
    row.logit_row = p.logit_row;
    row.token = p.token;
    row.logprobs = static_cast<int32_t>(std::min<int64_t>(p.count, vocab_));
    max_logprobs_ = std::max<int64_t>(max_logprobs_, row.logprobs);
    rows_.push_back(row);
  }
}

void SampleRows::read(std::span<const SampleDraw> draws, std::span<const SampleTop> tops,
                      SampleResult& out) const {
  const auto add_tops = [&](size_t r, double lse, std::vector<TokenLogprob>& to) {
    for (int32_t j = 0; j < rows_[r].logprobs; ++j) {
      const SampleTop& top = tops[r * static_cast<size_t>(max_logprobs_) + static_cast<size_t>(j)];
      to.push_back({top.token, static_cast<float>(static_cast<double>(top.logit) - lse)});
    }
  };
  out.chains.resize(chains_.size());
  out.tokens.clear();
  for (size_t i = 0; i < chains_.size(); ++i) {
    const Chain& chain = chains_[i];
    SampleResult::Chain& result = out.chains[i];
    result = {static_cast<int32_t>(out.tokens.size()), 0, {}};
    for (int32_t k = 0; k < chain.rows; ++k) {
      const auto r = static_cast<size_t>(chain.first_row + k);
      const SampleDraw& draw = draws[r];
      if (draw.status != SampleStatus::kDrawn) {
        Restrictions why = chain.restrictions;
        why.banned = bans_[r] != 0;
        why.mask_is_empty = empty_masks_[r] != 0;
        result.status = why_not_drawn(draw.status, why);
        break;
      }
      if (out.draws.size() == out.tokens.size()) out.draws.emplace_back();
      Sampled& drawn = out.draws[out.tokens.size()];
      drawn.token = draw.token;
      drawn.top_logprobs.clear();
      if (rows_[r].logprobs >= 0) {
        const double lse = log_sum_exp(draw.largest, draw.sum, vocab_);
        drawn.logprob = static_cast<float>(static_cast<double>(draw.logit) - lse);
        add_tops(r, lse, drawn.top_logprobs);
      }
      out.tokens.push_back(draw.token);
      ++result.count;
      if (k + 1 < chain.rows && draw.token != drafts_[static_cast<size_t>(chain.first_draft + k)]) break;
    }
  }
  out.prompt_rows.resize(prompt_rows_.size());
  for (size_t i = 0; i < prompt_rows_.size(); ++i) {
    if (prompt_rows_[i] < 0) continue;
    const auto r = static_cast<size_t>(prompt_rows_[i]);
    SampleResult::PromptRow& told = out.prompt_rows[i];
    told.logprobs.clear();
    told.status = ok_status();
    if (draws[r].status != SampleStatus::kDrawn) {
      told.status = why_not_drawn(SampleStatus::kBadLogits, {});
      continue;
    }
    const double lse = log_sum_exp(draws[r].largest, draws[r].sum, vocab_);
    told.logprobs.push_back({draws[r].token, static_cast<float>(static_cast<double>(draws[r].logit) - lse)});
    add_tops(r, lse, told.logprobs);
  }
}

}  // namespace oar
