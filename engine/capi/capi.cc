// The library and its models: oar_shutdown(), oar_model_*().
#include <algorithm>
#include <cstdlib>

#include "engine/base/json.h"
#include "engine/capi/call.h"
#include "engine/capi/handles.h"
#include "engine/capi/model.h"

namespace oar::capi {
namespace {

// Threads of models that were left open must not compute while the program's statics go.
void at_exit() {
  for (const auto& [handle, object] : all_handles(Kind::kModel)) static_cast<Model*>(object.get())->abandon();
}

Status not_in_callback(const char* function) {
  if (!Delivery::in_callback()) return ok_status();
  return {StatusCode::kFailedPrecondition,
          cat(function, " was called from a callback; call it from a thread of your own")};
}

Status check_count(const char* field, int64_t value) {
  return value >= 0
             ? ok_status()
             : invalid_argument(cat(field, " is ", value, "; give a number >= 0 (0: the default)"), field);
}

// The bounds are those of `oar serve`; that no maximum is below its minimum is the engine's to say.
Status read_speculative(const oar_model_options& o, SpeculativeOptions& out) {
  const std::string_view method = o.speculative != nullptr ? o.speculative : "none";
  if (method != "none" && method != "ngram" && method != "draft")
    return invalid_argument(cat("speculative is \"", method, "\"; give none, ngram or draft"), "speculative");
  const std::string_view draft = o.draft_model != nullptr ? o.draft_model : "";
  if (method == "draft" && draft.empty())
    return invalid_argument("draft_model is missing; speculative \"draft\" needs the path of one",
                            "draft_model");
  if (method != "draft" && !draft.empty())
    return invalid_argument(
        cat("draft_model is \"", draft, "\", and speculative is \"", method, "\"; only \"draft\" has one"),
        "draft_model");
  out.draft_model = draft;
  const auto set = [](const char* field, int64_t value, auto& to) -> Status {
    if (value < 0 || value > 64)
      return invalid_argument(cat(field, " is ", value, "; give 1 to 64 (0: the default)"), field);
    if (value > 0) to = static_cast<std::remove_reference_t<decltype(to)>>(value);
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(set("num_speculative_tokens", o.num_speculative_tokens, out.max_tokens));
  OAR_RETURN_IF_ERROR(set("prompt_lookup_min", o.prompt_lookup_min, out.lookup_min));
  OAR_RETURN_IF_ERROR(set("prompt_lookup_max", o.prompt_lookup_max, out.lookup_max));
  out.prompt_lookup = method == "ngram";
  return ok_status();
}

// The bounds are those of `oar serve`.
Status read_adapters(const oar_model_options& o, LanguageModelOptions& out) {
  constexpr int64_t kMaxLoras = 1024, kMaxRank = 512;
  if (o.max_loras < 0 || o.max_loras > kMaxLoras)
    return invalid_argument(cat("max_loras is ", o.max_loras, "; give 0 (none) to ", kMaxLoras), "max_loras");
  if (o.max_lora_rank < 0 || o.max_lora_rank > kMaxRank)
    return invalid_argument(
        cat("max_lora_rank is ", o.max_lora_rank, "; give 1 to ", kMaxRank, " (0: the default)"),
        "max_lora_rank");
  if (o.max_lora_rank > 0 && o.max_loras == 0)
    return invalid_argument(cat("max_lora_rank is ", o.max_lora_rank,
                                ", and max_loras is 0; give both, or neither for a model without adapters"),
                            "max_lora_rank");
  out.max_loras = o.max_loras;
  if (o.max_lora_rank > 0) out.max_lora_rank = o.max_lora_rank;
  return ok_status();
}

Result<LanguageModelOptions> read_options(const oar_model_options* given) {
  oar_model_options o;
  oar_model_options_init(&o, sizeof o);
  if (given != nullptr) OAR_RETURN_IF_ERROR(read_struct(given, "model_options", o));
  OAR_RETURN_IF_ERROR(check_count("threads", o.threads));
  if (o.threads > 4096) return invalid_argument(cat("threads is ", o.threads, "; at most 4096"), "threads");
  OAR_RETURN_IF_ERROR(check_count("max_context", o.max_context));
  OAR_RETURN_IF_ERROR(check_count("max_batch_tokens", o.max_batch_tokens));
  OAR_RETURN_IF_ERROR(check_count("max_sequences", o.max_sequences));
  OAR_RETURN_IF_ERROR(check_count("max_waiting", o.max_waiting));
  OAR_RETURN_IF_ERROR(check_count("snapshot_tokens", o.snapshot_tokens));
  LanguageModelOptions out;
  out.threads = o.threads;
  out.resources.pool = shared_pool(o.threads);
  if (o.weights != nullptr) out.weights = o.weights;
  if (o.kv != nullptr) out.kv = o.kv;
  if (o.mla != nullptr) out.mla = o.mla;
  if (o.device != nullptr) out.device = o.device;
  out.max_context = o.max_context;
  if (o.max_batch_tokens > 0) out.max_batch_tokens = o.max_batch_tokens;
  if (o.max_sequences > 0) out.max_sequences = o.max_sequences;
  if (o.max_waiting > 0) out.max_waiting = static_cast<size_t>(o.max_waiting);
  out.memory_bytes = o.memory_bytes;
  if (o.state_snapshots != 0) out.state_snapshots = o.state_snapshots;
  out.snapshot_tokens = o.snapshot_tokens;
  out.seed = o.seed;
  out.prefix_cache = o.no_prefix_cache == 0;
  out.mixed_prefix = o.mixed_prefix != 0;
  out.deterministic = o.deterministic != 0;
  out.use_mmap = o.no_mmap == 0;
  if (o.cache_dir != nullptr) out.cache_dir = o.cache_dir;
  if (o.cache_bytes != 0) out.cache_bytes = o.cache_bytes;
  if (o.no_cache != 0) out.cache_bytes = 0;
  out.allow_special_in_text = o.allow_special_in_text != 0;
  if (o.tool_parser != nullptr) out.tool_parser = o.tool_parser;
  if (o.reasoning_parser != nullptr) out.reasoning_parser = o.reasoning_parser;
  OAR_RETURN_IF_ERROR(read_speculative(o, out.speculative));
  OAR_RETURN_IF_ERROR(read_adapters(o, out));
  out.log = logger(o.log, o.log_user);
  return out;
}

Progress read_progress(const oar_model_options* given) {
  oar_model_options o = {};
  if (given == nullptr || !read_struct(given, "model_options", o).ok() || o.progress == nullptr) return {};
  return
      [progress = o.progress, user = o.progress_user](std::string_view what, uint64_t done, uint64_t total) {
        return progress(std::string(what).c_str(), done, total, user) == 0;
      };
}

Status load(const char* path, const oar_model_options* options, oar_model* out) {
  if (out == nullptr) return null_argument("model");
  *out = 0;
  if (path == nullptr) return null_argument("path");
  OAR_RETURN_IF_ERROR(check_open());
  OAR_RETURN_IF_ERROR(not_in_callback("oar_model_load()"));
  OAR_ASSIGN(const LanguageModelOptions engine, read_options(options));
  OAR_ASSIGN(auto language_model, LanguageModel::load(path, engine, read_progress(options)));
  static const int registered = std::atexit(at_exit);
  static_cast<void>(registered);
  OAR_ASSIGN(*out, put(std::make_shared<Model>(std::move(language_model))));
  return ok_status();
}

}  // namespace
}  // namespace oar::capi

using namespace oar;        // NOLINT: the functions below are C
using namespace oar::capi;  // NOLINT

extern "C" {

uint32_t oar_abi_version(void) { return OAR_ABI_VERSION; }
const char* oar_version(void) { return OAR_VERSION; }
const char* oar_status_name(oar_status status) {
  const auto code = static_cast<unsigned>(status);
  return status_code_name(code <= OAR_UNAUTHENTICATED ? static_cast<StatusCode>(code) : StatusCode::kUnknown);
}
const char* oar_last_error(void) { return last_error(); }
const char* oar_last_error_param(void) { return last_error_param(); }

oar_status oar_shutdown(void) {
  return call([]() -> Status {
    OAR_RETURN_IF_ERROR(not_in_callback("oar_shutdown()"));
    const auto generations = all_handles(Kind::kGeneration);
    const auto models = all_handles(Kind::kModel);
    if (!shut_down()) return ok_status();
    for (const auto& [handle, model] : models) static_cast<Model*>(model.get())->close();
    for (const auto& [handle, generation] : generations) static_cast<Generation*>(generation.get())->close();
    drop_handles();
    return ok_status();
  });
}

oar_status oar_model_options_init(oar_model_options* options, size_t size) {
  return init_struct(oar_model_options{}, "options", options, size);
}

oar_status oar_model_load(const char* path, const oar_model_options* options, oar_model* model) {
  return call([&] { return load(path, options, model); });
}

oar_status oar_model_close(oar_model model) {
  return call([&]() -> Status {
    OAR_RETURN_IF_ERROR(not_in_callback("oar_model_close()"));
    OAR_ASSIGN(const auto object, take<Model>(model));
    object->close();
    return ok_status();
  });
}

oar_status oar_model_drain(oar_model model, int64_t timeout_ms) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    if (timeout_ms < 0)
      return invalid_argument(cat("timeout_ms is ", timeout_ms, "; give one >= 0"), "timeout_ms");
    constexpr int64_t kLongest = int64_t{1} << 40;  // 34 years: no overflow in nanoseconds
    const std::chrono::milliseconds timeout(std::min(timeout_ms, kLongest));
    if (object->language_model().engine().drain(timeout)) return ok_status();
    return {StatusCode::kDeadlineExceeded,
            cat("generations were still running after ", timeout_ms, " ms and have been cancelled"),
            "timeout_ms"};
  });
}

oar_status oar_model_get_info(oar_model model, oar_model_info* info, size_t size) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    LanguageModel& m = object->language_model();
    const ModelInfo& from = m.info();
    oar_model_info out = {};
    out.max_context = from.max_context;
    out.parameters = from.parameters;
    out.weight_bytes = from.weight_bytes;
    out.kv_bytes = from.kv_bytes;
    out.scratch_bytes = from.scratch_bytes;
    out.kv_bytes_per_token = from.kv_bytes_per_token;
    out.vocab_size = static_cast<int32_t>(from.vocab_size);
    out.layers = from.layers;
    out.threads = from.threads;
    out.page_tokens = from.page_tokens;
    out.bos_id = m.tokenizer()->bos_id().value_or(-1);
    out.eos_id = m.tokenizer()->eos_id().value_or(-1);
    out.load_seconds = from.load_seconds;
    return write_struct(out, "info", info, size);
  });
}

oar_status oar_model_get_stats(oar_model model, oar_model_stats* stats, size_t size) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    const EngineStats from = object->language_model().engine().stats();
    oar_model_stats out = {};
    out.ready = from.health == EngineHealth::kReady ? 1 : 0;
    out.running = from.running;
    out.waiting = from.waiting;
    out.blocks_total = from.blocks_total;
    out.blocks_used = from.blocks_used;
    out.blocks_cached = from.blocks_cached;
    out.steps = from.steps;
    out.prompt_tokens = from.prompt_tokens;
    out.generation_tokens = from.generation_tokens;
    out.preemptions = from.preemptions;
    out.prefix_queries = from.prefix_queries;
    out.prefix_hits = from.prefix_hits;
    out.step_seconds = from.step_seconds;
    out.accepted_prediction_tokens = from.accepted_drafts;
    out.rejected_prediction_tokens = from.rejected_drafts;
    return write_struct(out, "stats", stats, size);
  });
}

oar_status oar_model_describe(oar_model model, char* text, size_t capacity, size_t* length) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<Model>(model));
    const ModelInfo& i = object->language_model().info();
    const json::object facts = {{"name", i.name},
                                {"path", i.path},
                                {"architecture", i.architecture},
                                {"parameters", i.parameters},
                                {"weights", i.weights},
                                {"weight_bytes", i.weight_bytes},
                                {"kv", i.kv},
                                {"kv_bytes", i.kv_bytes},
                                {"kv_bytes_per_token", i.kv_bytes_per_token},
                                {"scratch_bytes", i.scratch_bytes},
                                {"max_context", i.max_context},
                                {"vocab_size", i.vocab_size},
                                {"layers", i.layers},
                                {"page_tokens", i.page_tokens},
                                {"num_blocks", i.num_blocks},
                                {"threads", i.threads},
                                {"isa", i.isa},
                                {"load_seconds", i.load_seconds}};
    return write_text(json::serialize(facts), text, capacity, length);
  });
}

}  // extern "C"
