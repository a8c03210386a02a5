// Planning one step: decodes, then running prefills, then admissions, then drafts, all from one budget of
// rows. First every sequence gets its rows and blocks (and may lose them to an older one), then the rows are
// written out.
#include <algorithm>

#include "engine/runtime/core/scheduler.h"

namespace oar {

// Empty, with room for the largest step: no step allocates after a Step's first.
void Scheduler::clear(Step& step) const {
  const size_t rows = static_cast<size_t>(options_.max_batch_tokens);
  const size_t sequences = static_cast<size_t>(options_.max_sequences);
  const auto reset = [](auto& v, size_t room) {
    v.clear();
    v.reserve(room);
  };
  reset(step.tokens, rows);
  reset(step.positions, rows);
  reset(step.adapters, rows);
  reset(step.seq_start, sequences + 1);
  reset(step.context_len, sequences);
  reset(step.begun, sequences);
  reset(step.logit_rows, static_cast<size_t>(options_.max_logit_rows));
  reset(step.draft_tokens, static_cast<size_t>(options_.max_logit_rows));
  step.groups.resize(static_cast<size_t>(target_groups()));
  for (auto& g : step.groups) {
    reset(g.slots, rows);
    reset(g.tables, sequences * static_cast<size_t>(blocks_.blocks_for(max_length_)));
  }
  reset(step.copies, sequences * options_.groups.size());
  reset(step.entries, sequences);
  reset(step.samples, sequences);
  reset(step.prompt_rows, static_cast<size_t>(options_.max_logit_rows));
  step.prompts = step.prefill_tokens = 0;
}

Scheduler::Demand Scheduler::demand() {
  Demand d;
  for (int32_t i = running_.head; i >= 0; i = sequence(i).next) {
    const Sequence& s = sequence(i);
    if (s.uncomputed() > 1) ++d.prompts;
    else if (s.decodes()) ++d.decodes;
  }
  d.prompts += waiting_.size;
  return d;
}

bool Scheduler::next(Clock::time_point now, Step& step, int64_t prompt_rows) {
  OAR_CHECK(in_flight_ <= options_.depth);
  clear(step);
  step_ = &step;
  plan_.clear();
  rows_left_ = options_.max_batch_tokens;
  logits_left_ =
      options_.max_logit_rows - running_.size;  // every running sequence may have one row of logits
  preempted_ = false;

  // Making room preempts only sequences behind the needy one, so `next` links stay good.
  for (int32_t i = running_.head; i >= 0; i = sequence(i).next) {
    Sequence& s = sequence(i);
    if (s.decodes()) plan_decode(s);
  }
  if (rows_left_ < options_.max_batch_tokens) rows_left_ = std::min(rows_left_, prompt_rows);
  int64_t prefills = 0;
  for (int32_t i = running_.head; i >= 0; i = sequence(i).next) prefills += sequence(i).uncomputed() > 1;
  for (int32_t i = running_.head; i >= 0 && rows_left_ > 0; i = sequence(i).next) {
    Sequence& s = sequence(i);
    if (s.uncomputed() > 1) plan_prefill(s, --prefills > 0 || (waiting_.size > 0 && !preempted_));
  }
  while (!preempted_ && waiting_.head >= 0 && running_.size < options_.max_sequences && rows_left_ > 0 &&
         logits_left_ > 0) {
    Sequence& s = sequence(waiting_.head);
    if (!admit(s, now)) break;  // nobody overtakes the head
    --logits_left_;
    plan_prefill(s, waiting_.size > 0);
  }
  make_way(now);
  top_up();
  rows_left_ = options_.max_batch_tokens - planned_rows();
  for (int32_t i = running_.head; i >= 0; i = sequence(i).next) plan_drafts(sequence(i));

  // Rows of prompts last, where somebody asks.
  for (const bool prompts : {false, true}) {
    const size_t before = step.tokens.size();
    for (const int32_t slot : plan_) {
      Sequence& s = sequence(slot);
      if (s.planned > 0 && (options_.phases && s.in_prompt()) == prompts) emit_rows(s);
    }
    if (prompts) step.prompts = static_cast<int64_t>(step.tokens.size() - before);
  }
  step_ = nullptr;
  if (step.empty()) return false;
  step.seq_start.push_back(static_cast<int32_t>(step.tokens.size()));
  step.number = ++step_number_;
  ++in_flight_;
  // Tables, [B, max_blocks]. A choice forked above shares blocks, which changes nobody's table.
  for (size_t g = 0; g < step.groups.size(); ++g) {
    GroupAddresses& group = step.groups[g];
    group.start_tables(step.context_len, options_.groups[g].pages, options_.page_tokens);
    for (size_t b = 0; b < step.entries.size(); ++b)
      group.set_table(b, sequence(step.entries[b].slot).blocks.groups[g], step.context_len[b],
                      options_.page_tokens);
  }
  return true;
}

// ---- who gets how many rows
// -----------------------------------------------------------------------------------

void Scheduler::plan_rows(Sequence& s, int64_t rows) {
  const bool reserved = blocks_.reserve(s.blocks, s.computed + s.planned, s.computed + s.planned + rows,
                                        step_->copies, s.computed);
  OAR_CHECK(reserved, "rows were planned that the pool does not hold");
  if (s.planned == 0) plan_.push_back(s.slot);
  s.planned += static_cast<int32_t>(rows);
  rows_left_ -= rows;
  const RequestState& r = *s.request;
  if (r.wants_prompt_logprobs() && r.prompt_rows_asked < r.prompt_size() - 1) {
    const int64_t wanted = s.computed + s.planned - std::max(s.computed, r.prompt_rows_asked);
    const int32_t extra = static_cast<int32_t>(std::max<int64_t>(0, wanted - 1));
    logits_left_ -= extra - s.planned_extra;
    s.planned_extra = extra;
  }
}

// Of `rows` in total for this step, as many as the rows of logits allow (prompt log-probabilities want many)
// and as are of one phase.
int64_t Scheduler::chunk(const Sequence& s, int64_t rows) const {
  const RequestState& r = *s.request;
  if (options_.phases && s.in_prompt()) rows = std::min(rows, r.prompt_size() - s.computed);
  if (!r.wants_prompt_logprobs() || r.prompt_rows_asked >= r.prompt_size() - 1) return rows;
  const int64_t silent = std::max(s.computed, r.prompt_rows_asked) - s.computed;
  return std::min(rows, silent + 1 + s.planned_extra + logits_left_);
}

// Preempts younger sequences until `s` can get one row. False when there is none younger: s waits for the
// older ones (or for a commit) and keeps its blocks.
bool Scheduler::make_room(Sequence& s) {
  while (blocks_.reservable(s.blocks, s.computed, 1) == 0) {
    if (running_.tail == s.slot) return false;
    preempt(sequence(running_.tail));
  }
  return true;
}

// The draft model may be behind, and then sees more.
void Scheduler::leave_window(Sequence& s) {
  blocks_.leave_window(s.blocks, s.committed, 0, target_groups());
  blocks_.leave_window(s.blocks, std::min(s.committed, s.followed), target_groups(), blocks_.num_groups());
}

void Scheduler::plan_decode(Sequence& s) {
  leave_window(s);
  if (make_room(s)) plan_rows(s, 1);
}

// Rows behind a decode's, of what nobody else wanted: no sequence loses a row or a block to somebody's
// drafts.
void Scheduler::plan_drafts(Sequence& s) {
  if (s.planned != 1 || !s.takes_drafts() || (options_.phases && s.in_prompt())) {
    s.drafts.clear();
    return;
  }
  if (s.drafts.empty() && s.cursor != nullptr) propose_forced(s, std::min(rows_left_, logits_left_));
  int64_t rows = std::min({static_cast<int64_t>(s.drafts.size()), rows_left_, logits_left_});
  // A roll-back finds its state where the step is no longer than a page (block_manager.h).
  if (blocks_.has_states()) rows = std::min<int64_t>(rows, options_.page_tokens - 1);
  if (rows > 0) rows = blocks_.reservable(s.blocks, s.computed + 1, rows, s.computed);
  s.drafts.resize(static_cast<size_t>(std::max<int64_t>(rows, 0)));
  if (rows <= 0) return;
  plan_rows(s, rows);
  s.planned_extra += static_cast<int32_t>(rows);
  logits_left_ -= rows;
}

int64_t Scheduler::planned_rows() const {
  int64_t rows = 0;
  for (const int32_t slot : plan_) rows += slots_[static_cast<size_t>(slot)]->planned;
  return rows;
}

int64_t Scheduler::propose(Sequence& s, std::span<const int32_t> drafts) {
  OAR_CHECK(s.takes_drafts());
  // The last token a sequence may have needs no row of its own.
  const int64_t room = std::min(static_cast<int64_t>(drafts.size()), s.request->max_length - s.known() - 1);
  s.drafts.clear();
  for (int64_t i = 0; i < room; ++i) {
    const int32_t token = drafts[static_cast<size_t>(i)];
    if (stops(*s.request, token) || (s.cursor != nullptr && !s.cursor->advance(token))) break;
    s.drafts.push_back(token);
  }
  const int64_t kept = static_cast<int64_t>(s.drafts.size());
  if (s.cursor != nullptr) s.cursor->rollback(kept);
  return kept;
}

void Scheduler::propose(Sequence& s, int64_t count) {
  OAR_CHECK(s.takes_drafts());
  const int64_t room = std::min(count, s.request->max_length - s.known() - 1);
  s.drafts.assign(static_cast<size_t>(std::max<int64_t>(room, 0)), kToBeDrafted);
}

// Tokens that the grammar forces are drafts where follow_grammar() leaves them to be drawn.
void Scheduler::propose_forced(Sequence& s, int64_t most) {
  most = std::min(most, s.request->max_length - s.known() - 1);
  while (static_cast<int64_t>(s.drafts.size()) < most) {
    const int32_t token = s.cursor->only();
    if (token < 0 || stops(*s.request, token) || !s.cursor->advance(token)) break;
    s.drafts.push_back(token);
  }
  s.cursor->rollback(static_cast<int64_t>(s.drafts.size()));
}

void Scheduler::plan_prefill(Sequence& s, bool others_want) {
  leave_window(s);
  if (!make_room(s)) return;
  // Half of what is left, so that a long prompt does not hold up a short one behind it; the rest returns in
  // top_up().
  const int64_t share =
      others_want ? std::max((rows_left_ + 1) / 2, std::min<int64_t>(rows_left_, options_.page_tokens))
                  : rows_left_;
  const int64_t rows = blocks_.reservable(s.blocks, s.computed, chunk(s, std::min(s.uncomputed(), share)));
  if (rows > 0) plan_rows(s, rows);
}

// What nobody wanted goes to the planned prefills, oldest first.
void Scheduler::top_up() {
  for (size_t i = 0; i < plan_.size() && rows_left_ > 0; ++i) {
    Sequence& s = sequence(plan_[i]);
    if (s.planned == 0 || s.planned >= s.uncomputed()) continue;
    const int64_t more = chunk(s, std::min(s.uncomputed(), s.planned + rows_left_)) - s.planned;
    const int64_t rows =
        more > 0 ? blocks_.reservable(s.blocks, s.computed + s.planned, more, s.computed) : 0;
    if (rows > 0) plan_rows(s, rows);
  }
}

// A running sequence gives back its slot and its blocks; its tokens stay.
void Scheduler::vacate(Sequence& s) {
  name_last_state(s);
  s.drafted = 0;
  s.drafts.clear();
  remove(running_, s);
  blocks_.release(s.blocks);
  s.computed = s.committed = s.followed = 0;
  ++s.block_version;  // tokens in flight still count: they were sampled from what was there
}

void Scheduler::preempt(Sequence& s) {
  // Rows planned above go back. A copy planned into a block given up here stays planned: copies and rows run
  // in order, so it lands before anything of the block's next holder.
  rows_left_ += s.planned;
  logits_left_ += s.planned_extra + 1;
  s.planned = s.planned_extra = 0;
  vacate(s);
  ++s.preemptions;
  ++stats_.preemptions;
  s.state = SequenceState::kWaiting;
  insert(waiting_, s);
  preempted_ = true;
}

// ---- admission
// ------------------------------------------------------------------------------------------------

// Blocks that a sequence will still take until all its tokens and one more are computed.
int64_t Scheduler::blocks_wanted(const Sequence& s, int32_t group) const {
  const auto& table = s.blocks.groups[static_cast<size_t>(group)];
  const int64_t held = static_cast<int64_t>(table.blocks.size());
  if (blocks_.pages(group) != CachePages::kAll) return held > table.first ? 0 : 1;
  int64_t wanted = blocks_.blocks_for(std::min(s.total() + 1, max_length_)) - held;
  if (const int64_t window = blocks_.window(group); window > 0) {
    const int64_t most =
        std::min(blocks_.total(group), blocks_.blocks_for(window + options_.max_batch_tokens) + 1);
    wanted = std::min(wanted, most - (held - table.first));
  }
  return std::max<int64_t>(wanted, 0);
}

// Room for all that is promised: what running sequences still want, a block for each of them to grow by (so
// that an admission is not followed by a preemption at once), and `s` itself.
bool Scheduler::has_headroom(const Sequence& s) const {
  for (int32_t g = 0; g < blocks_.num_groups(); ++g) {
    int64_t promised = blocks_wanted(s, g);
    for (int32_t i = running_.head; i >= 0; i = slots_[static_cast<size_t>(i)]->next)
      promised +=
          blocks_wanted(*slots_[static_cast<size_t>(i)], g) + (blocks_.pages(g) != CachePages::kFirst);
    if (promised > blocks_.available(g)) return false;
  }
  return true;
}

bool Scheduler::admit(Sequence& s, Clock::time_point now) {
  RequestState& r = *s.request;
  if (s.at_end()) return false;  // its last token is in flight
  if (refused_slot_ == s.slot && refused_at_ == blocks_.releases()) return false;
  // The last known row runs in any case: its logits are wanted, now or, with a token in flight, if that is
  // taken back.
  int64_t limit = s.known() - 1;
  if (r.wants_prompt_logprobs() && r.prompt_rows_asked < r.prompt_size() - 1)
    limit = std::min(limit, r.prompt_rows_asked);
  blocks_.prepare(s.blocks);
  const uint64_t adapter = r.request.adapter ? r.request.adapter->load : 0;
  const int64_t hit = blocks_.match(s.blocks, {adapter, r.request.cache_salt}, s.tokens(), limit);
  if (!has_headroom(s)) {
    blocks_.release(s.blocks);
    refused_slot_ = s.slot;
    refused_at_ = blocks_.releases();
    return false;
  }
  remove(waiting_, s);
  waited_ = 0;
  s.state = SequenceState::kRunning;
  s.computed = s.committed = hit;
  s.followed = hit;
  insert(running_, s);
  if (r.scheduled == Clock::time_point{}) {
    r.scheduled = now;
    shares_.started(r.ticket);
    r.cached_tokens = hit;
    r.prompt_computed = hit;
    if (r.request.prompt_progress) step_->begun.push_back(s.slot);
    stats_.prefix_queries += static_cast<uint64_t>(r.prompt_size());
    stats_.prefix_hits += static_cast<uint64_t>(hit);
  }
  return true;
}

// Steps without an admission before somebody makes way: slots mostly come free by themselves.
constexpr int32_t kPatience = 16;

// A caller may hold every slot while no other waits. When others have waited, the youngest sequence of the
// caller with the most for its weight gives its place to the first of the caller with the least, unless the
// former then had less than the latter. So nothing goes back and forth.
void Scheduler::make_way(Clock::time_point now) {
  if (waiting_.head < 0) {
    waited_ = 0;
    return;
  }
  if (++waited_ <= kPatience || preempted_) return;
  // What else keeps the head waiting, rows, comes free by itself.
  if (running_.size < options_.max_sequences && refused_slot_ != waiting_.head) return;
  waited_ = 0;
  const auto load = [](const Sequence& s) { return s.request->ticket.share->load(); };
  Sequence* taker = nullptr;
  for (int32_t i = waiting_.head; i >= 0; i = sequence(i).next) {
    Sequence& s = sequence(i);
    if (!s.at_end() && (taker == nullptr || load(s) < load(*taker))) taker = &s;
  }
  if (taker == nullptr) return;
  const FairShare& least = *taker->request->ticket.share;
  do {
    Sequence* giver = nullptr;
    for (int32_t i = running_.head; i >= 0; i = sequence(i).next)
      if (giver == nullptr || load(sequence(i)) >= load(*giver)) giver = &sequence(i);
    if (giver == nullptr) return;
    const FairShare& most = *giver->request->ticket.share;
    if (static_cast<double>(most.running - 1) / most.weight <
        static_cast<double>(least.running + 1) / least.weight)
      return;
    giver->tag = std::max(giver->tag, taker->tag + 1);  // behind it from now on
    preempt(*giver);
  } while (rows_left_ <= 0 || logits_left_ <= 0 || !admit(*taker, now));
  --logits_left_;
  plan_prefill(*taker, waiting_.size > 0);
}

// ---- rows
// -----------------------------------------------------------------------------------------------------

void Scheduler::emit_rows(Sequence& s) {
  Step& step = *step_;
  RequestState& r = *s.request;
  // Rows behind `end` are drafts: whether they count is known once they have run.
  const int64_t drafts = static_cast<int64_t>(s.drafts.size());
  const int64_t begin = s.computed, last = begin + s.planned, end = last - drafts, known = s.known();
  const int32_t first_row = static_cast<int32_t>(step.tokens.size());
  const TokenView tokens = s.tokens();
  step.seq_start.push_back(first_row);
  step.context_len.push_back(static_cast<int32_t>(last));
  step.entries.push_back({s.slot, s.block_version, begin, end});
  if (s.uncomputed() > 1) step.prefill_tokens += s.planned;
  for (int64_t p = begin; p < last; ++p) {
    step.tokens.push_back(p < known ? tokens[p]
                          : p < end ? ~s.pending_sample
                                    : s.drafts[static_cast<size_t>(p - end)]);
    step.positions.push_back(static_cast<int32_t>(p));
    step.adapters.push_back(r.request.adapter ? r.request.adapter->slot : -1);
  }
  for (size_t g = 0; g < step.groups.size(); ++g)
    step.groups[g].add_rows(s.blocks.groups[g], options_.groups[g].pages, options_.page_tokens, begin, last);
  if (r.wants_prompt_logprobs()) {
    for (int64_t p = std::max(begin, r.prompt_rows_asked); p < std::min(end, r.prompt_size() - 1); ++p) {
      step.prompt_rows.push_back({s.slot, s.token_version, static_cast<int32_t>(step.logit_rows.size()), p});
      step.logit_rows.push_back(first_row + static_cast<int32_t>(p - begin));
      r.prompt_rows_asked = p + 1;
    }
  }
  if (const int64_t reached = std::min(end, r.prompt_size()); reached > r.prompt_computed) {
    stats_.prompt_tokens += static_cast<uint64_t>(reached - r.prompt_computed);
    r.prompt_computed = reached;
  }
  s.computed = end;
  s.planned = s.planned_extra = 0;
  if (end < s.total() || r.max_length <= r.prompt_size()) return;
  const int32_t logit_row = static_cast<int32_t>(step.logit_rows.size());
  for (int64_t p = end - 1; p < last; ++p)
    step.logit_rows.push_back(first_row + static_cast<int32_t>(p - begin));
  if (r.forked) add_sample(s, logit_row);
  else fork(s, logit_row);
}

void Scheduler::add_sample(Sequence& s, int32_t logit_row) {
  s.pending_sample = static_cast<int32_t>(step_->samples.size());
  ++s.pending;
  const auto first = static_cast<int32_t>(step_->draft_tokens.size());
  s.drafted = static_cast<int32_t>(s.drafts.size());
  step_->draft_tokens.insert(step_->draft_tokens.end(), s.drafts.begin(), s.drafts.end());
  s.drafts.clear();
  step_->samples.push_back({s.slot, s.token_version, s.block_version, logit_row, first, s.drafted, false});
}

// The prompt is computed: one sequence per open choice from here on, all sampled from the same row.
void Scheduler::fork(Sequence& s, int32_t logit_row) {
  RequestState& r = *s.request;
  r.forked = true;
  const size_t room = static_cast<size_t>(r.max_length - r.prompt_size());
  bool first = true;
  for (int32_t i = 0; i < r.request.n; ++i) {
    if (!r.open[static_cast<size_t>(i)]) continue;
    Sequence& c = first ? s : take_slot(r);
    r.slots[static_cast<size_t>(i)] = c.slot;
    c.index = i;
    c.output.reserve(room);
    c.drafts.reserve(static_cast<size_t>(options_.max_logit_rows));
    if (r.request.constraint != nullptr) c.cursor = r.request.constraint->start();
    add_sample(c, logit_row);
    if (first) {
      first = false;
      continue;
    }
    if (running_.size < options_.max_sequences) {
      c.computed = s.computed;
      c.committed = s.committed;
      c.followed = s.followed;
      c.forked_at = step_number_ + 1;
      blocks_.fork(s.blocks, c.blocks);
      c.state = SequenceState::kRunning;
      insert(running_, c);
    } else {  // joins later, and finds the prompt's pages in the prefix cache
      ++c.block_version;
      c.state = SequenceState::kWaiting;
      insert(waiting_, c);
    }
  }
}

}  // namespace oar
