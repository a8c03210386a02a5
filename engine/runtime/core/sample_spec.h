// SampleSpec: what to draw from the logits of one step, and SampleResult: what was drawn. One description for
// the sampler of the host and for a device's: rows, parameters, counters of draws, words of masks. Masks are
// an input of sampling, not of the forward pass: a spec is made once the step before has been committed, when
// the rows of this one may long be running.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "engine/runtime/core/request.h"

namespace oar {

// Distinct tokens of one sequence with their counts: open addressing, insertion order kept for scanning.
class TokenCounts {
 public:
  struct Entry {
    int32_t token;
    int32_t output;  // occurrences in the output; 0: in the prompt only
  };
  // Room for `distinct` tokens without allocating again.
  void reset(size_t distinct);
  void add(int32_t token, bool output);
  std::span<const Entry> entries() const { return entries_; }

 private:
  void grow(size_t buckets);
  std::vector<Entry> entries_;
  std::vector<int32_t> table_;  // index into entries_, -1: empty; a power of two, at most half full
};

// Per choice; engine thread only.
struct SamplerState {
  bool ready = false;
  bool counts_tokens = false;  // some penalty is on
  uint64_t seed = 0;
  size_t observed = 0;  // tokens of output
  TokenCounts counts;

  // Prepares a choice: its seed, and counts of its prompt when a penalty needs them. `distinct`: different
  // tokens at most.
  void start(const SamplingParams& params, uint64_t stream, std::span<const int32_t> prompt,
             int64_t distinct);
  // One more token of output.
  void observe(int32_t token) {
    ++observed;
    if (counts_tokens) counts.add(token, true);
  }
};

// Which tokens may be drawn at one position.
struct AllowedTokens {
  std::span<const int32_t> banned;  // not these
  std::span<const uint32_t> mask;   // of all others those whose bit t % 32 of word t / 32 is set; empty: all
  std::string_view mask_field;      // the request's field that the mask comes from, for messages
};

struct Sampled {
  int32_t token = -1;
  float logprob = 0.f;                     // of `token` under the raw logits; when asked
  std::vector<TokenLogprob> top_logprobs;  // descending, ties by id; when asked
};

struct SampleSpec {
  // A choice's rows of logits: that of its last known token and, behind it, those of its draft tokens. They
  // are drawn one after the other, each with the counter of its own position, while a draw equals the next
  // draft: so what is drawn never depends on the drafts.
  struct Chain {
    const SamplingParams* params = nullptr;  // null: nothing is drawn
    // Seed and counts. A sampler that draws at once counts what it draws; else the scheduler does, when the
    // tokens come back.
    SamplerState* state = nullptr;
    int64_t counter = 0;              // of the first row: tokens of output before it
    int32_t logit_row = 0;            // the first; the others follow
    std::span<const int32_t> drafts;  // rows - 1
    std::span<const int32_t> banned;  // at counters below banned_before
    int64_t banned_before = 0;
    std::span<const uint32_t> masks;  // [rows, mask_words]; empty: none
    std::string_view mask_field;
  };
  // A row of a prompt: how likely the prompt's next token was, and the `count` most likely ones. token -1:
  // nobody wants to know any longer.
  struct PromptRow {
    int32_t logit_row, token, count;
  };
  std::vector<Chain> chains;
  std::vector<PromptRow> prompt_rows;
  size_t mask_words = 0;

  // Where the masks and the banned tokens of this step lie.
  std::vector<uint32_t> mask_memory;
  std::vector<int32_t> banned_memory;
};

// Filled by a sampler; its memory is reused.
struct SampleResult {
  struct Chain {
    int32_t first = 0, count = 0;  // into draws and tokens
    Status status;                 // why nothing could be drawn behind these
  };
  struct PromptRow {
    std::vector<TokenLogprob> logprobs;  // the prompt's token first, then the alternatives
    Status status;
  };
  std::vector<Chain> chains;
  std::vector<Sampled> draws;   // of all chains, one chain behind the other; may be longer
  std::vector<int32_t> tokens;  // theirs
  std::vector<PromptRow> prompt_rows;

  std::span<const int32_t> tokens_of(size_t chain) const {
    const Chain& c = chains[chain];
    return std::span(tokens).subspan(static_cast<size_t>(c.first), static_cast<size_t>(c.count));
  }
};

}  // namespace oar
