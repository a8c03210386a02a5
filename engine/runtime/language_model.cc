#include "engine/runtime/language_model.h"

#include <algorithm>
#include <chrono>

#include "engine/base/format.h"
#include "engine/models/config_reader.h"
#include "engine/runtime/device_runner.h"
#include "engine/runtime/load_draft.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_plan.h"
#include "engine/runtime/model_tokenizer.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tensor/charge.h"

namespace oar {
namespace {

// Into both: what is there, and the parameter that is validated.
template <class T>
Status read_default(const json::object& o, const char* key, std::optional<T>& out, T& validated) {
  const json::value* v = o.if_contains(key);
  if (v == nullptr || v->is_null()) return ok_status();
  if (!v->is_number())
    return invalid_argument(
        cat("generation_config.json: '", key, "' is ", json::serialize(*v), ", expected a number"), key);
  out = validated = static_cast<T>(std::clamp(v->to_number<double>(), -1e9, 1e9));
  return ok_status();
}

Result<GenerationDefaults> read_defaults(const json::object& o) {
  GenerationDefaults d;
  if (const json::value* sample = o.if_contains("do_sample"); sample != nullptr && !sample->is_null()) {
    if (!sample->is_bool())
      return invalid_argument(cat("generation_config.json: 'do_sample' is ", json::serialize(*sample),
                                  ", expected true or false"),
                              "do_sample");
    if (!sample->get_bool()) return d;
  }
  SamplingParams s;
  OAR_RETURN_IF_ERROR(read_default(o, "temperature", d.temperature, s.temperature));
  OAR_RETURN_IF_ERROR(read_default(o, "top_p", d.top_p, s.top_p));
  OAR_RETURN_IF_ERROR(read_default(o, "min_p", d.min_p, s.min_p));
  OAR_RETURN_IF_ERROR(read_default(o, "repetition_penalty", d.repetition_penalty, s.repetition_penalty));
  OAR_RETURN_IF_ERROR(read_default(o, "top_k", d.top_k, s.top_k));
  if (d.top_k == -1) d.top_k = s.top_k = 0;  // vLLM's word for all
  if (const Status bad = validate_sampling(s, {}); !bad.ok())
    return invalid_argument(cat("generation_config.json: ", bad.message()), bad.param());
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

std::vector<int32_t> find_end_tokens(const Checkpoint& checkpoint, const ModelConfig& config,
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

Status check_states(const LanguageModelOptions& options, const ServeLayout& layout) {
  if (options.snapshot_tokens < 0 || options.snapshot_tokens % options.page_tokens != 0)
    return invalid_argument(cat("snapshot_tokens ", options.snapshot_tokens,
                                " is no multiple of page_tokens ", options.page_tokens, "; 0 is none"),
                            "snapshot_tokens");
  if (layout.has_states()) return ok_status();
  const char* given = options.state_snapshots       ? "state_snapshots"
                      : options.snapshot_tokens > 0 ? "snapshot_tokens"
                                                    : nullptr;
  if (given == nullptr) return ok_status();
  return invalid_argument(
      cat(given, ": this model has no recurrent state to keep snapshots of; leave it out"), given);
}

// What recurrent state takes, and what follows for the sequences that run at once.
std::string states_notice(const ServeLayout& layout, const std::vector<int32_t>& blocks, int64_t sequences,
                          int64_t wanted) {
  uint64_t block = 0, all = 0;
  int64_t snapshots = 0;
  for (size_t g = 0; g < layout.groups.size(); ++g) {
    const ServeLayout::Group& group = layout.groups[g];
    if (group.pages != ServeLayout::Pages::kState && group.pages != ServeLayout::Pages::kRows) continue;
    all += group.block_bytes * static_cast<uint64_t>(blocks[g]);
    if (group.pages != ServeLayout::Pages::kState) continue;
    block += group.block_bytes;  // a draft model may have a group of its own, of as many blocks
    snapshots = std::max<int64_t>(0, blocks[g] - 2 * sequences - 2);
  }
  std::string text = cat("recurrent state: ", format_bytes(block), " a sequence, ", format_bytes(all),
                         " for ", sequences, " sequences at once and ", snapshots, " snapshots");
  if (sequences < wanted)
    text += cat("; memory does not hold the states of max_sequences ", wanted, ", so ", sequences,
                " run at once");
  return text;
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
  OAR_ASSIGN(const ModelSource source, read_model_source(resolved.path, options, *backend, progress));
  const Checkpoint& checkpoint = source.checkpoint;
  const ModelConfig& config = source.config;

  auto model = std::unique_ptr<LanguageModel>(new LanguageModel());
  OAR_ASSIGN(model->tokenizer_, make_tokenizer(checkpoint.tokenizer, config.vocab));
  std::string turns = checkpoint.tokenizer.chat_template;
  if (turns.empty()) turns = default_chat_template(*model->tokenizer_);
  auto chat_template = ChatTemplate::parse(std::move(turns));
  if (!chat_template.ok()) {
    options.log(LogLevel::kWarning, cat("the model's chat template cannot be used (",
                                        chat_template.status().message(), "); ChatML takes its place"));
    chat_template = ChatTemplate::parse(default_chat_template(*model->tokenizer_));
    OAR_RETURN_IF_ERROR(chat_template.status());
  }
  model->chat_template_ = std::move(*chat_template);
  OAR_ASSIGN(model->defaults_, read_defaults(checkpoint.tokenizer.generation_config));
  model->allow_special_in_text_ = options.allow_special_in_text;
  const std::string& writes = model->chat_template_->source();
  OAR_ASSIGN(model->tool_style_, tools::find_tool_style(options.tool_parser, writes));
  OAR_ASSIGN(model->reasoning_style_, tools::find_reasoning_style(options.reasoning_parser, writes));
  if (const auto bos = model->tokenizer_->bos_id()) model->bos_token_ = model->tokenizer_->token_text(*bos);
  if (const auto eos = model->tokenizer_->eos_id()) model->eos_token_ = model->tokenizer_->token_text(*eos);

  for (const auto& [adapter, folder] : options.loras) {
    if (adapter == name)
      return invalid_argument(
          cat("lora ", adapter, ": the model itself is called so; name the adapter otherwise"), "lora");
  }
  OAR_ASSIGN(ModelPlan plan,
             plan_model(source, name, options, backend, {budget, on_device.has_value(), reserved}, progress));
  ServingPlan& serving = plan.serving;
  const int64_t max_context = serving.max_context;
  ServeLayout layout = serving.layout;  // of both models, the draft model's groups last
  std::optional<LoadedDraft> draft;
  if (!options.speculative.draft_model.empty()) {
    OAR_ASSIGN(draft,
               load_draft(options.speculative.draft_model, options, *model->tokenizer_, max_context, backend,
                          {budget, on_device.has_value(), reserved, least_kv_bytes(layout)}, progress));
    const auto& groups = draft->plan.serving.layout.groups;
    layout.groups.insert(layout.groups.end(), groups.begin(), groups.end());
  }
  if (on_device) OAR_RETURN_IF_ERROR(reserved.grow(sampling_bytes(serving), "drawing tokens"));
  const uint64_t least_kv = least_kv_bytes(layout);
  const double share = std::clamp(options.kv_share, 0.0, 1.0);
  const auto for_kv = std::max(least_kv, static_cast<uint64_t>(static_cast<double>(budget->free()) * share));
  OAR_RETURN_IF_ERROR(check_states(options, layout));
  const int64_t sequences = sequences_for(layout, for_kv, options.max_sequences);
  const std::vector<int32_t> blocks = blocks_for(layout, for_kv,
                                                 {max_context * sequences, serving.max_batch_tokens,
                                                  sequences, options.page_tokens, options.state_snapshots});
  if (pool_bytes(layout, blocks) > for_kv && options.state_snapshots)
    return resource_exhausted(cat("state_snapshots: ", format_bytes(*options.state_snapshots),
                                  " do not fit beside the states of ", sequences,
                                  " sequences and one page of KV cache into ", format_bytes(for_kv),
                                  "; lower it or max_sequences, or raise the memory"));
  if (on_device) OAR_RETURN_IF_ERROR(reserved.grow(pool_bytes(layout, blocks), "KV cache"));
  const int64_t pool_tokens =
      layout.holds_contexts() ? static_cast<int64_t>(blocks[0]) * options.page_tokens : max_context;
  if (layout.has_states())
    options.log(sequences < options.max_sequences ? LogLevel::kWarning : LogLevel::kInfo,
                states_notice(layout, blocks, sequences, options.max_sequences));

  ModelInfo& info = model->info_;
  info.name = name;
  info.path = resolved.path;
  info.architecture = config.model_type;
  info.parameters = source.parameters;
  info.weight_bytes = plan.weight_bytes;
  const Plan& planned = serving.run->program().plan();
  info.linear_bytes =
      planned.weight_bytes(KernelFamily::kMatmul) + planned.weight_bytes(KernelFamily::kGatedMatmul);
  info.expert_bytes = planned.weight_bytes(KernelFamily::kGroupedMatmul);
  info.head_values = static_cast<uint64_t>(config.vocab * config.width);
  const uint64_t values =
      planned.weight_values(KernelFamily::kMatmul) + planned.weight_values(KernelFamily::kGatedMatmul);
  info.linear_values = values - std::min(values, info.head_values);  // a head may run beside a device
  info.expert_values = planned.weight_values(KernelFamily::kGroupedMatmul);
  info.experts = config.experts;
  info.experts_per_token = config.experts_per_token;
  info.kv_bytes = pool_bytes(layout, blocks);
  info.scratch_bytes = plan.scratch_bytes;
  info.kv_bytes_per_token = oar::kv_bytes_per_token(layout, options.page_tokens);
  info.state_bytes_per_step = oar::state_bytes_per_step(layout);
  info.max_context = std::min(max_context, pool_tokens);
  info.vocab_size = config.vocab;
  info.layers = static_cast<int32_t>(config.layers);
  info.page_tokens = options.page_tokens;
  info.num_blocks = blocks[0];
  info.threads = backend->workers();
  info.weights = plan.weights;
  info.kv = plan.kv;
  info.isa = backend->name();
  if (draft) {
    info.draft = draft->name;
    info.draft_architecture = draft->architecture;
    info.draft_parameters = draft->parameters;
    info.draft_weight_bytes = draft->plan.weight_bytes;
    info.scratch_bytes += draft->plan.scratch_bytes;
  }
  if (info.max_context < max_context) {
    options.log(LogLevel::kWarning,
                cat("memory for ", pool_tokens,
                    " tokens of KV cache: the context is limited to that, the model's is ", max_context));
  }

  EngineOptions engine;
  engine.max_context = info.max_context;
  engine.max_batch_tokens = options.max_batch_tokens;
  engine.max_sequences = info.max_sequences = sequences;
  engine.max_waiting = options.max_waiting;
  engine.max_logprobs = options.max_logprobs;
  engine.prefix_cache = options.prefix_cache;
  engine.mixed_prefix = options.mixed_prefix;
  engine.snapshot_tokens = options.snapshot_tokens;
  engine.speculative = options.speculative;
  engine.eos_token_ids = model->end_tokens_ = find_end_tokens(checkpoint, config, *model->tokenizer_);
  model->constraints_ =
      std::make_shared<grammar::ConstraintCompiler>(model->tokenizer_, engine.eos_token_ids);
  engine.seed = options.seed;
  engine.log = options.log;
  model->adapters_ = serving.adapters;
  const auto own = blocks.begin() + static_cast<ptrdiff_t>(serving.layout.groups.size());
  // A sequence with drafts in flight sits out the next step, so verifying goes in lockstep.
  OAR_ASSIGN(auto runner, make_serving_runner(std::move(serving), {blocks.begin(), own},
                                              options.speculative.enabled() ? 0 : 1));
  std::unique_ptr<HostRunner> draft_runner;
  if (draft) {
    OAR_ASSIGN(draft_runner, make_plan_runner(std::move(draft->plan.serving), {own, blocks.end()}));
  }
  OAR_ASSIGN(model->engine_, Engine::create(std::move(runner), std::move(engine), std::move(draft_runner)));
  model->resources_ = options.resources;
  model->reserved_ = std::move(on_device ? reserved : plan.mapped);
  if (draft) model->draft_reserved_ = std::move(draft->plan.mapped);
  info.load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return model;
}

}  // namespace oar
