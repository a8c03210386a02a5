#include "engine/tune/measure/eval_model.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/weights.h"
#include "engine/loader/peft.h"
#include "engine/runtime/adapters.h"
#include "engine/runtime/core/sampler.h"
#include "kernels/kv_quant.h"

namespace oar {

ModelBits model_bits(const ServingGraph& serving, int32_t page_tokens) {
  ModelBits out;
  const Graph& graph = serving.model.graph;
  const std::vector<int> producers = graph.producers();
  const int head = graph.outputs().empty() ? -1 : producers[graph.outputs()[0].value];
  std::set<ValueId> counted;
  uint64_t head_bytes = 0, head_weights = 0;
  for_each_matrix(graph, [&](size_t node, ValueId id, Format format) {
    if (!counted.insert(id).second) return;
    counted.insert(weight_source(graph, graph.nodes(), id));
    const DimVector& shape = graph.value(id).type.shape;
    const int64_t rows = shape[0].const_value(), cols = shape.back().const_value();
    const auto bytes = static_cast<uint64_t>(format.row_bytes(cols).value_or(0) * rows);
    out.linear_bytes += bytes;
    out.weights += static_cast<uint64_t>(rows * cols);
    if (static_cast<int>(node) == head) {
      head_bytes += bytes;
      head_weights += static_cast<uint64_t>(rows * cols);
    }
  });
  for (size_t id = 0; id < graph.num_values(); ++id) {
    const Value& v = graph.value(static_cast<ValueId>(id));
    if (v.kind == ValueKind::kConstant && !counted.contains(static_cast<ValueId>(id))) {
      out.other_bytes += v.constant.bytes();
    }
  }
  const auto per_weight = [](uint64_t bytes, uint64_t weights) {
    return weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(weights) : 0.0;
  };
  out.bits_per_weight = per_weight(out.linear_bytes, out.weights);
  out.body_bits_per_weight = per_weight(out.linear_bytes - head_bytes, out.weights - head_weights);
  for (const auto& group : serving.layout.groups) {
    if (group.pages == ServeLayout::Pages::kAll)
      out.kv_bytes_per_token += static_cast<double>(group.block_bytes) / page_tokens;
  }
  for (const Node& node : graph.nodes()) {
    const bool quantized = node.is("quant_kv_append");
    if (!node.is("kv_append") && !quantized) continue;
    const int64_t heads = node.attrs.get_int("kv_heads"), dim = node.attrs.get_int("head_dim");
    const int64_t latent = node.attrs.get_int("latent");  // one serves as both
    const auto elements = static_cast<uint64_t>((latent > 0 ? 1 : 2) * heads * dim);
    out.kv_elements += elements;
    if (!quantized) continue;
    QuantKvShape shape;
    shape.keys = static_cast<KvCode>(node.attrs.get_int("key_code"));
    shape.values = static_cast<KvCode>(node.attrs.get_int("value_code"));
    shape.page_tokens = page_tokens;
    shape.kv_heads = static_cast<int32_t>(heads);
    shape.head_dim = static_cast<int32_t>(dim);
    shape.latent = static_cast<uint16_t>(latent);
    out.quantized_kv_elements += elements;
    out.quantized_kv_bytes_per_token += static_cast<double>(quant_kv_block_bytes(shape)) / page_tokens;
  }
  return out;
}

double open_share(const std::vector<std::vector<int32_t>>& windows, int32_t page_tokens) {
  double seen = 0, open = 0;
  for (const auto& window : windows) {
    for (int64_t p = 0; p + 1 < static_cast<int64_t>(window.size()); ++p) {
      const int64_t own = p % page_tokens + 1;
      seen += static_cast<double>(p + 1);
      open += static_cast<double>(own + std::min<int64_t>(kKvSinkTokens, p + 1 - own));
    }
  }
  return seen > 0 ? open / seen : 0;
}

Result<std::unique_ptr<EvalModel>> EvalModel::open(const Checkpoint& checkpoint, LanguageModelOptions options,
                                                   std::shared_ptr<Backend> backend, int64_t rows,
                                                   const Progress& progress,
                                                   const std::function<Status(Graph&)>& edit) {
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  auto out = std::unique_ptr<EvalModel>(new EvalModel());
  options.max_batch_tokens = rows;
  options.max_sequences = rows;  // rows of logits
  OAR_ASSIGN(options, with_kv_of(*backend, checkpoint, config, std::move(options)));
  OAR_ASSIGN(ServingGraph graph, build_serving_graph(checkpoint, config, options, {}, edit));
  out->backend_ = backend;
  out->rows_ = rows;
  out->max_context_ = graph.max_context;
  out->weights_ = graph.weights;
  out->kv_ = graph.kv;
  out->rotation_ = graph.rotation;
  out->bits_ = model_bits(graph, options.page_tokens);
  out->bytes_ = adapter_bytes(graph.adapters);
  OAR_ASSIGN(ServingPlan serving,
             compile_serving_plan(std::move(graph), config, options, std::move(backend), progress));
  const auto blocks =
      static_cast<int32_t>((out->max_context_ + options.page_tokens - 1) / options.page_tokens);
  std::vector<int32_t> pool(serving.layout.groups.size(), blocks);
  const Run& run = *serving.run;
  out->bytes_ += run.program().copied_weight_bytes() + run.arena_bytes() + run.scratch_bytes() +
                 pool_bytes(serving.layout, pool);
  out->adapters_ = serving.adapters;
  OAR_ASSIGN(out->runner_, make_plan_runner(std::move(serving), std::move(pool)));
  out->table_.resize(static_cast<size_t>(blocks));
  std::iota(out->table_.begin(), out->table_.end(), 0);  // block k holds page k
  out->logit_rows_.resize(static_cast<size_t>(rows));
  std::iota(out->logit_rows_.begin(), out->logit_rows_.end(), 0);
  return out;
}

Result<std::span<const float>> EvalModel::append(std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count < 1 || count > rows_ || length_ + count > max_context_) {
    return invalid_argument(cat("a chunk of ", count, " tokens behind ", length_, ": at most ", rows_,
                                " at once and ", max_context_, " together"));
  }
  for (const int32_t t : tokens) {
    if (t < 0 || t >= vocab()) return invalid_argument(cat("token ", t, " is outside the vocabulary"));
  }
  positions_.resize(tokens.size());
  std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(length_));
  const int32_t seq_start[] = {0, static_cast<int32_t>(count)};
  const int32_t context_len[] = {static_cast<int32_t>(length_ + count)};
  // Block k holds page k, so a token's slot is its position.
  const auto pages = static_cast<int64_t>(table_.size());
  std::vector<Batch::Group> groups;
  for (const CacheGroup& g : runner_->limits().groups) {
    // Of a first page, slots beyond it would be other blocks' own; nobody reads those.
    groups.push_back({positions_, table_, g.pages == CachePages::kFirst ? 1 : pages});
  }
  const std::span<const int32_t> rows(logit_rows_.data(), tokens.size());
  adapter_rows_.assign(adapter_ != nullptr ? tokens.size() : 0, adapter_ != nullptr ? adapter_->slot : -1);
  auto logits = runner_->run({tokens, positions_, seq_start, context_len, rows, groups, adapter_rows_});
  length_ += count;
  return logits;
}

Result<std::vector<float>> EvalModel::log_probabilities(std::span<const int32_t> tokens) {
  reset();
  Sampler sampler(vocab());
  std::vector<TokenLogprob> told;
  std::vector<float> out(std::min<size_t>(tokens.size(), 1));
  const auto width = static_cast<size_t>(vocab());
  while (out.size() < tokens.size()) {
    const size_t begin = out.size() - 1,
                 count = std::min(static_cast<size_t>(rows_), tokens.size() - 1 - begin);
    OAR_ASSIGN(const std::span<const float> logits, append(tokens.subspan(begin, count)));
    for (size_t r = 0; r < count; ++r) {
      OAR_RETURN_IF_ERROR(sampler.logprobs(logits.subspan(r * width, width), tokens[begin + r + 1], 0, told));
      out.push_back(told.front().logprob);
    }
  }
  return out;
}

Status EvalModel::use_adapter(const PeftAdapter& adapter) {
  constexpr const char* kName = "measured";
  if (adapters_ == nullptr)
    return Status(StatusCode::kFailedPrecondition, "the model was opened without a slot for adapters");
  adapter_ = nullptr;
  if (adapters_->find(kName) != nullptr) OAR_RETURN_IF_ERROR(adapters_->unload(kName));
  OAR_RETURN_IF_ERROR(adapters_->load(kName, adapter, "").status());
  adapter_ = adapters_->find(kName);
  return ok_status();
}

Status measure_window(EvalModel& reference, EvalModel& candidate, std::span<const int32_t> window,
                      Divergence& out, int64_t first) {
  reference.reset();
  candidate.reset();
  const auto vocab = static_cast<size_t>(reference.vocab());
  const size_t predicting = window.size() - 1;  // the last token's row predicts nothing that is known
  std::vector<RowDivergence> rows;
  for (size_t begin = 0; begin < predicting;) {
    const size_t count = std::min(static_cast<size_t>(reference.rows()), predicting - begin);
    const auto chunk = window.subspan(begin, count);
    OAR_ASSIGN(const std::span<const float> p, reference.append(chunk));
    OAR_ASSIGN(const std::span<const float> q, candidate.append(chunk));
    rows.resize(count);
    reference.backend().host_pool().parallel_for(
        static_cast<int64_t>(count), 4, [&](int64_t low, int64_t high) {
          for (auto r = static_cast<size_t>(low); r < static_cast<size_t>(high); ++r) {
            rows[r] = row_divergence(p.subspan(r * vocab, vocab), q.subspan(r * vocab, vocab),
                                     window[begin + r + 1]);
          }
        });
    for (size_t r = 0; r < count; ++r) {
      if (static_cast<int64_t>(begin + r) >= first) out.add(rows[r]);
    }
    begin += count;
  }
  return ok_status();
}

}  // namespace oar
