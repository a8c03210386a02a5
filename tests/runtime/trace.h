// Random traces against the Scheduler: a small world of arrivals, cancels, deadlines and steps, run at depth
// 0 or 1 on a FakeCache, checked after every step and against the cache-less reference at the end. In some
// worlds a draft model has groups of its own in the same block manager, and a FakeCache of its own.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "engine/runtime/core/draft_model.h"
#include "tests/runtime/fake_grammar.h"
#include "tests/runtime/fake_runner.h"

namespace oar_test {

// A tiny seeded generator.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t next() { return mix(state_++); }
  // In [low, high].
  int64_t roll(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return roll(1, 100) <= percent; }

 private:
  uint64_t state_;
};

struct World {
  oar::SchedulerOptions options;
  int32_t vocab = 8;
  int requests = 4;
  int max_prompt = 12, max_tokens = 8;
  int cancel_percent = 5;  // per step
  int refuse_percent = 0;  // samples taken back, or several tokens at once
  int constraint_percent = 0;
  int draft_percent = 0;    // of the sequences that could have some, in each step
  int suspend_percent = 0;  // per step; whoever rests goes on within a few
  int callers = 1;
  int salts = 2;
  bool deadlines = true;
};

// The draw under a mask: of the tokens whose bit is set. -1: none is.
inline int32_t fake_draw(uint64_t history, uint64_t stream, int64_t n, int32_t vocab, uint64_t mask) {
  int32_t left = 0;
  for (int32_t t = 0; t < vocab; ++t) left += static_cast<int32_t>(mask >> t & 1);
  if (left == 0) return -1;
  left = fake_draw(history, stream, n, left);
  for (int32_t t = 0;; ++t)
    if ((mask >> t & 1) && left-- == 0) return t;
}

// Where rows of prompts and of generated tokens are computed differently (SchedulerOptions::phases), a
// history tells which tokens were generated.
constexpr int32_t kGeneratedMark = 1 << 20;
inline int32_t as_generated(int32_t token, const oar::SchedulerOptions& o) {
  return o.phases ? token | kGeneratedMark : token;
}

// What the model says for one choice, with no cache and nobody else around.
struct Reference {
  std::vector<int32_t> tokens;
  oar::FinishReason finish;
};
inline Reference reference_tokens(const oar::Request& r, uint64_t stream, int32_t vocab, int64_t max_length,
                                  const oar::SchedulerOptions& options) {
  const std::vector<int32_t>& eos = options.eos_token_ids;
  uint64_t h = kEmptyHistory;
  for (int32_t t : r.prompt) h = extend(h, t);
  Reference out{{}, oar::FinishReason::kLength};
  const auto* grammar = static_cast<const FakeGrammar*>(r.constraint.get());
  uint64_t text = grammar ? grammar->start_hash() : 0;
  const int64_t most = std::min(r.stop.max_tokens, max_length - static_cast<int64_t>(r.prompt.size()));
  const auto in = [](const std::vector<int32_t>& ids, int32_t t) {
    return std::find(ids.begin(), ids.end(), t) != ids.end();
  };
  const auto stops = [&](int32_t t) {
    return (!r.stop.ignore_eos && in(eos, t)) || in(r.stop.stop_token_ids, t);
  };
  for (;;) {
    const int64_t n = static_cast<int64_t>(out.tokens.size());
    // A whole text ends with its last token, whatever else it may reach there.
    const FakeGrammar::Place place = grammar && most > 0 ? grammar->place(text) : FakeGrammar::Place{};
    if (place.must_end) out.finish = oar::FinishReason::kStop;
    if (place.must_end || n >= most) break;
    int32_t t = 0;
    if (grammar) {
      uint64_t mask = place.bits;
      for (int32_t i = 0; i < vocab; ++i)
        if (in(eos, i) || in(r.stop.stop_token_ids, i)) mask &= ~(uint64_t{1} << i);
      if (mask == 0) {
        out.finish = place.may_end ? oar::FinishReason::kStop : oar::FinishReason::kError;
        break;
      }
      for (int32_t i = 0; place.may_end && n >= r.stop.min_tokens && i < vocab; ++i)
        if (stops(i)) mask |= uint64_t{1} << i;
      t = fake_draw(h, stream, n, vocab, mask);
    } else {
      t = fake_draw(h, stream, n, vocab);
    }
    if (n >= r.stop.min_tokens && stops(t)) {
      out.finish = oar::FinishReason::kStop;
      break;
    }
    out.tokens.push_back(t);
    h = extend(h, as_generated(t, options));
    if (grammar) text = extend(text, t);
  }
  return out;
}

// Runs one trace; returns "" or what went wrong.
class Trace {
 public:
  Trace(const World& world, uint64_t seed) : world_(world), dice_(seed) {
    oar::RunnerLimits limits;
    limits.max_batch_tokens = world.options.max_batch_tokens;
    limits.max_sequences = world.options.max_sequences;
    limits.max_logit_rows = world.options.max_logit_rows;
    limits.page_tokens = world.options.page_tokens;
    const std::vector<oar::CacheGroup>& groups = world.options.groups;
    const auto own = groups.end() - world.options.draft_groups;
    limits.groups.assign(groups.begin(), own);
    cache_ = std::make_unique<FakeCache>(limits);
    if (own == groups.end()) return;
    limits.vocab_size = world.vocab;
    limits.max_logit_rows = 0;
    limits.groups.assign(own, groups.end());
    // Of recurrent layers the rows of a step run in one pass; else catching up takes several.
    if (!limits.has_states()) limits.max_batch_tokens = limits.max_sequences;
    drafts_ = std::make_unique<oar::DraftModel>(std::make_unique<FakeRunner>(limits, control_), world.vocab,
                                                pacer_);
  }

  std::string run() {
    auto made = oar::Scheduler::create(world_.options);
    if (!made.ok()) return "";  // a world too small to live in; create() said so
    scheduler_ = std::move(made).value();
    const int64_t bound = step_bound();
    int64_t steps = 0;
    int arrived = 0;
    while (error_.empty() && (arrived < world_.requests || !scheduler_->empty() || !flying_.empty())) {
      now_ += std::chrono::milliseconds(1);
      while (arrived < world_.requests && dice_.chance(40)) arrive(static_cast<uint64_t>(++arrived));
      meddle();
      rest();
      scheduler_->expire(now_, outcomes_);
      deliver();
      // One step ahead, the draws of a step are described once the step before has been committed.
      launch();
      const bool ahead = world_.options.depth == 1;
      if (ahead && flying_.size() > static_cast<size_t>(launched_)) land();
      if (launched_ && error_.empty()) draw(flying_.back());
      if (!ahead && !flying_.empty() && error_.empty()) land();
      check("", scheduler_->verify());
      if (!cache_->error.empty()) fail(cache_->error);
      if (++steps > bound + at_most_for(suspensions_))
        fail(oar::cat("no end after ", steps, " steps: somebody starves"));
    }
    if (error_.empty()) check_ends();
    return error_;
  }

  bool lived() const { return scheduler_ != nullptr; }
  int64_t steps() const { return steps_; }
  uint64_t preemptions() const { return scheduler_ ? scheduler_->stats().preemptions : 0; }
  uint64_t prefix_hits() const { return scheduler_ ? scheduler_->stats().prefix_hits : 0; }
  uint64_t copies() const { return copies_; }
  uint64_t rollbacks() const { return rollbacks_; }
  uint64_t accepted() const { return accepted_; }  // drafts
  uint64_t drafted() const { return drafted_; }    // drafts that a model named
  uint64_t suspensions() const { return suspensions_; }
  uint64_t jumps() const { return jumps_; }  // tokens that a grammar forced and nobody drew

 private:
  struct Choice {
    std::vector<int32_t> tokens;
    int finishes = 0;
    oar::FinishReason finish = oar::FinishReason::kNone;
  };
  struct Record {
    oar::Request request;
    uint64_t seed;
    std::vector<Choice> choices;
    int64_t prompt_rows = 0;  // prompt rows seen, in order
  };
  struct Flight {
    oar::Step step;
    std::vector<uint64_t> histories;  // of the rows of logits
    // What the device drew for each sample, known at once to the device, later to the host.
    std::vector<std::vector<int32_t>> drawn;
  };

  void fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }
  void check(const char* where, const oar::Status& s) {
    if (!s.ok()) fail(oar::cat(where, s.message()));
  }

  // Every step either moves the oldest sequence on by a row or (depth 1) waits for a commit; each sequence is
  // computed at most once more after each preemption by an older one. Generous, yet finite: quadratic in the
  // work.
  int64_t step_bound() const {
    const int64_t length = world_.max_prompt + world_.max_tokens + 1;
    const int64_t sequences = world_.requests * 4;
    const int64_t again = 1 + world_.refuse_percent / 5;
    return 100 + world_.requests * 40 + 8 * sequences * length * again;
  }
  // Whoever is suspended rests for four steps in the mean, and is computed once more.
  int64_t at_most_for(uint64_t suspensions) const {
    return static_cast<int64_t>(suspensions) * (8 + 2 * (world_.max_prompt + world_.max_tokens + 1));
  }

  void arrive(uint64_t id) {
    oar::Request r;
    // Few different prompts, many common prefixes.
    const int64_t size = dice_.roll(1, world_.max_prompt);
    const uint64_t family = static_cast<uint64_t>(dice_.roll(0, 1));
    for (int64_t i = 0; i < size; ++i)
      r.prompt.push_back(static_cast<int32_t>(mix(family * 100 + static_cast<uint64_t>(i)) %
                                              static_cast<uint64_t>(world_.vocab)));
    if (dice_.chance(30)) r.prompt.back() = static_cast<int32_t>(dice_.roll(0, world_.vocab - 1));
    r.stop.max_tokens = dice_.roll(0, world_.max_tokens);
    r.stop.min_tokens = dice_.chance(20) ? dice_.roll(0, r.stop.max_tokens) : 0;
    r.stop.ignore_eos = dice_.chance(50);
    if (dice_.chance(20)) r.stop.stop_token_ids = {static_cast<int32_t>(dice_.roll(0, world_.vocab - 1))};
    r.n = dice_.chance(25) ? static_cast<int32_t>(dice_.roll(2, 4)) : 1;
    if (world_.deadlines && dice_.chance(10))
      r.deadline = now_ + std::chrono::milliseconds(dice_.roll(0, 20));
    if (dice_.chance(20)) {
      const auto load = dice_.roll(1, 2);
      r.adapter = std::make_shared<oar::AdapterLease>(
          oar::AdapterLease{static_cast<uint64_t>(load), static_cast<int32_t>(load - 1)});
    }
    if (dice_.chance(30)) r.cache_salt = oar::cat("salt", dice_.roll(0, world_.salts - 1));
    if (dice_.chance(15)) r.sampling.prompt_logprobs = 0;
    if (dice_.chance(world_.constraint_percent)) {
      r.constraint = std::make_shared<FakeGrammar>(dice_.next(), world_.vocab, world_.options.eos_token_ids);
      if (dice_.chance(30)) r.sampling.logprobs = 0;  // then every token is drawn
    }
    const uint64_t seed = dice_.next();
    if (world_.callers > 1) {
      const int64_t caller = dice_.roll(1, world_.callers);
      r.caller = oar::cat("caller ", caller), r.weight = static_cast<double>(caller);
      if (dice_.chance(10)) r.priority = static_cast<int32_t>(dice_.roll(-2, 2));
    }
    const oar::Status status = scheduler_->add(id, r, seed, now_);
    if (!status.ok()) {
      const int64_t need = size + (r.stop.max_tokens > 0 ? 1 : 0);
      if (need <= scheduler_->max_length()) fail("refused a request that fits: " + status.message());
      return;
    }
    Record& record = records_[id];
    record.seed = seed;
    record.choices.resize(static_cast<size_t>(r.n));
    record.request = std::move(r);
  }

  void meddle() {
    if (records_.empty() || !dice_.chance(world_.cancel_percent)) return;
    auto it = records_.begin();
    std::advance(it, dice_.roll(0, static_cast<int64_t>(records_.size()) - 1));
    if (dice_.chance(50)) scheduler_->cancel(it->first, oar::FinishReason::kCancelled, outcomes_);
    else
      scheduler_->finish_choice(it->first, static_cast<int32_t>(dice_.roll(0, it->second.request.n - 1)),
                                oar::FinishReason::kCancelled, outcomes_);
    deliver();
  }

  // Readers fall behind and catch up, in any state of their requests.
  void rest() {
    for (auto it = resting_.begin(); it != resting_.end();) {
      const uint64_t id = *it;
      it = dice_.chance(25) ? (scheduler_->resume(id), resting_.erase(it)) : std::next(it);
    }
    if (records_.empty() || !dice_.chance(world_.suspend_percent)) return;
    auto it = records_.begin();
    std::advance(it, dice_.roll(0, static_cast<int64_t>(records_.size()) - 1));
    const int64_t before = scheduler_->stats().suspended;
    scheduler_->suspend(it->first);
    suspensions_ += static_cast<uint64_t>(scheduler_->stats().suspended - before);
    resting_.insert(it->first);
  }

  void launch() {
    Flight flight;
    if (!spare_.empty()) {
      flight = std::move(spare_.back());
      spare_.pop_back();
    }
    if (world_.draft_percent > 0) scheduler_->for_each_running([&](oar::Sequence& s) { guess(s); });
    // A pacer that limits rows of prompts, and at times allows none.
    launched_ = dice_.chance(75) ? scheduler_->next(now_, flight.step)
                                 : scheduler_->next(now_, flight.step, dice_.roll(0, 12));
    if (!launched_) {
      if (flying_.empty() && !scheduler_->idle()) fail("there is work, but no step");
      return;
    }
    ++steps_;
    if (drafts_ != nullptr) name_drafts(flight.step);
    const oar::Step& step = flight.step;
    // The device: it knows what the step before drew.
    tokens_.assign(step.tokens.begin(), step.tokens.end());
    for (int32_t& t : tokens_) {
      if (t >= 0) continue;
      if (flying_.empty()) return fail("a token of a step that is not in flight");
      const auto& drawn = flying_.back().drawn.at(static_cast<size_t>(~t));
      t = drawn.empty() ? 0 : drawn.front();  // nothing: its choice is about to end
    }
    copies_ += step.copies.size();
    cache_->copy(step.copies);
    const oar::Batch batch = flight.step.batch();
    const size_t generated = tokens_.size() - static_cast<size_t>(batch.prompts);
    for (size_t i = 0; i < generated; ++i) tokens_[i] = as_generated(tokens_[i], world_.options);
    cache_->run(batch, tokens_, histories_);
    if (!cache_->error.empty()) return fail(cache_->error);
    if (drafts_ != nullptr) {
      check("following: ", drafts_->follow(*scheduler_, step));
      if (control_->broken) return fail("the draft model: " + control_->error);
    }
    flight.histories = histories_;
    for (const auto& row : step.prompt_rows) {
      Record& r = records_.at(scheduler_->sequence(row.slot).request->id);
      uint64_t h = kEmptyHistory;
      for (int64_t i = 0; i <= row.position; ++i) h = extend(h, r.request.prompt[static_cast<size_t>(i)]);
      if (row.position != r.prompt_rows++ || histories_.at(static_cast<size_t>(row.logit_row)) != h)
        fail("a prompt row is wrong or out of order");
    }
    flying_.push_back(std::move(flight));
  }

  // Of a planned step, as the engine has it: the draft model's copies first, then its drafts.
  void name_drafts(oar::Step& step) {
    const auto unnamed = std::ranges::count(step.draft_tokens, oar::kToBeDrafted);
    check("copies: ", drafts_->copy_blocks(step.copies, scheduler_->target_groups()));
    check("drafting: ", drafts_->draft(*scheduler_, step));
    for (const auto& sample : step.samples)
      if (std::ranges::count(step.drafts_of(sample), oar::kToBeDrafted) > 0) fail("a draft without a name");
    drafted_ += static_cast<uint64_t>(unnamed - std::ranges::count(step.draft_tokens, oar::kToBeDrafted));
  }

  int32_t token_at(const oar::Sequence& s, int64_t p) const {
    const int32_t t = s.tokens()[p];
    return p < s.request->prompt_size() ? t : as_generated(t, world_.options);
  }

  // Drafts of all kinds: those the model would say, as a rule up to a wrong one.
  void guess(oar::Sequence& s) {
    if (!s.takes_drafts() || !dice_.chance(world_.draft_percent)) return;
    if (drafts_ != nullptr && dice_.chance(60)) return scheduler_->propose(s, dice_.roll(1, 6));
    uint64_t h = kEmptyHistory;
    for (int64_t p = 0; p < s.known(); ++p) h = extend(h, token_at(s, p));
    const uint64_t stream = s.request->seed + static_cast<uint64_t>(s.index);
    std::vector<int32_t> drafts;
    const auto* grammar = static_cast<const FakeGrammar*>(s.request->request.constraint.get());
    uint64_t text = grammar ? grammar->start_hash() : 0;
    for (int32_t t : s.output) text = extend(text, t);
    for (int64_t k = dice_.roll(1, 6); k > 0; --k) {
      const int64_t n = static_cast<int64_t>(s.output.size() + drafts.size());
      int32_t t = grammar ? fake_draw(h, stream, n, world_.vocab, grammar->place(text).bits)
                          : fake_draw(h, stream, n, world_.vocab);
      if (t < 0 || dice_.chance(20)) t = static_cast<int32_t>(dice_.roll(0, world_.vocab - 1));
      drafts.push_back(t);
      h = extend(h, as_generated(t, world_.options));
      text = extend(text, t);
    }
    const int64_t kept = scheduler_->propose(s, drafts);
    if (kept > static_cast<int64_t>(drafts.size()) || s.known() + kept >= s.request->max_length)
      fail("drafts beyond the end");
  }

  void draw(Flight& flight) {
    scheduler_->specify(flight.step, spec_);
    flight.drawn.resize(flight.step.samples.size());
    for (auto& d : flight.drawn) d.clear();
    if (spec_.chains.size() != flight.drawn.size()) return fail("not one chain for each sample");
    for (size_t i = 0; i < spec_.chains.size(); ++i) {
      const oar::SampleSpec::Chain& c = spec_.chains[i];
      if (c.params == nullptr) continue;  // ended since, or its text is whole
      for (size_t k = 0; k <= c.drafts.size(); ++k) {
        const uint64_t history = flight.histories.at(static_cast<size_t>(c.logit_row) + k);
        const int64_t n = c.counter + static_cast<int64_t>(k);
        const int32_t t = c.masks.empty() ? fake_draw(history, c.state->seed, n, world_.vocab)
                                          : fake_draw(history, c.state->seed, n, world_.vocab, c.masks[k]);
        if (t >= 0) flight.drawn[i].push_back(t);
        else stuck_.insert({flight.step.number, i});
        if (t < 0 || (k < c.drafts.size() && t != c.drafts[k])) break;
      }
    }
  }

  void land() {
    Flight flight = std::move(flying_.front());
    flying_.pop_front();
    forced_.clear();
    forced_.resize(flight.drawn.size());
    spans_.clear();
    std::vector<std::pair<uint64_t, int32_t>> stuck;
    for (size_t i = 0; i < flight.drawn.size(); ++i) {
      auto& f = forced_[i];
      const auto& sample = flight.step.samples[i];
      oar::Sequence* s = scheduler_->live(sample.slot, sample.token_version);
      f = flight.drawn[i];
      const auto drafts = flight.step.drafts_of(sample);
      accepted_ += static_cast<uint64_t>(
          std::mismatch(f.begin(), f.end(), drafts.begin(), drafts.end()).first - f.begin());
      const bool is_stuck = stuck_.count({flight.step.number, i}) != 0;
      if (s != nullptr && is_stuck) stuck.emplace_back(s->request->id, s->index);
      if (s != nullptr && !is_stuck && !f.empty() && dice_.chance(world_.refuse_percent)) {
        ++rollbacks_;
        if (s->cursor != nullptr || dice_.chance(50)) {
          f.clear();  // taken back
        } else {  // and the next tokens as well, as a grammar would force them: here those the model would
                  // say
          uint64_t h = kEmptyHistory;
          for (int64_t p = 0; p < s->known(); ++p) h = extend(h, token_at(*s, p));
          for (size_t k = 0; k + 1 < f.size(); ++k) h = extend(h, as_generated(f[k], world_.options));
          for (int64_t k = 1; k <= dice_.roll(1, 3); ++k) {
            h = extend(h, as_generated(f.back(), world_.options));
            f.push_back(fake_draw(h, s->request->seed + static_cast<uint64_t>(s->index),
                                  static_cast<int64_t>(s->output.size() + f.size()), world_.vocab));
          }
        }
      }
      spans_.push_back(f);
    }
    scheduler_->commit(flight.step, spans_, now_, outcomes_);
    for (const auto& [id, index] : stuck)
      scheduler_->finish_choice(id, index, oar::FinishReason::kError, outcomes_);
    deliver();
    spare_.push_back(std::move(flight));
  }

  void deliver() {
    for (const oar::Outcome& o : outcomes_) {
      Choice& c = records_.at(o.request->id).choices.at(static_cast<size_t>(o.index));
      if (c.finishes > 0) fail("an event after the finish event");
      if (o.has_token) c.tokens.push_back(o.token);
      jumps_ += o.has_token && o.draw < 0;
      if (o.finish != oar::FinishReason::kNone) {
        ++c.finishes;
        c.finish = o.finish;
      }
    }
    outcomes_.clear();
    scheduler_->reclaim();
  }

  void check_ends() {
    for (const auto& [id, r] : records_) {
      for (size_t i = 0; i < r.choices.size(); ++i) {
        const Choice& c = r.choices[i];
        if (c.finishes != 1)
          return fail(oar::cat("request ", id, " choice ", i, " finished ", c.finishes, " times"));
        const Reference want =
            reference_tokens(r.request, r.seed + i, world_.vocab, scheduler_->max_length(), world_.options);
        const bool whole = c.finish == oar::FinishReason::kStop || c.finish == oar::FinishReason::kLength ||
                           c.finish == oar::FinishReason::kError;
        if (whole && (c.finish != want.finish || c.tokens != want.tokens))
          return fail(oar::cat("request ", id, " choice ", i, " differs from the reference after ",
                               c.tokens.size(), " tokens"));
        if (c.tokens.size() > want.tokens.size() ||
            !std::equal(c.tokens.begin(), c.tokens.end(), want.tokens.begin()))
          return fail(oar::cat("request ", id, " choice ", i, ": not a prefix of the reference"));
        if (c.finish == oar::FinishReason::kDeadline && !r.request.deadline)
          return fail("a deadline nobody set");
      }
      const bool ended_well = r.choices[0].finish == oar::FinishReason::kStop ||
                              r.choices[0].finish == oar::FinishReason::kLength;
      if (r.request.sampling.prompt_logprobs >= 0 && ended_well &&
          r.prompt_rows != static_cast<int64_t>(r.request.prompt.size()) - 1)
        return fail(oar::cat("request ", id, ": ", r.prompt_rows, " prompt rows"));
    }
    const oar::BlockStats b = scheduler_->blocks().stats();
    if (b.used != 0 || b.free + b.cached != b.total) fail("blocks leaked");
    scheduler_->blocks().clear_cache();
    if (scheduler_->blocks().stats().free != b.total) fail("the cache does not give its blocks back");
  }

  World world_;
  Dice dice_;
  std::unique_ptr<FakeCache> cache_;
  std::shared_ptr<FakeControl> control_ = std::make_shared<FakeControl>();
  oar::DraftPacer pacer_;  // which plans nothing here: dice do
  std::unique_ptr<oar::DraftModel> drafts_;
  std::unique_ptr<oar::Scheduler> scheduler_;
  std::map<uint64_t, Record> records_;
  std::deque<Flight> flying_;
  std::vector<Flight> spare_;
  std::vector<oar::Outcome> outcomes_;
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> histories_;
  std::vector<std::vector<int32_t>> forced_;
  std::vector<std::span<const int32_t>> spans_;
  oar::SampleSpec spec_;
  std::set<uint64_t> resting_;                   // requests that are suspended, or were when they ended
  std::set<std::pair<uint64_t, size_t>> stuck_;  // step and sample where nothing could be drawn
  oar::Clock::time_point now_{std::chrono::hours(1)};
  bool launched_ = false;
  int64_t steps_ = 0;
  uint64_t copies_ = 0, rollbacks_ = 0, jumps_ = 0, accepted_ = 0, drafted_ = 0, suspensions_ = 0;
  std::string error_;
};

// A random small world: every knob at its extremes sooner or later.
inline World random_world(Dice& d, int32_t depth) {
  World w;
  oar::SchedulerOptions& o = w.options;
  o.depth = depth;
  o.page_tokens = static_cast<int32_t>(d.roll(1, 4));
  o.max_sequences = d.roll(1, 5);
  o.max_batch_tokens = o.max_sequences + d.roll(0, 8);
  o.max_context = d.roll(4, 40);
  o.prefix_cache = d.chance(80);
  o.hash_seed = d.next();
  o.eos_token_ids = {0};
  const int groups = d.chance(60) ? 1 : static_cast<int>(d.roll(1, 3));
  for (int g = 0; g < groups; ++g) {
    oar::CacheGroup group;
    group.window = d.chance(groups == 1 ? 20 : 50) ? d.roll(2, 10) : 0;
    // From barely one sequence to plenty.
    const int64_t least = (o.max_context + o.page_tokens - 1) / o.page_tokens + (group.window > 0 ? 1 : 0);
    group.num_blocks = static_cast<int32_t>(d.chance(50) ? d.roll(std::max<int64_t>(1, least - 1), least + 2)
                                                         : d.roll(least, 4 * least));
    group.block_bytes = 1;
    o.groups.push_back(group);
  }
  if (d.chance(40)) {  // a quantized cache: 16-bit pages, from one too few to plenty
    const auto open = static_cast<int32_t>(d.chance(50) ? d.roll(2, 4) : d.roll(3, 20));
    o.groups.push_back({.block_bytes = 1, .num_blocks = open, .pages = oar::CachePages::kOpen});
    const auto first = static_cast<int32_t>(d.roll(1, 6));
    o.groups.push_back({.block_bytes = 1, .num_blocks = first, .pages = oar::CachePages::kFirst});
  }
  w.requests = static_cast<int>(d.roll(1, 8));
  w.max_prompt = static_cast<int>(d.roll(1, 24));
  w.max_tokens = static_cast<int>(d.roll(0, 16));
  w.cancel_percent = d.chance(50) ? 0 : static_cast<int>(d.roll(1, 20));
  w.refuse_percent = d.chance(70) ? 0 : static_cast<int>(d.roll(1, 30));
  w.deadlines = d.chance(50);
  w.draft_percent = d.chance(50) ? 0 : static_cast<int>(d.roll(10, 100));
  w.suspend_percent = d.chance(50) ? 0 : static_cast<int>(d.roll(1, 30));
  if (d.chance(70)) o.max_logit_rows = o.max_sequences + d.roll(0, 12);
  w.callers = d.chance(60) ? 1 : static_cast<int>(d.roll(2, 4));
  w.constraint_percent = d.chance(50) ? 0 : 40;
  // Recurrent layers, alone or beside attention. Of dice of their own: they change no other world.
  if (Dice r(mix(o.hash_seed)); r.chance(35)) {
    if (r.chance(20)) o.groups.clear();
    const auto states = static_cast<int32_t>(r.chance(50) ? r.roll(2, 4) : r.roll(3, 20));
    o.groups.push_back({.block_bytes = 1, .num_blocks = states, .pages = oar::CachePages::kState});
    const auto rows = static_cast<int32_t>(r.chance(50) ? r.roll(2, 4) : r.roll(3, 20));
    o.groups.push_back({.block_bytes = 1, .num_blocks = rows, .pages = oar::CachePages::kRows});
    o.snapshot_tokens = r.chance(50) ? 0 : o.page_tokens * r.roll(1, 4);
  }
  if (Dice r(mix(o.hash_seed + 1)); r.chance(30)) o.phases = true;
  // A draft model's groups: whole contexts, a window, recurrent layers, in every mix.
  if (Dice r(mix(o.hash_seed + 2)); w.draft_percent > 0 && r.chance(40)) {
    const size_t target = o.groups.size();
    const auto kinds = static_cast<int>(r.roll(1, 7));
    const auto pages = static_cast<int32_t>((o.max_context + o.page_tokens - 1) / o.page_tokens);
    const auto some = [&](int32_t least) {
      return static_cast<int32_t>(r.chance(50) ? r.roll(least, least + 2) : r.roll(least, 4 * least));
    };
    if (kinds & 1) o.groups.push_back({0, 1, some(pages)});
    if (kinds & 2) o.groups.push_back({r.roll(2, 10), 1, some(pages + 1)});
    if (kinds & 4) {
      o.groups.push_back({.block_bytes = 1, .num_blocks = some(3), .pages = oar::CachePages::kState});
      o.groups.push_back({.block_bytes = 1, .num_blocks = some(3), .pages = oar::CachePages::kRows});
    }
    o.draft_groups = static_cast<int32_t>(o.groups.size() - target);
  }
  o.vocab_size = w.vocab;
  return w;
}

}  // namespace oar_test
