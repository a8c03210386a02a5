// What the engine thread knows of a request: RequestState (shared by its choices) and Sequence (one growing
// token timeline and its block tables). Plain data; Scheduler drives it, Sampler keeps its counters in it.
//
// A request is one sequence until its prompt is computed; there it forks into one sequence per open choice.
//
//   positions   0 ........ committed ........ computed ........ known ........ known + pending
//               KV written, host has seen it | in flight       | to compute   | sampled on the device, not
//               yet seen
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/runtime/core/block_manager.h"
#include "engine/runtime/core/draft_pacer.h"
#include "engine/runtime/core/fair_shares.h"
#include "engine/runtime/core/request.h"
#include "engine/runtime/core/sample_spec.h"

namespace oar {

enum class SequenceState : uint8_t {
  kFree,       // in the slab
  kWaiting,    // holds no blocks; computed == 0
  kRunning,    // holds blocks
  kSuspended,  // as kWaiting, but not to be admitted before its reader has caught up
  kFinished,   // holds no blocks; its slot is reused after Scheduler::reclaim()
};

struct RequestState {
  uint64_t id = 0;  // grows with arrival
  FairShares::Ticket ticket;
  int64_t generated = 0;  // tokens of all choices
  Request request;
  int64_t max_length = 0;  // tokens of a choice, prompt included
  uint64_t seed = 0;       // choice i draws from the stream of seed + i
  int32_t open_choices = 0;
  std::vector<bool> open;      // [n]
  std::vector<int32_t> slots;  // [n] of the choices; before the fork all name the one sequence
  bool forked = false;
  bool ended = false;  // all finish events are out
  int64_t cached_tokens = 0;
  int64_t prompt_computed = 0;  // prompt rows counted, each once
  int64_t prompt_told = -1;     // of them, what was told, where that is asked for; -1: nothing
  Clock::time_point submitted, scheduled;
  // Rows whose logits give prompt log-probabilities are asked for in order: row i tells of token i + 1.
  int64_t prompt_rows_asked = 0;
  std::vector<std::vector<TokenLogprob>> prompt_logprobs;

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  bool wants_prompt_logprobs() const { return request.sampling.prompt_logprobs >= 0; }
};

struct Sequence {
  SequenceState state = SequenceState::kFree;
  RequestState* request = nullptr;
  int32_t index = 0;  // choice; before the fork the lowest open one
  int32_t slot = 0;   // in the slab
  // Who comes first, everywhere: the lower tag, of equal ones the lower id of the request, then the lower
  // choice. From the request's ticket; later only when it made way for another caller.
  int64_t tag = 0;
  // In-flight work names (slot, version). `token_version` changes when sampled tokens in flight no longer
  // count, `block_version` when written positions in flight no longer count.
  uint64_t token_version = 0, block_version = 0;

  std::vector<int32_t> output;  // known tokens after the prompt
  int32_t pending = 0;          // sampled in flight
  int32_t pending_sample = 0;   // the newest one's index in its step
  int64_t computed = 0, committed = 0;
  int64_t followed = 0;    // positions that the draft model has computed, drafts in flight among them
  uint64_t forked_at = 0;  // the step whose last row of the prompt it shares with other choices
  // Proposed for the next step, behind the known tokens; next() takes what it has room for.
  std::vector<int32_t> drafts;
  DraftChance chance;   // how often they were right
  int32_t drafted = 0;  // of them, in flight: until its commit nobody knows where the sequence goes on
  BlockTables blocks;
  SamplerState sampler;
  std::unique_ptr<ConstraintCursor> cursor;  // behind the known tokens; from the fork on, when constrained
  Status error;                              // why this choice alone ended with kError

  int32_t planned = 0;        // rows in the step being built
  int32_t planned_extra = 0;  // rows of logits beyond the one every sequence may have
  int64_t preemptions = 0, accepted_drafts = 0, rejected_drafts = 0, verified_drafts = 0;
  Clock::time_point first_token;
  int32_t prev = -1, next = -1;  // neighbours in the waiting or running list

  TokenView tokens() const { return {request->request.prompt, output}; }
  int64_t known() const { return request->prompt_size() + static_cast<int64_t>(output.size()); }
  int64_t total() const { return known() + pending; }
  int64_t uncomputed() const { return total() - computed; }
  // Its next row is of its prompt.
  bool in_prompt() const { return computed < request->prompt_size(); }
  // Its next row is the single row of a decode.
  bool decodes() const { return uncomputed() == 1 && drafted == 0 && !at_end(); }
  // And draft rows may follow it.
  bool takes_drafts() const {
    return state == SequenceState::kRunning && request->forked && pending == 0 && decodes();
  }
  // Nothing more to compute: the tokens in flight reach the end.
  bool at_end() const { return request->forked && total() >= request->max_length; }
};

}  // namespace oar
