// A checkpoint on disk, lowered and given a KV pool: what tests drive batch by batch, without an Engine.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/runtime/adapters.h"
#include "engine/runtime/serving_plan.h"

namespace oar_test {

// One sequence's chunk in a batch: its tokens from position `begin`, its blocks, and whether logits of every
// row are wanted (else of the last only).
struct Chunk {
  std::vector<int32_t> tokens;
  int32_t begin = 0;
  std::vector<int32_t> blocks;
  bool all_logits = true;
  int32_t adapter = -1;  // slot
};

// max |a - b| / max |b|; infinite when an `a` is not finite. Requires equal sizes.
double relative_error(const std::vector<float>& a, const std::vector<float>& b);

// Places of a layer at which kernels of 16 bits round, each to 2^-9 (golden_test.cc has the derivation).
inline double rounded_places(const oar::ModelConfig& c) {
  const double scores = std::max(1.0, c.attention_scale * std::sqrt(static_cast<double>(c.head_dim)));
  const double places = 6 + 2 * (1 + c.norm_offset) * (1 + c.norm_offset) * scores;
  return c.scan.heads > 0 ? 2 * places : places;  // a state keeps the errors of the rows before
}

// The model of a folder with its weights as a load makes them (`--weights`).
oar::Checkpoint load_with_weights(const std::string& path, const std::string& weights);

// Rows of `w` in `format`; random small bytes where the format has no encoder (every f16 in them is finite
// and below 0.11).
oar::Tensor in_format(const oar::Tensor& w, oar::Format format, std::mt19937& rng);

class RunnerFixture {
 public:
  // Throws on any fault, which fails the test.
  RunnerFixture(const std::string& path, oar::LanguageModelOptions options, int32_t num_blocks = 64);
  // `edit` changes the config, `rewrite` the graph in front of its cache.
  RunnerFixture(oar::Checkpoint checkpoint, oar::LanguageModelOptions options, int32_t num_blocks = 64,
                const std::function<void(oar::ModelConfig&)>& edit = {},
                const std::function<oar::Status(oar::Graph&)>& rewrite = {});

  // Logits of the wanted rows, chunk after chunk. `prompts`: Batch::prompts.
  std::vector<float> run(const std::vector<Chunk>& chunks, int64_t prompts = 0);
  // Of one sequence from its start, all rows.
  std::vector<float> run_prompt(const std::vector<int32_t>& tokens) {
    return run({{tokens, 0, blocks(tokens.size()), true}},
               runner->limits().phases ? static_cast<int64_t>(tokens.size()) : 0);
  }
  int64_t vocab() const { return config.vocab; }
  int32_t page() const { return runner->limits().page_tokens; }
  // Blocks for `tokens` tokens starting at block `first`.
  std::vector<int32_t> blocks(size_t tokens, int32_t first = 0) const;

  oar::Checkpoint checkpoint;
  oar::ModelConfig config;
  std::unique_ptr<oar::HostRunner> runner;
  std::shared_ptr<oar::Adapters> adapters;  // null without slots
};

}  // namespace oar_test
