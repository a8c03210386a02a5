// Scheduler: which tokens run in the next step. Continuous batching with one token budget for decodes and
// prefill chunks, preemption by recompute, callers by their shares. Pure logic: no device, no threads, time
// is passed in, and the same calls give the same steps. README.md states what it guarantees and why.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/runtime/core/block_manager.h"
#include "engine/runtime/core/model_runner.h"
#include "engine/runtime/core/request.h"
#include "engine/runtime/core/sample_spec.h"
#include "engine/runtime/core/sequence.h"

namespace oar {

struct SchedulerOptions {
  int64_t vocab_size = 0;
  int64_t max_context = 0;
  int64_t max_batch_tokens = 0;  // rows of one step
  int64_t max_sequences = 0;     // running at once; <= max_batch_tokens
  int64_t max_logit_rows = 0;    // rows of logits of one step; at least max_sequences, and no less if 0
  int32_t page_tokens = 0;
  std::vector<CacheGroup> groups;
  int32_t draft_groups = 0;  // the last of them, which a draft model keeps
  std::vector<int32_t> eos_token_ids;
  bool prefix_cache = true;
  uint64_t hash_seed = 0;
  int64_t snapshot_tokens = 0;  // of recurrent state, behind every so many; 0: of prompts and answers alone
  // Steps that may be in flight when next() is called: 0 is lockstep, 1 overlaps host and device.
  int32_t depth = 0;
  // RunnerLimits::phases. A token's row is of the same phase whenever it is computed: of a request's prompt,
  // or generated, also where it is computed again. A prompt finds only pages that rows of prompts wrote; with
  // `mixed_prefix` pages of generated tokens too, and then what it found decides about roundings.
  bool phases = false, mixed_prefix = false;
};

// A draft that a model is still to name: the step is planned, and its blocks are there.
inline constexpr int32_t kToBeDrafted = -1;

// One step: rows for the runner, and who gets what comes back. Filled by next(); its memory is reused.
struct Step {
  struct Entry {
    int32_t slot;
    uint64_t block_version;
    int64_t begin, end;  // positions that the step computes, those of drafts apart
  };
  struct Sample {
    int32_t slot;
    uint64_t token_version, block_version;
    int32_t logit_row;            // into Batch::logit_rows; the choices of a fork share one
    int32_t first_draft, drafts;  // in draft_tokens; their rows of logits follow logit_row
    bool ends = false;            // specify() found that the text is whole and nothing may follow
  };
  struct PromptRow {
    int32_t slot;
    uint64_t token_version;
    int32_t logit_row;
    int64_t position;  // its logits tell of the token at position + 1
  };
  uint64_t number = 0;
  std::vector<int32_t> tokens;  // >= 0: the token; ~s: what sample s of the step before drew (depth 1 only)
  std::vector<int32_t> positions, seq_start, context_len, logit_rows, adapters;
  std::vector<GroupAddresses> groups;  // those of the model itself
  std::vector<BlockCopy> copies;       // to perform in this order before the rows
  std::vector<Entry> entries;          // one per sequence
  std::vector<Sample> samples;
  std::vector<PromptRow> prompt_rows;
  std::vector<int32_t> begun;  // slots whose prompt begins, of requests that want to hear of that
  std::vector<int32_t> draft_tokens;
  int64_t prompts = 0;         // Batch::prompts
  int64_t prefill_tokens = 0;  // rows that belong to no decode: neither its single row nor its drafts
  std::vector<Batch::Group> batch_groups;

  bool empty() const { return entries.empty(); }
  std::span<const int32_t> drafts_of(const Sample& s) const {
    return std::span(draft_tokens).subspan(static_cast<size_t>(s.first_draft), static_cast<size_t>(s.drafts));
  }
  // Points into this object.
  Batch batch();
};

// Something to tell a caller. `request` and `slot` are valid until reclaim().
struct Outcome {
  RequestState* request;
  int32_t index;
  int32_t slot;    // -1: a choice that ended before the fork
  int32_t sample;  // in the committed step; -1: none
  int32_t draw;    // of that sample's tokens; -1: the token was not sampled
  bool has_token;
  int32_t token;
  FinishReason finish;
  int32_t stop_token;
  int64_t computed = -1;  // of the prompt, when this tells of its progress alone
};

struct SchedulerStats {
  int64_t running = 0, waiting = 0, suspended = 0;  // sequences
  uint64_t preemptions = 0, prompt_tokens = 0, generation_tokens = 0, prefix_queries = 0, prefix_hits = 0;
  uint64_t accepted_drafts = 0, rejected_drafts = 0;   // draft tokens that were verified
  uint64_t verified_drafts = 0;                        // steps of a sequence that verified any
  std::array<uint64_t, kCountedDrafts> accepted_at{};  // of the first token of a draft, the second, ...
};

// Engine thread only. next(), commit() and expire() do not allocate once the requests at hand have been
// admitted.
class Scheduler {
 public:
  // FAILED_PRECONDITION names the limit that does not hold one sequence.
  static Result<std::unique_ptr<Scheduler>> create(const SchedulerOptions& options);

  // Tokens of the longest sequence that fits the pool alone and the context. Prompts must be shorter.
  int64_t max_length() const { return max_length_; }

  // OUT_OF_RANGE when the prompt can never fit. Constant, so any thread may ask.
  Status check_length(const Request& request) const;
  // Queues a validated request; `id` must grow from call to call. OUT_OF_RANGE as check_length().
  Status add(uint64_t id, Request request, uint64_t seed, Clock::time_point now);
  // Each open choice ends with `reason`; unknown ids are ignored. Works in every state.
  void cancel(uint64_t id, FinishReason reason, std::vector<Outcome>& out);
  // What a request computed, and found, is not found again: for one whose numbers are broken, before it is
  // cancelled. Unknown ids are ignored.
  void forget(uint64_t id);
  // One choice ends; what is in flight for it is dropped when it comes back.
  void finish_choice(uint64_t id, int32_t index, FinishReason reason, std::vector<Outcome>& out);
  // A request whose reader is behind leaves its slots and blocks, and comes back to its old place. Its pages
  // stay in the prefix cache as long as nobody else needs the room. Unknown ids are ignored.
  void suspend(uint64_t id);
  void resume(uint64_t id);
  // Ends what is past its deadline.
  void expire(Clock::time_point now, std::vector<Outcome>& out);
  // Ends everything.
  void cancel_all(FinishReason reason, std::vector<Outcome>& out);

  // Plans a step, with at most `prompt_rows` rows that are not the single row of a decode; when no decode has
  // a row, that does not count. False when there is nothing to run now: no work, or (depth 1) all of it waits
  // for a commit.
  bool next(Clock::time_point now, Step& step, int64_t prompt_rows = std::numeric_limits<int64_t>::max());
  // Draft tokens for the next step of a sequence that takes_drafts(): what may follow its known tokens. Kept
  // as far as its grammar, its end and stop tokens let them follow; returns how many that are. next()
  // verifies those it has rows for that nobody else wants, and forgets the others.
  int64_t propose(Sequence& s, std::span<const int32_t> drafts);
  // `count` drafts that are named once the step has been planned (DraftModel::draft).
  void propose(Sequence& s, int64_t count);
  // The tokens that may come next at output position `n`, where the cursor stands. False when the text is
  // whole and none may.
  bool allow(const Sequence& s, int64_t n, std::span<uint32_t> mask) const;
  // Groups of blocks, the draft model's apart, which follow them.
  int32_t target_groups() const { return blocks_.num_groups() - options_.draft_groups; }
  // Drafts that the next step can hold at most, one row of each running sequence counted.
  int64_t draft_room() const {
    return std::min(options_.max_batch_tokens, options_.max_logit_rows) - running_.size;
  }
  // Running sequences, in order: f(Sequence&).
  template <class F>
  void for_each_running(F&& f) {
    for (int32_t i = running_.head; i >= 0; i = sequence(i).next) f(sequence(i));
  }
  // How many sequences want their next token, and how many prompts are under way or wait, for a slot too.
  struct Demand {
    int64_t decodes = 0, prompts = 0;
  };
  Demand demand();
  // What to draw from the logits of `step`, chain i for sample i. Every step before it has been committed, so
  // that penalties and masks know all tokens. Points into `step`, `spec` and this scheduler.
  void specify(Step& step, SampleSpec& spec);
  // What a step's samples drew, in the order of next(): ordinarily one token each, the first of them the one
  // that rows in flight know as ~s. None takes the sample back: its last row runs again. Several append them
  // all; the rows of drafts among them stay as computed, others are computed. Tokens that a grammar leaves no
  // choice about follow at once. In all these cases samples of this sequence that are in flight behind this
  // step are dropped.
  void commit(Step& step, std::span<const std::span<const int32_t>> sampled, Clock::time_point now,
              std::vector<Outcome>& out);
  // That the prompts in Step::begun are under way, as a step that was planned, or found empty, says.
  void tell_begun(const Step& step, std::vector<Outcome>& out);
  // Frees finished slots; Outcomes handed out before are void.
  void reclaim();

  // Nothing to run; sequences may be suspended.
  bool idle() const { return running_.size == 0 && waiting_.size == 0; }
  bool empty() const { return idle() && suspended_.size == 0; }
  Clock::time_point next_deadline() const { return earliest_deadline_; }  // none is earlier
  // The sequence of an entry that still counts, or nullptr.
  Sequence* live(int32_t slot, uint64_t token_version);
  Sequence& sequence(int32_t slot) { return *slots_[static_cast<size_t>(slot)]; }
  SequenceStats sequence_stats(const Outcome& outcome, Clock::time_point now) const;
  SchedulerStats stats() const;
  void reset_stats() { stats_ = {}; }
  BlockManager& blocks() { return blocks_; }
  const BlockManager& blocks() const { return blocks_; }
  // Is `token` one at which this request stops?
  bool stops(const RequestState& request, int32_t token) const;
  // Walks everything; for tests.
  Status verify() const;

 private:
  // A doubly linked list through the sequences, in order of (tag, request id, choice).
  struct List {
    int32_t head = -1, tail = -1;
    int64_t size = 0;
  };
  explicit Scheduler(const SchedulerOptions& options, int64_t max_length);
  Sequence& take_slot(RequestState& request);
  static bool before(const Sequence& a, const Sequence& b);
  void insert(List& list, Sequence& s);
  void remove(List& list, Sequence& s);

  void clear(Step& step) const;
  void plan_decode(Sequence& s);
  void plan_prefill(Sequence& s, bool others_want);
  void plan_drafts(Sequence& s);
  void propose_forced(Sequence& s, int64_t most);
  int64_t planned_rows() const;
  bool admit(Sequence& s, Clock::time_point now);
  void make_way(Clock::time_point now);
  bool make_room(Sequence& s);
  void top_up();
  int64_t chunk(const Sequence& s, int64_t rows) const;
  void plan_rows(Sequence& s, int64_t rows);
  void vacate(Sequence& s);
  void preempt(Sequence& s);
  bool has_headroom(const Sequence& s) const;
  int64_t blocks_wanted(const Sequence& s, int32_t group) const;
  void emit_rows(Sequence& s);
  void fork(Sequence& s, int32_t logit_row);
  void add_sample(Sequence& s, int32_t logit_row);

  bool append(Sequence& s, int32_t token, int32_t sample, int32_t draw, Clock::time_point now,
              std::vector<Outcome>& out);
  bool follow_grammar(Sequence& s, int32_t sample, Clock::time_point now, std::vector<Outcome>& out);
  size_t mask_rows(Sequence& s, int64_t n, std::span<const int32_t> drafts, std::span<uint32_t> masks);
  void leave_window(Sequence& s);
  void name_last_state(Sequence& s) { blocks_.name_state(s.blocks, s.blocks.published - 1); }
  void tell_progress(Sequence& s, int64_t computed, std::vector<Outcome>& out);
  void drop_samples(Sequence& s);
  void count_drafts(Sequence& s, int64_t accepted, int64_t rejected);
  void take_back(Sequence& s, int64_t position);
  void finish(Sequence& s, const Outcome& outcome, std::vector<Outcome>& out);
  void end_choice(RequestState& r, int32_t index, FinishReason reason, std::vector<Outcome>& out);
  void end_request(RequestState& r, FinishReason reason, std::vector<Outcome>& out);

  SchedulerOptions options_;
  int64_t max_length_;
  BlockManager blocks_;
  FairShares shares_;
  std::unordered_map<uint64_t, std::unique_ptr<RequestState>> requests_;
  std::vector<std::unique_ptr<Sequence>> slots_;
  std::vector<int32_t> free_slots_, finished_slots_;
  std::vector<uint64_t> finished_requests_;
  List& list_of(const Sequence& s);

  List running_, waiting_, suspended_;
  uint64_t last_id_ = 0, step_number_ = 0;
  int32_t in_flight_ = 0;
  Clock::time_point earliest_deadline_ = Clock::time_point::max();  // a lower bound
  SchedulerStats stats_;

  size_t mask_words_;

  // The step being built.
  Step* step_ = nullptr;
  std::vector<int32_t> plan_;  // slots in row order
  int64_t rows_left_ = 0, logits_left_ = 0;
  bool preempted_ = false;
  // The waiting head that did not fit, and blocks_.releases() then: no use asking again before it moves.
  int32_t refused_slot_ = -1;
  uint64_t refused_at_ = 0;
  int32_t waited_ = 0;  // steps in a row without an admission while somebody waits
};

}  // namespace oar
