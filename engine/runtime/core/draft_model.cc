#include "engine/runtime/core/draft_model.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace oar {

DraftModel::DraftModel(std::unique_ptr<HostRunner> runner, int64_t vocab_size, DraftPacer& pacer)
    : runner_(std::move(runner)),
      pacer_(pacer),
      vocab_size_(vocab_size),
      has_states_(limits().has_states()),
      sampler_(vocab_size) {
  groups_.resize(limits().groups.size());
  mask_.resize(static_cast<size_t>((vocab_size + 31) / 32));
}

double DraftModel::take_seconds() { return std::exchange(seconds_, 0.); }

Status DraftModel::warm_up() {
  const int32_t zero = 0, one = 1;
  const std::vector<int32_t> start = {0, 1};
  batch_groups_.clear();
  for (const CacheGroup& g : limits().groups) {
    const bool slots = g.pages != CachePages::kState;
    batch_groups_.push_back({{&zero, slots ? size_t{1} : 0}, {&zero, 1}, 1});
  }
  Batch batch;
  batch.tokens = batch.positions = batch.logit_rows = {&zero, 1};
  batch.seq_start = start;
  batch.context_len = {&one, 1};
  batch.groups = batch_groups_;
  return runner_->run(batch).status();
}

Status DraftModel::copy_blocks(std::vector<BlockCopy>& copies, int32_t first) {
  copies_.clear();
  for (const BlockCopy& c : copies)
    if (c.group >= first) copies_.push_back({c.group - first, c.from, c.to});
  if (copies_.empty()) return ok_status();
  std::erase_if(copies, [first](const BlockCopy& c) { return c.group >= first; });
  return runner_->copy_blocks(copies_);
}

Status DraftModel::draft(Scheduler& scheduler, Step& step) {
  chains_.clear();
  for (const Step::Sample& sample : step.samples) {
    if (sample.drafts == 0) continue;
    int32_t* drafts = step.draft_tokens.data() + sample.first_draft;
    if (*drafts != kToBeDrafted) continue;
    Sequence& s = scheduler.sequence(sample.slot);
    // The last known token's row gives the first draft, so it runs in any case.
    const int64_t from = std::min(s.followed, s.known() - 1);
    chains_.push_back({&s, from, s.known() - 1, s.known(), sample.drafts, 0, drafts, 0});
  }
  if (chains_.empty()) return ok_status();
  OAR_RETURN_IF_ERROR(run_chains(scheduler));
  size_t next = 0;
  for (Step::Sample& sample : step.samples) {
    if (next == chains_.size() || sample.slot != chains_[next].sequence->slot) continue;
    const Chain& chain = chains_[next++];
    for (int32_t k = 0; k < chain.wanted; ++k) {
      const int32_t row = step.logit_rows[static_cast<size_t>(sample.logit_row + 1 + k)];
      // Rows behind the end of a chain run with any token, and nobody draws from them.
      step.tokens[static_cast<size_t>(row)] = k < chain.drawn ? chain.drafts[k] : 0;
    }
    sample.drafts = chain.drawn;
    if (chain.sequence->cursor != nullptr) chain.sequence->cursor->rollback(chain.drawn);
  }
  return ok_status();
}

Status DraftModel::follow(Scheduler& scheduler, const Step& step) {
  const int64_t page = limits().page_tokens;
  chains_.clear();
  for (const Step::Entry& e : step.entries) {
    Sequence& s = scheduler.sequence(e.slot);
    const int64_t end = std::min(e.end, s.known());
    if (end / page > s.followed / page) chains_.push_back({&s, s.followed, e.begin, end, 0, 0, nullptr, 0});
  }
  if (chains_.empty()) return ok_status();
  OAR_RETURN_IF_ERROR(run_chains(scheduler));
  // Choices born in this step share the prompt's blocks with the one that computed it.
  for (const Step::Sample& sample : step.samples) {
    Sequence& s = scheduler.sequence(sample.slot);
    if (s.forked_at != step.number) continue;
    for (const Chain& c : chains_)
      if (c.sequence->request == s.request) s.followed = c.position;
  }
  return ok_status();
}

// Of a chain's next rows, how many go into a pass that has room for `left`. Borders of recurrent state inside
// a step have no blocks, so a pass goes over the step's own rows as a whole: they fit one, as they fitted the
// target's. Rows in front of them are of one page, whose rows are kept.
int64_t DraftModel::rows_of(const Chain& c, int64_t left) const {
  const int64_t rows = c.end - c.position;
  if (rows <= left || !has_states_) return std::min(left, rows);
  if (left < limits().max_batch_tokens) return 0;  // behind others: in the next pass
  return std::min(left, c.begin - c.position);
}

// Passes until every chain is at its end; a drawn token moves the end of its chain.
Status DraftModel::run_chains(Scheduler& scheduler) {
  const auto most_sequences = static_cast<size_t>(limits().max_sequences);
  for (;;) {
    int64_t left = limits().max_batch_tokens;
    size_t sequences = 0;
    for (Chain& c : chains_) {
      c.rows = sequences == most_sequences ? 0 : static_cast<int32_t>(rows_of(c, left));
      left -= c.rows;
      sequences += c.rows > 0;
    }
    if (sequences == 0) return ok_status();
    std::span<const float> logits;
    OAR_RETURN_IF_ERROR(forward(scheduler, logits));
    const auto v = static_cast<size_t>(limits().vocab_size);
    for (Chain& c : chains_) {
      if (c.rows == 0) continue;
      c.position += c.rows;
      c.sequence->followed = c.position;
      if (!c.done() || c.wanted == 0) continue;
      if (draw(scheduler, c, logits.first(v)) && c.drawn < c.wanted) ++c.end;
      logits = logits.subspan(v);
    }
  }
}

Status DraftModel::forward(const Scheduler& scheduler, std::span<const float>& logits) {
  for (auto* v : {&tokens_, &positions_, &seq_start_, &context_len_, &logit_rows_}) v->clear();
  for (GroupAddresses& g : groups_) g.slots.clear();
  const auto first = static_cast<size_t>(scheduler.target_groups());
  const int32_t page = limits().page_tokens;
  for (const Chain& c : chains_) {
    if (c.rows == 0) continue;
    const TokenView tokens = c.sequence->tokens();
    const int64_t end = c.position + c.rows;
    seq_start_.push_back(static_cast<int32_t>(tokens_.size()));
    context_len_.push_back(static_cast<int32_t>(end));
    for (int64_t p = c.position; p < end; ++p) {
      const int32_t token = p < tokens.size() ? tokens[p] : c.drafts[p - tokens.size()];
      tokens_.push_back(token < limits().vocab_size ? token : 0);
      positions_.push_back(static_cast<int32_t>(p));
    }
    for (size_t g = 0; g < groups_.size(); ++g)
      groups_[g].add_rows(c.sequence->blocks.groups[first + g], limits().groups[g].pages, page, c.position,
                          end);
    if (c.wanted > 0 && end == c.end) logit_rows_.push_back(static_cast<int32_t>(tokens_.size()) - 1);
  }
  seq_start_.push_back(static_cast<int32_t>(tokens_.size()));
  batch_groups_.clear();
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].start_tables(context_len_, limits().groups[g].pages, page);
    size_t b = 0;
    for (const Chain& c : chains_) {
      if (c.rows == 0) continue;
      groups_[g].set_table(b, c.sequence->blocks.groups[first + g], context_len_[b], page);
      ++b;
    }
    batch_groups_.push_back({groups_[g].slots, groups_[g].tables, groups_[g].max_blocks});
  }
  Batch batch;
  batch.tokens = tokens_;
  batch.positions = positions_;
  batch.seq_start = seq_start_;
  batch.context_len = context_len_;
  batch.logit_rows = logit_rows_;
  batch.groups = batch_groups_;
  const auto began = std::chrono::steady_clock::now();
  OAR_ASSIGN(logits, runner_->run(batch));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  seconds_ += seconds;
  if (!logit_rows_.empty()) pacer_.drafted(static_cast<int64_t>(tokens_.size()), seconds);
  return ok_status();
}

// One more draft of the chain. False where none can follow: the text would end, or nothing can be drawn.
bool DraftModel::draw(Scheduler& scheduler, Chain& chain, std::span<const float> logits) {
  Sequence& s = *chain.sequence;
  const int64_t n = static_cast<int64_t>(s.output.size()) + chain.drawn;
  if (!s.sampler.ready) return false;
  AllowedTokens allowed;
  if (s.cursor != nullptr) {
    if (s.cursor->must_end() || !scheduler.allow(s, n, mask_)) return false;
    allowed.mask = mask_;
  }
  if (static_cast<int64_t>(logits.size()) != vocab_size_) {
    const size_t same = std::min(logits.size(), static_cast<size_t>(vocab_size_));
    row_.assign(static_cast<size_t>(vocab_size_), -std::numeric_limits<float>::infinity());
    std::copy_n(logits.begin(), same, row_.begin());
    logits = row_;
  }
  if (!sampler_.sample(logits, s.request->request.sampling, s.sampler, n, allowed, drawn_).ok()) return false;
  if (scheduler.stops(*s.request, drawn_.token)) return false;
  if (s.cursor != nullptr && !s.cursor->advance(drawn_.token)) return false;
  chain.drafts[chain.drawn++] = drawn_.token;
  return true;
}

}  // namespace oar
