// A step of the real plan allocates nothing once its buffers have their size: decodes, prefill chunks and any
// mix, in every architecture.
#include "tests/models/runner_fixture.h"
#include "tests/runtime/counting_allocator.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {

using namespace oar_test;

// A batch of sequences of `lengths` new tokens each, behind `context` tokens; owns what oar::Batch only
// points to.
struct OwnedBatch {
  std::vector<int32_t> tokens, positions, seq_start{0}, context_len, rows, slots, tables;
  std::vector<oar::Batch::Group> groups;

  OwnedBatch(const RunnerFixture& model, const std::vector<int32_t>& lengths, int32_t context) {
    const int32_t page = model.page();
    constexpr int32_t kBlocksEach = 4;
    for (size_t b = 0; b < lengths.size(); ++b) {
      const auto first = static_cast<int32_t>(b) * kBlocksEach;
      for (int32_t k = 0; k < lengths[b]; ++k) {
        const int32_t p = context + k;
        tokens.push_back((7 * p + static_cast<int32_t>(b)) % static_cast<int32_t>(model.vocab()));
        positions.push_back(p);
        slots.push_back((first + p / page) * page + p % page);
      }
      seq_start.push_back(static_cast<int32_t>(tokens.size()));
      context_len.push_back(context + lengths[b]);
      rows.push_back(seq_start.back() - 1);
      for (int32_t k = 0; k < kBlocksEach; ++k) tables.push_back(first + k);
    }
    groups.assign(model.runner->limits().groups.size(), {slots, tables, kBlocksEach});
  }
  oar::Batch view() const { return {tokens, positions, seq_start, context_len, rows, groups}; }
};

}  // namespace

TEST_CASE("a step of the plan allocates nothing") {
  oar_test::Sample sample;
  for (const std::string& name : all_golden_names()) {
    for (const char* weights : {"auto", "int8"}) {
      if (!sample.take()) continue;
      INFO(name << " " << weights);
      oar::LanguageModelOptions options;
      options.threads = 1;  // all work on this thread, whose allocations are counted
      options.max_batch_tokens = 64;
      options.max_sequences = 8;
      options.page_tokens = 16;
      options.weights = weights;
      RunnerFixture model(write_tiny_model(load_tiny_golden(name), TinyDtype::bf16), options);
      const OwnedBatch prefill(model, {9, 16, 3, 12}, 0), decode(model, {1, 1, 1, 1}, 16),
          mixed(model, {1, 20, 1, 5}, 16);
      const oar::Batch steps[] = {prefill.view(), decode.view(), mixed.view()};
      for (const oar::Batch& step : steps) REQUIRE_OK(model.runner->run(step));  // buffers at their size
      const int64_t before = allocations();
      for (int round = 0; round < 3; ++round)
        for (const oar::Batch& step : steps)
          if (!model.runner->run(step).ok()) FAIL("a step failed");
      CHECK(allocations() == before);
    }
  }
}
