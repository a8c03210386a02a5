#include "engine/runtime/language_model.h"

#include <algorithm>
#include <chrono>

#include "engine/base/format.h"
#include "engine/models/config_reader.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tensor/charge.h"

namespace oar {
namespace {

template <class T>
void read_default(const json::object& o, const char* key, std::optional<T>& out) {
  const json::value* v = o.if_contains(key);
  if (v && v->is_number()) out = static_cast<T>(v->to_number<double>());
}

GenerationDefaults read_defaults(const json::object& o) {
  GenerationDefaults d;
  const json::value* sample = o.if_contains("do_sample");
  if (sample && sample->is_bool() && !sample->get_bool()) return d;
  read_default(o, "temperature", d.temperature);
  read_default(o, "top_p", d.top_p);
  read_default(o, "min_p", d.min_p);
  read_default(o, "repetition_penalty", d.repetition_penalty);
  read_default(o, "top_k", d.top_k);
  return d;
}

void add_ids(const json::object& o, const char* key, int64_t vocab, std::vector<int32_t>& ids) {
  const json::value* v = o.if_contains(key);
  if (!v) return;
  const auto add = [&](const json::value& x) {
    if (!x.is_int64() || x.get_int64() < 0 || x.get_int64() >= vocab) return;
    const auto id = static_cast<int32_t>(x.get_int64());
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  if (v->is_array()) {
    for (const json::value& x : v->get_array()) add(x);
  } else {
    add(*v);
  }
}

std::vector<int32_t> end_tokens(const Checkpoint& checkpoint, const ModelConfig& config,
                                const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  add_ids(checkpoint.tokenizer.generation_config, "eos_token_id", config.vocab, ids);
  add_ids(checkpoint.config, "eos_token_id", config.vocab, ids);
  if (const auto eos = tokenizer.eos_id();
      eos && *eos < config.vocab && std::find(ids.begin(), ids.end(), *eos) == ids.end()) {
    ids.push_back(*eos);
  }
  return ids;
}

// The one shared with other models where there is one; a device's memory has its own.
std::shared_ptr<MemoryBudget> memory_budget(const LanguageModelOptions& options,
                                            const std::optional<uint64_t>& on_device) {
  if (!on_device && options.resources.memory) return options.resources.memory;
  const uint64_t bytes = options.memory_bytes > 0
                             ? options.memory_bytes
                             : share_of(on_device.value_or(available_memory()), options.memory_percent);
  return on_device ? options.resources.devices->of(options.device, bytes) : MemoryBudget::make(bytes);
}

uint64_t count_parameters(const Checkpoint& checkpoint) {
  uint64_t n = 0;
  for (const auto& [name, t] : checkpoint.tensors) n += static_cast<uint64_t>(t.numel());
  return n;
}

}  // namespace

Result<std::unique_ptr<LanguageModel>> LanguageModel::load(const std::string& path,
                                                           const LanguageModelOptions& options,
                                                           const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const TrimMemoryAfter trim;
  OAR_ASSIGN(const ResolvedModel resolved, resolve_model(path));
  const std::string name = options.name.empty() ? resolved.name : options.name;
  OAR_ASSIGN(const std::shared_ptr<Backend> backend, make_backend(options));
  OAR_ASSIGN(const std::optional<uint64_t> on_device, backend->available_memory());
  const std::shared_ptr<MemoryBudget> budget = memory_budget(options, on_device);
  OAR_ASSIGN(Reservation reserved, budget->reserve(0, name));
  // From here on every large buffer takes its bytes out of one of these, or is refused.
  OAR_ASSIGN(Reservation beside_device, options.resources.reserve(name));
  const ChargeTo charge(on_device ? beside_device : reserved);
  LoadOptions load;
  load.mmap = options.use_mmap;
  OAR_ASSIGN(Checkpoint checkpoint, load_checkpoint(resolved.path, load, progress));
  for (const std::string& notice : checkpoint.notices) options.log(LogLevel::kWarning, notice);
  const uint64_t parameters = count_parameters(checkpoint);
  auto stored = checkpoint.tensors;
  std::erase_if(stored, [](const auto& entry) { return !entry.second.buffer().mapped(); });
  OAR_ASSIGN(checkpoint, quantize_at_load(std::move(checkpoint), options.weights,
                                          {options.cache_dir, options.cache_bytes}, backend->host_pool(),
                                          options.log, progress, options.rotate));
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  if (!config.unknown_keys.empty())
    options.log(LogLevel::kWarning, unknown_keys_notice(config.model_type, config.unknown_keys));

  auto model = std::unique_ptr<LanguageModel>(new LanguageModel());
  OAR_ASSIGN(model->tokenizer_, make_tokenizer(checkpoint.tokenizer, config.vocab));
  std::string source = checkpoint.tokenizer.chat_template;
  if (source.empty()) source = kDefaultChatTemplate;
  auto chat_template = ChatTemplate::parse(std::move(source));
  if (!chat_template.ok()) {
    options.log(LogLevel::kWarning, cat("the model's chat template cannot be used (",
                                        chat_template.status().message(), "); ChatML takes its place"));
    chat_template = ChatTemplate::parse(kDefaultChatTemplate);
    OAR_RETURN_IF_ERROR(chat_template.status());
  }
  model->chat_template_ = std::move(*chat_template);
  model->defaults_ = read_defaults(checkpoint.tokenizer.generation_config);
  model->allow_special_in_text_ = options.allow_special_in_text;
  const std::string& writes = model->chat_template_->source();
  OAR_ASSIGN(model->tool_style_, tools::find_tool_style(options.tool_parser, writes));
  OAR_ASSIGN(model->reasoning_style_, tools::find_reasoning_style(options.reasoning_parser, writes));
  if (const auto bos = model->tokenizer_->bos_id()) model->bos_token_ = model->tokenizer_->token_text(*bos);
  if (const auto eos = model->tokenizer_->eos_id()) model->eos_token_ = model->tokenizer_->token_text(*eos);

  // What the weights will take, before they are made.
  OAR_ASSIGN(ServingGraph graph, build_serving_graph(checkpoint, config, options));
  const ForeseenWeights foreseen = foresee_weights(graph.model.graph, *backend);
  const uint64_t least_kv = least_kv_bytes(graph.layout);
  const auto too_small = [&](uint64_t weights, uint64_t scratch) {
    const uint64_t others = budget->reserved() - reserved.bytes();
    return resource_exhausted(
        cat("the memory budget of ", format_bytes(budget->bytes()), " does not hold weights (",
            format_bytes(weights), scratch > 0 ? cat("), scratch (", format_bytes(scratch)) : "",
            ") and one page of KV cache (", format_bytes(least_kv), ")",
            others > 0 ? cat(" beside ", format_bytes(others), " in use") : "",
            "; raise the memory, or lower max_batch_tokens, max_sequences or max_context"));
  };
  // Buffers that hold weights already have paid; pages of files and what is made have not.
  const uint64_t to_come = foreseen.made + (on_device ? foreseen.in_place : foreseen.mapped);
  if (to_come + least_kv > budget->free()) return too_small(foreseen.total(), 0);
  OAR_ASSIGN(Reservation mapped, budget->reserve(on_device ? 0 : foreseen.mapped, name, "mapped weights"));
  OAR_RETURN_IF_ERROR(reserved.grow(on_device ? to_come : foreseen.made, "weights"));
  options.log(LogLevel::kInfo, cat(name, " reserves ", format_bytes(to_come), " for weights; ",
                                   format_bytes(budget->free()), " of the budget are left"));

  const int64_t max_context = graph.max_context;
  const std::string kv = graph.kv;
  const std::string stored_weights = graph.weights;
  OAR_ASSIGN(ServingPlan serving, compile_serving_plan(std::move(graph), config, options, backend, progress));
  const uint64_t weights =
      serving.run->program().in_place_weight_bytes() + serving.run->program().copied_weight_bytes();
  const uint64_t scratch = serving.run->arena_bytes() + serving.run->scratch_bytes();
  // A read of what stays in the file maps what lies around it too: weights that were quantized.
  for (const auto& [tensor, source] : stored) {
    const auto now = checkpoint.tensors.find(tensor);
    if (now == checkpoint.tensors.end() || now->second.data() != source.data())
      source.buffer().release_pages();
  }
  // What buffers took is theirs, what they did not take is nobody's.
  if (!on_device) reserved.shrink();
  if ((on_device ? scratch : 0) + least_kv > budget->free()) return too_small(weights, scratch);
  if (on_device) OAR_RETURN_IF_ERROR(reserved.grow(scratch, "scratch"));
  const double share = std::clamp(options.kv_share, 0.0, 1.0);
  const auto for_kv = std::max(least_kv, static_cast<uint64_t>(static_cast<double>(budget->free()) * share));
  const std::vector<int32_t> blocks =
      blocks_for(serving.layout, for_kv,
                 {max_context * options.max_sequences, serving.max_batch_tokens, options.max_sequences,
                  options.page_tokens});
  if (on_device) OAR_RETURN_IF_ERROR(reserved.grow(pool_bytes(serving.layout, blocks), "KV cache"));
  const int64_t pool_tokens = static_cast<int64_t>(blocks[0]) * options.page_tokens;

  ModelInfo& info = model->info_;
  info.name = name;
  info.path = resolved.path;
  info.architecture = config.model_type;
  info.parameters = parameters;
  info.weight_bytes = weights;
  info.linear_bytes = serving.run->program().plan().weight_bytes(KernelFamily::kMatmul) +
                      serving.run->program().plan().weight_bytes(KernelFamily::kGatedMatmul);
  info.expert_bytes = serving.run->program().plan().weight_bytes(KernelFamily::kGroupedMatmul);
  info.kv_bytes = pool_bytes(serving.layout, blocks);
  info.scratch_bytes = scratch;
  info.kv_bytes_per_token = oar::kv_bytes_per_token(serving.layout, options.page_tokens);
  info.max_context = std::min(max_context, pool_tokens);
  info.vocab_size = config.vocab;
  info.layers = static_cast<int32_t>(config.layers);
  info.page_tokens = options.page_tokens;
  info.num_blocks = blocks[0];
  info.threads = backend->workers();
  info.weights = stored_weights;
  info.kv = kv;
  info.isa = backend->name();
  if (info.max_context < max_context) {
    options.log(LogLevel::kWarning,
                cat("memory for ", pool_tokens,
                    " tokens of KV cache: the context is limited to that, the model's is ", max_context));
  }

  EngineOptions engine;
  engine.max_context = info.max_context;
  engine.max_batch_tokens = options.max_batch_tokens;
  engine.max_sequences = options.max_sequences;
  engine.max_waiting = options.max_waiting;
  engine.prefix_cache = options.prefix_cache;
  engine.speculative = options.speculative;
  engine.eos_token_ids = end_tokens(checkpoint, config, *model->tokenizer_);
  model->constraints_ =
      std::make_shared<grammar::ConstraintCompiler>(model->tokenizer_, engine.eos_token_ids);
  engine.seed = options.seed;
  engine.log = options.log;
  OAR_ASSIGN(auto runner, make_plan_runner(std::move(serving), blocks));
  OAR_ASSIGN(model->engine_, Engine::create(std::move(runner), std::move(engine)));
  model->resources_ = options.resources;
  model->reserved_ = std::move(on_device ? reserved : mapped);
  info.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace oar
