#include "tests/models/runner_fixture.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "engine/runtime/quantize_weights.h"
#include "tests/support/catch.h"

namespace oar_test {
using namespace oar;

namespace {
template <class T>
T must(Result<T> r) {
  if (!r.ok()) throw std::runtime_error(r.status().to_string());
  return std::move(r).value();
}
}  // namespace

Checkpoint load_with_weights(const std::string& path, const std::string& weights) {
  ThreadPool pool(ThreadPoolOptions{.threads = 2});
  return must(quantize_at_load(must(load_checkpoint(path)), weights, {"", 0}, pool, {}, {}));
}

Tensor in_format(const Tensor& w, Format format, std::mt19937& rng) {
  const Tensor f32 = must(to_f32(w));
  Tensor out = must(Tensor::allocate(w.shape(), format));
  auto* bytes = static_cast<uint8_t*>(out.mutable_data());
  if (!format.info().encode) {
    for (uint64_t i = 0; i < out.bytes(); ++i) bytes[i] = static_cast<uint8_t>(rng() % 0x30);
    return out;
  }
  const int64_t cols = w.shape().cols();
  for (int64_t r = 0; r < w.shape().rows(); ++r)
    format.encode_row(f32.values<float>().data() + r * cols, cols, bytes + r * format.stride(cols));
  return out;
}

RunnerFixture::RunnerFixture(const std::string& path, LanguageModelOptions options, int32_t num_blocks)
    : RunnerFixture(must(load_checkpoint(path)), std::move(options), num_blocks) {}

RunnerFixture::RunnerFixture(Checkpoint opened, LanguageModelOptions options, int32_t num_blocks,
                             const std::function<void(ModelConfig&)>& edit,
                             const std::function<Status(Graph&)>& rewrite)
    : checkpoint(std::move(opened)) {
  config = must(read_model_config(checkpoint.config));
  if (edit) edit(config);
  ServingGraph graph = must(build_serving_graph(checkpoint, config, options, {}, rewrite));
  const size_t groups = graph.layout.groups.size();
  ServingPlan serving =
      must(compile_serving_plan(std::move(graph), config, options, must(make_backend(options)), {}));
  adapters = serving.adapters;
  runner = must(make_plan_runner(std::move(serving), std::vector<int32_t>(groups, num_blocks)));
}

std::vector<int32_t> RunnerFixture::blocks(size_t tokens, int32_t first) const {
  std::vector<int32_t> out;
  for (size_t t = 0; t < tokens; t += static_cast<size_t>(page())) out.push_back(first++);
  return out;
}

std::vector<float> RunnerFixture::run(const std::vector<Chunk>& chunks, int64_t prompts) {
  std::vector<int32_t> tokens, positions, seq_start{0}, context_len, rows, slots, with;
  size_t max_blocks = 1;
  for (const Chunk& c : chunks) max_blocks = std::max(max_blocks, c.blocks.size());
  std::vector<int32_t> tables(chunks.size() * max_blocks, 0);
  for (size_t b = 0; b < chunks.size(); ++b) {
    const Chunk& c = chunks[b];
    for (size_t k = 0; k < c.tokens.size(); ++k) {
      const int32_t p = c.begin + static_cast<int32_t>(k);
      if (c.all_logits || k + 1 == c.tokens.size()) rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(c.tokens[k]);
      positions.push_back(p);
      with.push_back(c.adapter);
      slots.push_back(c.blocks.at(static_cast<size_t>(p / page())) * page() + p % page());
    }
    seq_start.push_back(static_cast<int32_t>(tokens.size()));
    context_len.push_back(c.begin + static_cast<int32_t>(c.tokens.size()));
    std::copy(c.blocks.begin(), c.blocks.end(), tables.begin() + static_cast<int64_t>(b * max_blocks));
  }
  std::vector<int32_t> firsts, first_slots;
  for (const Chunk& c : chunks) {
    firsts.push_back(c.blocks[0]);
    for (size_t k = 0; k < c.tokens.size(); ++k) {
      const int32_t p = c.begin + static_cast<int32_t>(k);
      first_slots.push_back(p < page() ? c.blocks[0] * page() + p : -1);
    }
  }
  std::vector<Batch::Group> groups;
  for (const CacheGroup& g : runner->limits().groups) {
    if (g.pages == CachePages::kFirst) groups.push_back({first_slots, firsts, 1});
    else groups.push_back({slots, tables, static_cast<int64_t>(max_blocks)});
  }
  const auto logits =
      must(runner->run({tokens, positions, seq_start, context_len, rows, groups, with, prompts}));
  return {logits.begin(), logits.end()};
}

double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, scale = 0;
  for (size_t k = 0; k < a.size(); ++k) {
    if (!std::isfinite(a[k])) return INFINITY;
    worst = std::max(worst, std::abs(static_cast<double>(a[k]) - b[k]));
    scale = std::max(scale, std::abs(static_cast<double>(b[k])));
  }
  return worst / scale;
}

}  // namespace oar_test
