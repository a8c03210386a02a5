// DraftModel: a second, smaller model of the same tokens says what may follow. Its pages lie in groups of the
// same block manager, so its cache is shared, copied, preempted and found by prefix with the target's. It
// runs between planning a step and submitting it, when blocks for all rows are there: one forward pass for
// each position of a draft, with all sequences in it.
//
// A draft is drawn like the token it stands for: with the request's parameters, the mask of its grammar and
// the counter of its position. Two models that agree about a distribution then agree about the draw.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/runtime/core/draft_pacer.h"
#include "engine/runtime/core/host_runner.h"
#include "engine/runtime/core/sampler.h"
#include "engine/runtime/core/scheduler.h"

namespace oar {

// Engine thread only.
class DraftModel {
 public:
  // `vocab_size`: the target's. Where this model has fewer, the rest is never drafted.
  DraftModel(std::unique_ptr<HostRunner> runner, int64_t vocab_size, DraftPacer& pacer);

  const RunnerLimits& limits() const { return runner_->limits(); }
  // One row of one sequence, with nobody's blocks in use.
  Status warm_up();
  // Of a step's copies those in this model's groups, which begin at `first`; the others are left in `copies`.
  Status copy_blocks(std::vector<BlockCopy>& copies, int32_t first);
  // Names the drafts of a planned step that are kToBeDrafted. Where a chain ends early, at a token that ends
  // the text, its sample has fewer drafts than rows.
  Status draft(Scheduler& scheduler, Step& step);
  // Computes what the sequences of a submitted step have in pages that it completes, before they are
  // published. Behind the last full page a sequence is caught up with when it is drafted for.
  Status follow(Scheduler& scheduler, const Step& step);
  // Spent in forward passes since the last call.
  double take_seconds();

 private:
  // One sequence: its rows up to `end`, then `wanted` drafts behind its known tokens. The step itself begins
  // at `begin`; what lies before it is catching up.
  struct Chain {
    Sequence* sequence;
    int64_t position, begin, end;
    int32_t wanted, drawn;
    int32_t* drafts;  // [wanted]
    int32_t rows;     // in the pass being built
    bool done() const { return position == end; }
  };
  Status run_chains(Scheduler& scheduler);
  int64_t rows_of(const Chain& chain, int64_t left) const;
  Status forward(const Scheduler& scheduler, std::span<const float>& logits);
  bool draw(Scheduler& scheduler, Chain& chain, std::span<const float> logits);

  std::unique_ptr<HostRunner> runner_;
  DraftPacer& pacer_;
  const int64_t vocab_size_;
  const bool has_states_;  // recurrent layers
  Sampler sampler_;
  double seconds_ = 0;
  std::vector<Chain> chains_;
  std::vector<BlockCopy> copies_;
  Sampled drawn_;
  std::vector<float> row_;      // [V] where the vocabularies differ in size
  std::vector<uint32_t> mask_;  // [V / 32]
  // The batch of a pass.
  std::vector<int32_t> tokens_, positions_, seq_start_, context_len_, logit_rows_;
  std::vector<GroupAddresses> groups_;
  std::vector<Batch::Group> batch_groups_;
};

}  // namespace oar
