// Sampling one row. Work is linear in the vocabulary with small constants: greedy is two scans; drawing is
// one scan for the maximum, one that gathers what can matter, and partial selections of the few that do. A
// full sort never happens. Weights are whole numbers (kernels/sample.h), so a device draws the same.
#include "engine/runtime/core/sampler.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/base/format.h"
#include "engine/base/random.h"

namespace oar {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Scans go by vectors of the size that every 64-bit processor has (a row of logits comes from other cores'
// caches, no faster than that), and by blocks that are looked into only when something in them matters.
using Floats = float __attribute__((vector_size(16)));
using Masks = int32_t __attribute__((vector_size(16)));
constexpr size_t kLanes = 4, kBlock = 64;

Floats load(const float* p) {
  Floats v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
bool any(const Masks& m) {
  uint64_t words[2];
  std::memcpy(words, &m, sizeof words);
  return (words[0] | words[1]) != 0;
}

Sampler::Extent extent(std::span<const float> x) {
  const Floats lowest = Floats{} + kLowest, most = Floats{} + FLT_MAX;
  Floats largest = lowest;
  Masks bad = {};
  Sampler::Extent e{kLowest, 0, false};
  size_t i = 0;
  for (; i + kBlock <= x.size(); i += kBlock) {
    Floats m = load(&x[i]);
    bad |= ~(m <= most);
    for (size_t j = kLanes; j < kBlock; j += kLanes) {
      const Floats v = load(&x[i + j]);
      bad |= ~(v <= most);
      m = v > m ? v : m;
    }
    if (!any(m > largest)) continue;
    for (size_t j = 0; j < kLanes; ++j) {
      if (m[j] > e.largest) e.largest = m[j], e.from = i;
    }
    largest = Floats{} + e.largest;
  }
  e.bad = any(bad);
  for (; i < x.size(); ++i) {
    if (x[i] > e.largest) e.largest = x[i], e.from = i;
    e.bad |= !(x[i] <= FLT_MAX);
  }
  return e;
}

// Whether one of kBlock values reaches `floor`.
bool reaches(const float* x, float floor) {
  const Floats limit = Floats{} + floor;
  Masks m = {};
  for (size_t j = 0; j < kBlock; j += kLanes) m |= load(x + j) >= limit;
  return any(m);
}

bool penalizes(const SamplingParams& p) {
  return p.repetition_penalty != 1.f || p.presence_penalty != 0.f || p.frequency_penalty != 0.f;
}

// Descending logits, ties by ascending token: the order of every selection.
template <class C>
bool ahead(const C& a, const C& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

size_t bucket_of(int32_t token, size_t buckets) {
  return (static_cast<uint32_t>(token) * 0x9E3779B1u) & (buckets - 1);  // 2^32 / golden ratio
}

// Of no NaN: that is never among the most likely.
float ranked(float logit) { return logit == logit ? logit : kLowest; }

}  // namespace

// ---- counts
// ---------------------------------------------------------------------------------------------------

void TokenCounts::reset(size_t distinct) {
  entries_.clear();
  entries_.reserve(distinct);
  table_.assign(std::bit_ceil(std::max<size_t>(2 * distinct, 16)), -1);
}

void TokenCounts::grow(size_t buckets) {
  table_.assign(buckets, -1);
  for (size_t i = 0; i < entries_.size(); ++i) {
    size_t b = bucket_of(entries_[i].token, buckets);
    while (table_[b] >= 0) b = (b + 1) & (buckets - 1);
    table_[b] = static_cast<int32_t>(i);
  }
}

void TokenCounts::add(int32_t token, bool output) {
  if (2 * (entries_.size() + 1) > table_.size()) grow(std::max<size_t>(16, 2 * table_.size()));
  size_t b = bucket_of(token, table_.size());
  while (table_[b] >= 0 && entries_[static_cast<size_t>(table_[b])].token != token)
    b = (b + 1) & (table_.size() - 1);
  if (table_[b] < 0) {
    table_[b] = static_cast<int32_t>(entries_.size());
    entries_.push_back({token, 0});
  }
  if (output) ++entries_[static_cast<size_t>(table_[b])].output;
}

void SamplerState::start(const SamplingParams& params, uint64_t stream, std::span<const int32_t> prompt,
                         int64_t distinct) {
  ready = true;
  seed = stream;
  counts_tokens = penalizes(params);
  if (!counts_tokens) return;
  counts.reset(static_cast<size_t>(distinct));
  for (int32_t t : prompt) counts.add(t, false);
}

// ---- sampler
// --------------------------------------------------------------------------------------------------

Sampler::Sampler(int64_t vocab_size) {
  const size_t v = static_cast<size_t>(vocab_size);
  adjusted_.resize(v);
  candidates_.reserve(v);
  order_.reserve(v);
  weights_.reserve(v);
}

// The logits with bias and penalties; the row itself when there are none.
std::span<const float> Sampler::adjust(std::span<const float> logits, const SamplingParams& p,
                                       const SamplerState& state, const AllowedTokens& allowed) {
  if (p.logit_bias.empty() && !state.counts_tokens && allowed.banned.empty() && allowed.mask.empty())
    return logits;
  std::copy(logits.begin(), logits.end(), adjusted_.begin());
  for (const auto& [token, bias] : p.logit_bias) adjusted_[static_cast<size_t>(token)] += bias;
  for (const TokenCounts::Entry& e : state.counts.entries()) {
    float& l = adjusted_[static_cast<size_t>(e.token)];
    l = l > 0.f ? l / p.repetition_penalty : l * p.repetition_penalty;
    if (e.output > 0) l -= p.presence_penalty + p.frequency_penalty * static_cast<float>(e.output);
  }
  for (int32_t token : allowed.banned) adjusted_[static_cast<size_t>(token)] = kLowest;
  if (!allowed.mask.empty()) apply_mask(allowed.mask);
  return adjusted_;
}

// Masks come in long runs of one kind, so most words are done at once.
void Sampler::apply_mask(std::span<const uint32_t> mask) {
  for (size_t w = 0; w < mask.size(); ++w) {
    if (mask[w] == ~uint32_t{0}) continue;
    const size_t begin = 32 * w, end = std::min(begin + 32, adjusted_.size());
    if (mask[w] == 0) {
      std::fill(adjusted_.begin() + static_cast<ptrdiff_t>(begin),
                adjusted_.begin() + static_cast<ptrdiff_t>(end), kLowest);
      continue;
    }
    for (size_t t = begin; t < end; ++t)
      if ((mask[w] >> (t - begin) & 1) == 0) adjusted_[t] = kLowest;
  }
}

Status Sampler::prepare(std::span<const float> logits, const SamplingParams& p, const SamplerState& state,
                        const AllowedTokens& allowed, std::span<const float>& row, Peak& peak) {
  OAR_CHECK(logits.size() == adjusted_.size() && state.ready);
  row = adjust(logits, p, state, allowed);
  Extent e = extent(row);
  // A finite row stays so under finite parameters, except where a huge bias or penalty overflows: clamp that.
  if (e.bad && row.data() == adjusted_.data() && !extent(logits).bad) {
    for (float& l : adjusted_) l = std::min(l, FLT_MAX);
    e = extent(adjusted_);
  }
  if (e.bad) return why_not_drawn(SampleStatus::kBadLogits, {});
  if (e.largest == kLowest)
    return why_not_drawn(
        extent(logits).largest == kLowest ? SampleStatus::kNoLogits : SampleStatus::kNothingLeft,
        restrictions_of(allowed));
  peak = {e.largest, e.from};
  return ok_status();
}

Status Sampler::sample(std::span<const float> logits, const SamplingParams& p, const SamplerState& state,
                       int64_t n, const AllowedTokens& allowed, Sampled& out) {
  std::span<const float> row;
  Peak peak{};
  OAR_RETURN_IF_ERROR(prepare(logits, p, state, allowed, row, peak));
  const float largest = peak.logit;
  if (p.temperature == 0.f) {
    const auto first = std::find(row.begin() + static_cast<ptrdiff_t>(peak.from), row.end(), largest);
    out.token = static_cast<int32_t>(first - row.begin());
  } else {
    // The inverse of the cumulative distribution over what is kept, in order of token ids.
    const uint64_t total = keep(row, largest, p);
    uint64_t left = high_product(uniform_bits(state.seed, static_cast<uint64_t>(n)), total);
    size_t i = 0;
    while (left >= weights_[i]) left -= weights_[i++];
    out.token = candidates_[i].token;
  }
  out.top_logprobs.clear();
  if (p.logprobs >= 0 && p.drawn_logprobs) {
    tell_draw(p, out);
  } else if (p.logprobs >= 0) {
    const double lse =
        log_sum(logits, row.data() == logits.data() ? Extent{largest, 0, false} : extent(logits));
    out.logprob = static_cast<float>(logits[static_cast<size_t>(out.token)] - lse);
    if (p.logprob_tokens.empty()) top(logits, p.logprobs);
    else name_alternatives(logits, p.logprob_tokens, out.token);
    for (const Candidate& c : order_)
      out.top_logprobs.push_back({c.token, static_cast<float>(c.logit - lse)});
  }
  return ok_status();
}

// Of the candidates that were kept, or of the one that temperature 0 leaves.
void Sampler::tell_draw(const SamplingParams& p, Sampled& out) {
  out.logprob = 0;
  if (p.temperature == 0.f) {
    if (p.logprobs > 0) out.top_logprobs.push_back({out.token, 0.f});
    return;
  }
  double total = 0;
  for (const uint64_t w : weights_) total += static_cast<double>(w);
  const auto share = [&](size_t i) {
    return static_cast<float>(std::log(static_cast<double>(weights_[i]) / total));
  };
  order_.clear();
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] == 0) continue;
    if (candidates_[i].token == out.token) out.logprob = share(i);
    order_.push_back({candidates_[i].logit, static_cast<int32_t>(i)});  // token: here an index
  }
  const auto most = static_cast<ptrdiff_t>(std::min(order_.size(), static_cast<size_t>(p.logprobs)));
  std::partial_sort(order_.begin(), order_.begin() + most, order_.end(), ahead<Candidate>);
  for (ptrdiff_t k = 0; k < most; ++k) {
    const auto i = static_cast<size_t>(order_[static_cast<size_t>(k)].token);
    out.top_logprobs.push_back({candidates_[i].token, share(i)});
  }
}

// order_ := `chosen` and the others, each once.
void Sampler::name_alternatives(std::span<const float> logits, std::span<const int32_t> tokens,
                                int32_t chosen) {
  order_ = {{logits[static_cast<size_t>(chosen)], chosen}};
  for (const int32_t token : tokens) {
    const auto same = [token](const Candidate& c) { return c.token == token; };
    if (std::none_of(order_.begin(), order_.end(), same))
      order_.push_back({logits[static_cast<size_t>(token)], token});
  }
}

void Sampler::draw(const SampleSpec& spec, std::span<const float> logits, SampleResult& out) {
  const size_t v = adjusted_.size();
  const auto row = [&](int32_t r) { return logits.subspan(static_cast<size_t>(r) * v, v); };
  out.chains.resize(spec.chains.size());
  out.tokens.clear();
  for (size_t i = 0; i < spec.chains.size(); ++i) {
    const SampleSpec::Chain& chain = spec.chains[i];
    SampleResult::Chain& result = out.chains[i];
    result = {static_cast<int32_t>(out.tokens.size()), 0, {}};
    if (chain.params == nullptr) continue;
    for (size_t k = 0; k <= chain.drafts.size(); ++k) {
      const int64_t n = chain.counter + static_cast<int64_t>(k);
      AllowedTokens allowed{{}, {}, chain.mask_field};
      if (n < chain.banned_before) allowed.banned = chain.banned;
      if (!chain.masks.empty()) allowed.mask = chain.masks.subspan(k * spec.mask_words, spec.mask_words);
      if (out.draws.size() == out.tokens.size()) out.draws.emplace_back();
      Sampled& drawn = out.draws[out.tokens.size()];
      result.status = sample(row(chain.logit_row + static_cast<int32_t>(k)), *chain.params, *chain.state, n,
                             allowed, drawn);
      if (!result.status.ok()) break;
      chain.state->observe(drawn.token);
      out.tokens.push_back(drawn.token);
      ++result.count;
      if (k < chain.drafts.size() && drawn.token != chain.drafts[k]) break;
    }
  }
  out.prompt_rows.resize(spec.prompt_rows.size());
  for (size_t i = 0; i < spec.prompt_rows.size(); ++i) {
    const SampleSpec::PromptRow& p = spec.prompt_rows[i];
    if (p.token < 0) continue;
    out.prompt_rows[i].status = logprobs(row(p.logit_row), p.token, p.count, out.prompt_rows[i].logprobs);
  }
}

Status Sampler::distribution(std::span<const float> logits, const SamplingParams& p,
                             const SamplerState& state, const AllowedTokens& allowed,
                             std::vector<Probability>& out) {
  OAR_CHECK(p.temperature > 0.f);
  std::span<const float> row;
  Peak peak{};
  OAR_RETURN_IF_ERROR(prepare(logits, p, state, allowed, row, peak));
  const auto total = static_cast<double>(keep(row, peak.logit, p));
  out.clear();
  for (size_t i = 0; i < weights_.size(); ++i)
    if (weights_[i] > 0) out.push_back({candidates_[i].token, static_cast<double>(weights_[i]) / total});
  return ok_status();
}

uint64_t Sampler::keep(std::span<const float> row, float largest, const SamplingParams& p) {
  const auto vocab = static_cast<int64_t>(row.size());
  const SampleRow how = row_of(p, vocab);
  const int bits = weight_bits(vocab);
  const auto floor = static_cast<float>(static_cast<double>(largest) - how.span);
  candidates_.clear();
  for (size_t block = 0; block < row.size(); block += kBlock) {
    const size_t end = std::min(block + kBlock, row.size());
    if (end - block == kBlock && !reaches(&row[block], floor)) continue;
    for (size_t i = block; i < end; ++i)
      if (row[i] >= floor && row[i] != kLowest) candidates_.push_back({row[i], static_cast<int32_t>(i)});
  }
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < candidates_.size()) keep_top_k(p.top_k);
  weights_.clear();
  for (const Candidate& c : candidates_)
    weights_.push_back(
        weight_of((static_cast<double>(largest) - static_cast<double>(c.logit)) * how.inverse, bits));
  if (how.has_top_p != 0) keep_top_p(how.top_p);
  uint64_t total = 0;
  for (uint64_t& w : weights_) {
    if (w < how.min_p) w = 0;  // the largest weighs 1
    total += w;
  }
  return total;
}

// Keeps the k largest, and all that equal the k-th.
void Sampler::keep_top_k(int32_t k) {
  order_ = candidates_;
  std::nth_element(order_.begin(), order_.begin() + (k - 1), order_.end(), ahead<Candidate>);
  const float kth = order_[static_cast<size_t>(k - 1)].logit;
  std::erase_if(candidates_, [kth](const Candidate& c) { return c.logit < kth; });
}

// Keeps the smallest set, largest first, whose share reaches p. Sorts only as far as it must: chunks of
// growing size.
void Sampler::keep_top_p(uint64_t share) {
  uint64_t total = 0;
  for (uint64_t w : weights_) total += w;
  order_.resize(candidates_.size());
  for (size_t i = 0; i < candidates_.size(); ++i) order_[i] = {candidates_[i].logit, static_cast<int32_t>(i)};
  const uint64_t wanted = share_of(share, total);
  uint64_t sum = 0;
  Candidate last = order_.front();
  for (size_t begin = 0, size = 64; begin < order_.size() && sum < wanted; begin += size, size *= 4) {
    const auto from = order_.begin() + static_cast<ptrdiff_t>(begin);
    const auto to = order_.begin() + static_cast<ptrdiff_t>(std::min(begin + size, order_.size()));
    if (to != order_.end()) std::nth_element(from, to, order_.end(), ahead<Candidate>);
    std::sort(from, to, ahead<Candidate>);
    for (auto it = from; it != to && sum < wanted; ++it) {
      sum += weights_[static_cast<size_t>(it->token)];  // token: here an index into candidates_
      last = *it;
    }
  }
  for (size_t i = 0; i < candidates_.size(); ++i)
    if (ahead(last, Candidate{candidates_[i].logit, static_cast<int32_t>(i)})) weights_[i] = 0;
}

// ---- log-probabilities
// ----------------------------------------------------------------------------------------

// The logarithm of the sum of exponentials of a row; NaN where a logit is NaN or +inf.
double Sampler::log_sum(std::span<const float> logits, const Extent& e) const {
  if (e.bad) return std::numeric_limits<double>::quiet_NaN();
  const auto vocab = static_cast<int64_t>(logits.size());
  const int bits = weight_bits(vocab);
  uint64_t sum = 0;
  for (float l : logits)
    sum += weight_of((static_cast<double>(e.largest) - static_cast<double>(l)) * kLog2E, bits);
  return log_sum_exp(e.largest, sum, vocab);
}

// order_ := the `count` largest, descending.
void Sampler::top(std::span<const float> logits, int32_t count) {
  order_.clear();
  const size_t want = std::min(static_cast<size_t>(count), logits.size());
  if (want == 0) return;
  for (size_t i = 0; i < logits.size(); ++i) {
    // order_ is a heap whose front is the weakest kept; later ids lose ties.
    const float logit = ranked(logits[i]);
    if (order_.size() == want && !(logit > order_.front().logit)) continue;
    if (order_.size() == want) {
      std::pop_heap(order_.begin(), order_.end(), ahead<Candidate>);
      order_.pop_back();
    }
    order_.push_back({logit, static_cast<int32_t>(i)});
    std::push_heap(order_.begin(), order_.end(), ahead<Candidate>);
  }
  std::sort_heap(order_.begin(), order_.end(), ahead<Candidate>);
}

Status Sampler::logprobs(std::span<const float> logits, int32_t token, int32_t count,
                         std::vector<TokenLogprob>& out) {
  const Extent e = extent(logits);
  if (e.bad || e.largest == kLowest) return why_not_drawn(SampleStatus::kBadLogits, {});
  const double lse = log_sum(logits, e);
  out.clear();
  out.push_back({token, static_cast<float>(logits[static_cast<size_t>(token)] - lse)});
  top(logits, count);
  for (const Candidate& c : order_) out.push_back({c.token, static_cast<float>(c.logit - lse)});
  return ok_status();
}

}  // namespace oar
