// The life of requests and sequences: arrival, what a step brought, every way to end. Planning a step is in
// scheduler_plan.cc.
#include "engine/runtime/core/scheduler.h"

#include <algorithm>
#include <tuple>

#include "engine/base/format.h"

namespace oar {

Batch Step::batch() {
  batch_groups.clear();
  for (const GroupAddresses& g : groups) batch_groups.push_back({g.slots, g.tables, g.max_blocks});
  return {tokens, positions, seq_start, context_len, logit_rows, batch_groups, adapters, prompts};
}

Result<std::unique_ptr<Scheduler>> Scheduler::create(const SchedulerOptions& o) {
  const auto refuse = [](std::string m) { return Status(StatusCode::kFailedPrecondition, std::move(m)); };
  if (o.max_logit_rows != 0 && o.max_logit_rows < o.max_sequences)
    return refuse(cat("max_logit_rows ", o.max_logit_rows, " is less than max_sequences ", o.max_sequences));
  if (o.page_tokens <= 0 || o.groups.empty()) return refuse("the runner reports no KV pages");
  if (o.max_batch_tokens < 1 || o.max_sequences < 1 || o.max_sequences > o.max_batch_tokens ||
      o.max_context < 2)
    return refuse(cat("max_batch_tokens ", o.max_batch_tokens, ", max_sequences ", o.max_sequences,
                      ", max_context ", o.max_context,
                      ": need 1 <= max_sequences <= max_batch_tokens and max_context >= 2"));
  OAR_CHECK(o.depth == 0 || o.depth == 1);
  int64_t length = o.max_context;
  for (const CacheGroup& g : o.groups)
    if (g.window == 0 && g.pages == CachePages::kAll)
      length = std::min(length, int64_t{g.num_blocks} * o.page_tokens);
  if (length < 2)
    return refuse(
        cat("the KV pool holds ", length, " token(s); one sequence needs at least 2: give it more memory"));
  for (const CacheGroup& g : o.groups) {
    if (g.pages != CachePages::kAll) {
      // The page being written, and, with steps in flight, one that filled and one that follows. Of states
      // one to go on from, and two that a step keeps.
      const int32_t needed = g.pages == CachePages::kFirst ? 1 : 3;
      if (g.num_blocks < needed)
        return refuse(cat("the pool of ", has_holes(g.pages) ? "recurrent state" : "16-bit pages", " has ",
                          g.num_blocks, " blocks; one sequence needs ", needed, ": give it more memory"));
      continue;
    }
    if (g.window == 0) continue;
    // What one step of one sequence touches: the window, the new row, and a row in flight (depth 1),
    // unaligned.
    const int64_t pages = (length + o.page_tokens - 1) / o.page_tokens;
    const bool drafts = &g >= o.groups.data() + o.groups.size() - static_cast<size_t>(o.draft_groups);
    const int64_t behind = drafts ? 2 : 0;  // less than a page, and what was drawn in flight
    const int64_t needed = std::min(pages, (g.window + o.page_tokens - 1) / o.page_tokens + 2 + behind);
    if (g.num_blocks < needed)
      return refuse(cat("the KV pool of a window of ", g.window, " tokens has ", g.num_blocks, " blocks of ",
                        o.page_tokens, " tokens; one sequence needs ", needed, ": give it more memory"));
  }
  return std::unique_ptr<Scheduler>(new Scheduler(o, length));
}

Scheduler::Scheduler(const SchedulerOptions& o, int64_t max_length)
    : options_(o),
      max_length_(max_length),
      blocks_({o.page_tokens, o.groups, max_length, o.prefix_cache, o.hash_seed, o.depth, o.snapshot_tokens,
               o.phases && !o.mixed_prefix}),
      mask_words_(static_cast<size_t>((o.vocab_size + 31) / 32)) {
  if (options_.max_logit_rows == 0) options_.max_logit_rows = o.max_sequences;
  plan_.reserve(static_cast<size_t>(o.max_sequences));
}

// ---- lists and slots
// ------------------------------------------------------------------------------------------

bool Scheduler::before(const Sequence& a, const Sequence& b) {
  const auto key = [](const Sequence& s) { return std::tuple(s.tag, s.request->id, s.index); };
  return key(a) < key(b);
}

void Scheduler::insert(List& list, Sequence& s) {
  int32_t after = list.tail;                                         // s goes behind it
  if (list.head >= 0 && before(s, sequence(list.head))) after = -1;  // a preempted one returns to the front
  while (after >= 0 && before(s, sequence(after))) after = sequence(after).prev;
  s.prev = after;
  s.next = after < 0 ? list.head : sequence(after).next;
  (s.prev < 0 ? list.head : sequence(s.prev).next) = s.slot;
  (s.next < 0 ? list.tail : sequence(s.next).prev) = s.slot;
  ++list.size;
  if (&list == &running_) ++s.request->ticket.share->running;
}

void Scheduler::remove(List& list, Sequence& s) {
  (s.prev < 0 ? list.head : sequence(s.prev).next) = s.next;
  (s.next < 0 ? list.tail : sequence(s.next).prev) = s.prev;
  s.prev = s.next = -1;
  --list.size;
  if (&list == &running_) --s.request->ticket.share->running;
  refused_slot_ = -1;
}

Scheduler::List& Scheduler::list_of(const Sequence& s) {
  switch (s.state) {
    case SequenceState::kRunning: return running_;
    case SequenceState::kSuspended: return suspended_;
    default: return waiting_;
  }
}

Sequence& Scheduler::take_slot(RequestState& request) {
  if (free_slots_.empty()) {
    auto made = std::make_unique<Sequence>();
    made->slot = static_cast<int32_t>(slots_.size());
    free_slots_.push_back(made->slot);
    slots_.push_back(std::move(made));
  }
  Sequence& s = sequence(free_slots_.back());
  free_slots_.pop_back();
  s.request = &request;
  s.tag = request.ticket.tag;
  return s;
}

Sequence* Scheduler::live(int32_t slot, uint64_t token_version) {
  Sequence& s = sequence(slot);
  return s.token_version == token_version ? &s : nullptr;
}

void Scheduler::reclaim() {
  for (int32_t slot : finished_slots_) {
    Sequence& s = sequence(slot);
    s.state = SequenceState::kFree;
    s.request = nullptr;
    s.output = {};
    s.sampler = {};
    s.cursor.reset();
    s.error = {};
    s.pending = s.pending_sample = 0;
    s.computed = s.committed = s.followed = s.preemptions = 0;
    s.accepted_drafts = s.rejected_drafts = s.verified_drafts = 0;
    s.forked_at = 0;
    s.drafts = {};
    s.chance = {};
    s.drafted = 0;
    s.first_token = {};
    free_slots_.push_back(slot);
  }
  finished_slots_.clear();
  for (uint64_t id : finished_requests_) requests_.erase(id);
  finished_requests_.clear();
}

// ---- arrival and ends
// -----------------------------------------------------------------------------------------

Status Scheduler::check_length(const Request& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt + (request.stop.max_tokens > 0 ? 1 : 0) <= max_length_) return ok_status();
  return Status(StatusCode::kOutOfRange,
                cat("prompt: ", prompt, " tokens can never fit: the KV pool and context hold ", max_length_,
                    " tokens of one sequence; shorten the prompt or give the KV pool more memory"),
                "prompt");
}

Status Scheduler::add(uint64_t id, Request request, uint64_t seed, Clock::time_point now) {
  OAR_CHECK(id > last_id_ && !request.prompt.empty() && request.n > 0);
  OAR_RETURN_IF_ERROR(check_length(request));
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  last_id_ = id;
  auto owned = std::make_unique<RequestState>();
  RequestState& r = *owned;
  r.id = id;
  r.request = std::move(request);
  r.seed = seed;
  r.submitted = now;
  r.max_length = prompt + std::min(r.request.stop.max_tokens, max_length_ - prompt);
  r.ticket = shares_.arrive(r.request.caller, r.request.weight, r.request.priority, prompt, r.request.n,
                            r.max_length - prompt);
  r.open_choices = r.request.n;
  r.open.assign(static_cast<size_t>(r.request.n), true);
  if (r.wants_prompt_logprobs()) r.prompt_logprobs.resize(static_cast<size_t>(prompt));
  if (r.request.deadline) earliest_deadline_ = std::min(earliest_deadline_, *r.request.deadline);
  Sequence& s = take_slot(r);
  r.slots.assign(static_cast<size_t>(r.request.n), s.slot);
  s.index = 0;
  s.state = SequenceState::kWaiting;
  insert(waiting_, s);
  requests_.emplace(id, std::move(owned));
  return ok_status();
}

void Scheduler::finish(Sequence& s, const Outcome& outcome, std::vector<Outcome>& out) {
  RequestState& r = *s.request;
  remove(list_of(s), s);
  name_last_state(s);
  blocks_.release(s.blocks);
  s.state = SequenceState::kFinished;
  ++s.token_version;
  ++s.block_version;
  finished_slots_.push_back(s.slot);
  r.open[static_cast<size_t>(outcome.index)] = false;
  if (--r.open_choices == 0) {
    r.ended = true;
    shares_.ended(r.ticket, r.prompt_computed - r.cached_tokens, r.generated, r.request.n);
    finished_requests_.push_back(r.id);
  }
  out.push_back(outcome);
}

void Scheduler::end_choice(RequestState& r, int32_t index, FinishReason reason, std::vector<Outcome>& out) {
  if (!r.open[static_cast<size_t>(index)]) return;
  const int32_t slot = r.slots[static_cast<size_t>(index)];
  Outcome outcome{&r, index, slot, -1, -1, false, -1, reason, -1};
  if (r.forked || r.open_choices == 1) {
    finish(sequence(slot), outcome, out);
    return;
  }
  outcome.slot = -1;  // the prompt goes on for the other choices
  r.open[static_cast<size_t>(index)] = false;
  --r.open_choices;
  out.push_back(outcome);
}

void Scheduler::end_request(RequestState& r, FinishReason reason, std::vector<Outcome>& out) {
  for (int32_t i = 0; i < r.request.n; ++i) end_choice(r, i, reason, out);
}

void Scheduler::cancel(uint64_t id, FinishReason reason, std::vector<Outcome>& out) {
  if (const auto it = requests_.find(id); it != requests_.end()) end_request(*it->second, reason, out);
}

void Scheduler::forget(uint64_t id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  const RequestState& r = *it->second;
  for (size_t i = 0; i < r.slots.size(); ++i)
    if (r.open[i]) blocks_.forget(sequence(r.slots[i]).blocks);  // before the fork all choices are one
}

void Scheduler::finish_choice(uint64_t id, int32_t index, FinishReason reason, std::vector<Outcome>& out) {
  const auto it = requests_.find(id);
  if (it != requests_.end() && index >= 0 && index < it->second->request.n)
    end_choice(*it->second, index, reason, out);
}

void Scheduler::suspend(uint64_t id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  RequestState& r = *it->second;
  for (size_t i = 0; i < r.slots.size(); ++i) {
    Sequence& s = sequence(r.slots[i]);  // before the fork all choices are one sequence
    if (!r.open[i] || s.state == SequenceState::kSuspended) continue;
    if (s.state == SequenceState::kRunning) vacate(s);
    else remove(waiting_, s);
    s.state = SequenceState::kSuspended;
    insert(suspended_, s);
  }
}

void Scheduler::resume(uint64_t id) {
  const auto it = requests_.find(id);
  if (it == requests_.end()) return;
  RequestState& r = *it->second;
  for (size_t i = 0; i < r.slots.size(); ++i) {
    Sequence& s = sequence(r.slots[i]);
    if (!r.open[i] || s.state != SequenceState::kSuspended) continue;
    remove(suspended_, s);
    s.state = SequenceState::kWaiting;
    insert(waiting_, s);
  }
}

void Scheduler::expire(Clock::time_point now, std::vector<Outcome>& out) {
  if (now < earliest_deadline_) return;
  earliest_deadline_ = Clock::time_point::max();
  for (auto& [id, r] : requests_) {
    if (!r->request.deadline || r->ended) continue;
    if (*r->request.deadline <= now) end_request(*r, FinishReason::kDeadline, out);
    else earliest_deadline_ = std::min(earliest_deadline_, *r->request.deadline);
  }
}

void Scheduler::cancel_all(FinishReason reason, std::vector<Outcome>& out) {
  for (auto& [id, r] : requests_) end_request(*r, reason, out);
}

// ---- commit
// ---------------------------------------------------------------------------------------------------

bool Scheduler::stops(const RequestState& r, int32_t token) const {
  const auto has = [token](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  const StopParams& stop = r.request.stop;
  return (!stop.ignore_eos && has(options_.eos_token_ids)) || has(stop.stop_token_ids);
}

// Appends one known token. False when the sequence ended with it.
bool Scheduler::append(Sequence& s, int32_t token, int32_t sample, int32_t draw, Clock::time_point now,
                       std::vector<Outcome>& out) {
  RequestState& r = *s.request;
  ++stats_.generation_tokens;
  ++r.generated;
  if (s.output.empty()) s.first_token = now;
  Outcome o{&r, s.index, s.slot, sample, draw, true, token, FinishReason::kNone, -1};
  if (static_cast<int64_t>(s.output.size()) >= r.request.stop.min_tokens && stops(r, token)) {
    o.has_token = false;
    o.finish = FinishReason::kStop;
    o.stop_token = token;
  } else if (s.cursor != nullptr && !s.cursor->advance(token)) {
    s.error = internal_error(cat("token ", token, " is not what the mask of ", r.request.constraint_field,
                                 " allows: please report this grammar"));
    o.has_token = false;
    o.finish = FinishReason::kError;
  } else {
    s.output.push_back(token);
    if (s.sampler.observed < s.output.size()) s.sampler.observe(token);  // the sampler may have counted it
    if (s.cursor != nullptr && s.cursor->must_end()) o.finish = FinishReason::kStop;
    else if (s.known() >= r.max_length) o.finish = FinishReason::kLength;
  }
  if (o.finish == FinishReason::kNone) {
    out.push_back(o);
    return true;
  }
  finish(s, o, out);
  return false;
}

// Appends the tokens that the grammar leaves no choice about: they are not drawn. False when the sequence
// ended with one. Where log-probabilities are asked for, their rows' logits are wanted, so they are drawn as
// all others.
bool Scheduler::follow_grammar(Sequence& s, int32_t sample, Clock::time_point now,
                               std::vector<Outcome>& out) {
  if (s.cursor == nullptr || s.request->request.sampling.logprobs >= 0) return true;
  for (;;) {
    const int32_t token = s.cursor->only();
    if (token < 0 || stops(*s.request, token)) return true;
    if (!append(s, token, sample, -1, now, out)) return false;
  }
}

void Scheduler::tell_begun(const Step& step, std::vector<Outcome>& out) {
  for (const int32_t slot : step.begun) {
    Sequence& s = sequence(slot);
    tell_progress(s, s.request->cached_tokens, out);
  }
}

// Also a request that began anew is told each part of its prompt once.
void Scheduler::tell_progress(Sequence& s, int64_t computed, std::vector<Outcome>& out) {
  RequestState& r = *s.request;
  computed = std::min(computed, r.prompt_size());
  if (!r.request.prompt_progress || computed <= r.prompt_told) return;
  r.prompt_told = computed;
  const auto index = static_cast<int32_t>(std::find(r.open.begin(), r.open.end(), true) - r.open.begin());
  out.push_back({&r, index, s.slot, -1, -1, false, -1, FinishReason::kNone, -1, computed});
}

// Samples in flight for this sequence no longer count.
void Scheduler::drop_samples(Sequence& s) {
  ++s.token_version;
  s.pending = s.drafted = 0;
}

// Neither samples nor rows in flight for this sequence count any longer; it goes on from `position`. So does
// its draft model: a block that replaces a shared one has nothing of the rows to come.
void Scheduler::take_back(Sequence& s, int64_t position) {
  drop_samples(s);
  ++s.block_version;
  s.computed = std::min(s.computed, position);
  s.committed = std::min(s.committed, s.computed);
  s.followed = std::min(s.followed, s.computed);
}

void Scheduler::commit(Step& step, std::span<const std::span<const int32_t>> sampled, Clock::time_point now,
                       std::vector<Outcome>& out) {
  OAR_CHECK(sampled.size() == step.samples.size() && in_flight_ > 0);
  --in_flight_;
  const auto computed_to = [&](Sequence& s, int64_t end) {
    s.committed = std::max(s.committed, end);
    // Whoever finds a page finds it computed by both models.
    blocks_.publish(s.blocks, s.tokens(),
                    options_.draft_groups > 0 ? std::min(s.committed, s.followed) : s.committed);
  };
  for (const Step::Entry& e : step.entries) {
    Sequence& s = sequence(e.slot);
    if (s.block_version != e.block_version) continue;
    computed_to(s, e.end);
    RequestState& r = *s.request;
    tell_progress(s, e.end, out);
    // Snapshots at the prompt's end: for those who go on from it, and for those who ask the same again.
    if (blocks_.has_states() && e.end == r.prompt_size()) {
      const int64_t page = options_.page_tokens;
      blocks_.name_state(s.blocks, (e.end - 1) / page - 1);
      if (e.end % page == 0) blocks_.name_state(s.blocks, e.end / page - 1);
    }
    if (!r.forked && e.end >= r.prompt_size() && r.max_length <= r.prompt_size())
      end_request(r, FinishReason::kLength, out);  // max_tokens == 0: only the prompt was asked for
  }
  for (size_t i = 0; i < step.samples.size(); ++i) {
    const Step::Sample& sample = step.samples[i];
    Sequence* s = live(sample.slot, sample.token_version);
    if (s == nullptr) continue;
    const int64_t known = s->known();
    // A choice born in this step has no entry of its own; the row it was sampled from speaks for it.
    const bool rows_count = s->block_version == sample.block_version;
    if (rows_count) computed_to(*s, known);
    --s->pending;
    s->drafted = 0;
    const int32_t at = static_cast<int32_t>(i);
    if (sample.ends) {
      finish(*s, {s->request, s->index, s->slot, at, -1, false, -1, FinishReason::kStop, -1}, out);
      continue;
    }
    const std::span<const int32_t> tokens = sampled[i], drafts = step.drafts_of(sample);
    const int64_t accepted =
        std::mismatch(tokens.begin(), tokens.end(), drafts.begin(), drafts.end()).first - tokens.begin();
    if (!drafts.empty()) count_drafts(*s, accepted, std::ssize(drafts) - accepted);
    s->followed = std::min(s->followed, known + accepted);  // behind it other tokens stand
    bool goes_on = true;
    for (size_t k = 0; goes_on && k < tokens.size(); ++k)
      goes_on = append(*s, tokens[k], at, static_cast<int32_t>(k), now, out);
    if (!goes_on) continue;
    if (tokens.empty()) {
      take_back(*s, known - 1);
      continue;
    }
    if (rows_count && accepted > 0) {
      s->computed = std::min(known + accepted, s->known() - 1);  // the last token's logits are wanted
      s->followed = std::min(s->followed, s->computed);
      computed_to(*s, s->computed);
    }
    if (!follow_grammar(*s, at, now, out)) continue;
    // A row in flight behind this step knows the first token, so it counts; what it draws is known already.
    if (s->pending > 0 && s->known() - known > 1) drop_samples(*s);
  }
}

void Scheduler::count_drafts(Sequence& s, int64_t accepted, int64_t rejected) {
  s.accepted_drafts += accepted;
  s.rejected_drafts += rejected;
  ++s.verified_drafts;
  ++stats_.verified_drafts;
  for (size_t i = 0; i < std::min(static_cast<size_t>(accepted), kCountedDrafts); ++i)
    ++stats_.accepted_at[i];
  stats_.accepted_drafts += static_cast<uint64_t>(accepted);
  stats_.rejected_drafts += static_cast<uint64_t>(rejected);
}

// ---- inspection
// -----------------------------------------------------------------------------------------------

SequenceStats Scheduler::sequence_stats(const Outcome& o, Clock::time_point now) const {
  const RequestState& r = *o.request;
  SequenceStats st;
  st.prompt_tokens = r.prompt_size();
  st.cached_tokens = r.cached_tokens;
  st.computed_tokens = o.computed >= 0 ? o.computed : r.prompt_computed;
  st.submitted = r.submitted;
  st.scheduled = r.scheduled;
  st.finished = now;
  if (o.slot >= 0 && o.computed < 0) {  // a prompt's progress comes before tokens of the same step
    const Sequence& s = *slots_[static_cast<size_t>(o.slot)];
    st.completion_tokens = static_cast<int64_t>(s.output.size()) + (o.stop_token >= 0 ? 1 : 0);
    st.preemptions = s.preemptions;
    st.accepted_drafts = s.accepted_drafts;
    st.rejected_drafts = s.rejected_drafts;
    st.verified_drafts = s.verified_drafts;
    st.first_token = s.first_token;
  }
  return st;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats st = stats_;
  st.running = running_.size;
  st.waiting = waiting_.size;
  st.suspended = suspended_.size;
  return st;
}

Status Scheduler::verify() const {
  std::vector<const BlockTables*> tables;
  const auto walk = [&](const List& list, SequenceState state, const char* name) -> Status {
    int64_t n = 0;
    const Sequence* last = nullptr;
    for (int32_t i = list.head; i >= 0; i = slots_[static_cast<size_t>(i)]->next, ++n) {
      const Sequence& s = *slots_[static_cast<size_t>(i)];
      if (s.state != state)
        return internal_error(cat("slot ", i, " is in the ", name, " list in another state"));
      if (last != nullptr && !before(*last, s))
        return internal_error(cat("the ", name, " list is out of order"));
      if (s.committed > s.computed || s.computed > s.total())
        return internal_error(cat("slot ", i, ": positions"));
      if (s.followed > s.computed + s.drafted)
        return internal_error(cat("slot ", i, ": the draft model is ahead"));
      if (state != SequenceState::kRunning && s.computed != 0)
        return internal_error(cat("a ", name, " sequence computed"));
      if (s.known() >= s.request->max_length && s.request->forked)
        return internal_error("a sequence grew too long");
      last = &s;
    }
    if (n != list.size) return internal_error(cat("the ", name, " list is miscounted"));
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(walk(waiting_, SequenceState::kWaiting, "waiting"));
  OAR_RETURN_IF_ERROR(walk(running_, SequenceState::kRunning, "running"));
  OAR_RETURN_IF_ERROR(walk(suspended_, SequenceState::kSuspended, "suspended"));
  if (running_.size > options_.max_sequences) return internal_error("more sequences run than allowed");
  for (const auto& s : slots_) {
    if (s->state == SequenceState::kRunning) {
      tables.push_back(&s->blocks);
      continue;
    }
    for (const auto& g : s->blocks.groups)
      if (!g.blocks.empty()) return internal_error(cat("slot ", s->slot, " holds blocks without running"));
  }
  return blocks_.verify(tables);
}

}  // namespace oar
