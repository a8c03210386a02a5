// What to draw from a step's logits: the parameters, counters and masks of every sample.
#include <algorithm>

#include "engine/runtime/core/scheduler.h"

namespace oar {

bool Scheduler::allow(const Sequence& s, int64_t n, std::span<uint32_t> mask) const {
  s.cursor->mask(mask);
  const RequestState& r = *s.request;
  const StopParams& stop = r.request.stop;
  const auto put = [&](const std::vector<int32_t>& tokens, bool allowed) {
    for (int32_t t : tokens) {
      const uint32_t bit = uint32_t{1} << (t % 32);
      uint32_t& word = mask[static_cast<size_t>(t / 32)];
      word = allowed ? word | bit : word & ~bit;
    }
  };
  put(options_.eos_token_ids, false);
  put(stop.stop_token_ids, false);
  if (!s.cursor->may_end()) return true;
  if (std::all_of(mask.begin(), mask.end(), [](uint32_t word) { return word == 0; })) return false;
  if (n < stop.min_tokens) return true;
  if (!stop.ignore_eos) put(options_.eos_token_ids, true);
  put(stop.stop_token_ids, true);
  return true;
}

// One mask for each row of a chain: the cursor goes over the drafts and comes back. Returns how many rows
// there are to draw, which are fewer where the text is whole before the last.
size_t Scheduler::mask_rows(Sequence& s, int64_t n, std::span<const int32_t> drafts,
                            std::span<uint32_t> masks) {
  size_t rows = 0;
  int64_t gone = 0;
  while (!s.cursor->must_end() && allow(s, n + gone, masks.subspan(rows * mask_words_, mask_words_))) {
    ++rows;
    if (rows > drafts.size() || !s.cursor->advance(drafts[rows - 1])) break;
    ++gone;
  }
  s.cursor->rollback(gone);
  return rows;
}

void Scheduler::specify(Step& step, SampleSpec& spec) {
  spec.mask_words = mask_words_;
  spec.chains.clear();
  spec.prompt_rows.clear();
  size_t masks = 0, banned = 0;
  const auto live_sample = [&](const Step::Sample& sample) {
    return live(sample.slot, sample.token_version);
  };
  for (const Step::Sample& sample : step.samples) {
    const Sequence* s = live_sample(sample);
    if (s == nullptr) continue;
    const StopParams& stop = s->request->request.stop;
    if (s->cursor != nullptr) masks += static_cast<size_t>(sample.drafts) + 1;
    else if (s->output.size() < static_cast<size_t>(stop.min_tokens))
      banned += options_.eos_token_ids.size() + stop.stop_token_ids.size();
  }
  // Spans into these are handed out below.
  spec.mask_memory.resize(std::max(spec.mask_memory.size(), masks * mask_words_));
  spec.banned_memory.resize(std::max(spec.banned_memory.size(), banned));
  masks = banned = 0;
  for (Step::Sample& sample : step.samples) {
    SampleSpec::Chain& chain = spec.chains.emplace_back();
    Sequence* s = live_sample(sample);
    if (s == nullptr) continue;
    RequestState& r = *s->request;
    const StopParams& stop = r.request.stop;
    const int64_t n = static_cast<int64_t>(s->output.size());
    chain.drafts = step.drafts_of(sample);
    if (s->cursor != nullptr) {
      const size_t rows = mask_rows(*s, n, chain.drafts, std::span(spec.mask_memory).subspan(masks));
      sample.ends = rows == 0;
      if (sample.ends) continue;
      chain.drafts = chain.drafts.first(rows - 1);
      chain.masks = std::span(spec.mask_memory).subspan(masks, rows * mask_words_);
      chain.mask_field = r.request.constraint_field;
      masks += chain.masks.size();
    } else if (n < stop.min_tokens) {
      const auto first = spec.banned_memory.begin() + static_cast<ptrdiff_t>(banned);
      auto end = first;
      if (!stop.ignore_eos)
        end = std::copy(options_.eos_token_ids.begin(), options_.eos_token_ids.end(), end);
      end = std::copy(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), end);
      chain.banned = {first, end};
      chain.banned_before = stop.min_tokens;
      banned += chain.banned.size();
    }
    chain.params = &r.request.sampling;
    chain.state = &s->sampler;
    chain.counter = n;
    chain.logit_row = sample.logit_row;
    if (!s->sampler.ready)
      s->sampler.start(r.request.sampling, r.seed + static_cast<uint64_t>(s->index), r.request.prompt,
                       std::min(r.max_length, options_.vocab_size));
  }
  for (const Step::PromptRow& p : step.prompt_rows) {
    const Sequence* s = live(p.slot, p.token_version);
    SampleSpec::PromptRow& row = spec.prompt_rows.emplace_back();
    row = {p.logit_row, -1, 0};
    if (s == nullptr) continue;
    const Request& request = s->request->request;
    row.token = request.prompt[static_cast<size_t>(p.position) + 1];
    row.count = request.sampling.prompt_logprobs;
  }
}

}  // namespace oar
