#include "clients/cli/model_options.h"

#include <filesystem>

#include "clients/cli/logging.h"
#include "clients/cli/progress.h"
#include "clients/cli/ranges.h"
#include "clients/cli/sizes.h"
#include "engine/base/format.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/tune/quantize/tune_kv.h"

namespace oar::cli {

void add_model_argument(CLI::App& command, ModelOptions& o, bool required) {
  auto* model = command.add_option("MODEL", o.model, "folder, file, downloaded org/name, or `demo`");
  if (required) model->required();
  command
      .add_option("--cache-dir", o.cache_dir,
                  "where downloaded models lie, in the layout of the Hugging Face hub's cache, and where "
                  "weights quantized at load are kept")
      ->type_name("DIR");
  add_cache_size(command, o.cache_bytes);
}

void add_cache_size(CLI::App& command, uint64_t& bytes) {
  command
      .add_option_function<std::string>(
          "--cache-size", [&bytes](const std::string& text) { bytes = *parse_size(text); },
          "what weights in the cache may take together; the least recently used go first; 0: none are kept")
      ->check([](const std::string& text) { return parse_size(text).status().message(); })
      ->type_name("BYTES")
      ->default_str("64GiB");
}

void add_device_option(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "cpu, or a plug-in's device: NAME or NAME:INDEX for a liboar_NAME.so beside the program, "
                  "or the path of one")
      ->type_name("cpu|PLUGIN")
      ->default_str("cpu");
}

void add_model_options(CLI::App& command, ModelOptions& o, const ModelOptionSet& set) {
  // Headings of --help, in the order in which they first appear; the command's own options stand above them.
  const auto heading = [&](const char* name) { command.option_defaults()->group(name); };
  heading("Model");
  add_model_argument(command, o, set.model_required);
  LanguageModelOptions& e = o.engine;
  if (set.formats) {
    if (!set.kv.empty()) e.kv = set.kv;
    command
        .add_option("--weights", e.weights, "how weights are held, of encoders too: auto is as in the file")
        ->check([](const std::string& name) { return weight_scheme(name).status().message(); })
        ->capture_default_str();
    command
        .add_option(
            "--kv", e.kv,
            cat("how keys and values are kept: f32, bf16, f16, int8, fp8, k8v4, int4, int4-mean, "
                "k4v3; one per "
                "layer, with slashes between; or auto: what `oar tune` decided, or decides within "
                "--tune-seconds",
                set.kv.empty()
                    ? ""
                    : "; a device without kernels for the default keeps what is no narrower than the file"))
        ->each([&o](const std::string& name) { o.kv_auto = name == "auto"; })
        ->type_name("TIER")
        ->default_str(set.kv.empty() ? "no narrower than the file" : set.kv);
    add_tune_seconds(command, o);
  }
  if (set.formats)
    command
        .add_option("--rotate", e.rotate,
                    "Hadamard rotations that spread outliers: auto (kv beside a quantized cache), none, all, "
                    "kv, or a "
                    "list of r1, r2, r3, r4 (or r4-exact)")
        ->type_name("LIST")
        ->capture_default_str();
  if (set.formats)
    command
        .add_option(
            "--mla", e.mla,
            "attention over a latent: absorbed (one formula for every row), or expanded (prompts make "
            "keys and values of every head: faster where steps are long; then a position's prefill "
            "differs from its decode by roundings, and answers that come again are computed anew)")
        ->check(CLI::IsMember({"absorbed", "expanded"}))
        ->type_name("FORM")
        ->capture_default_str();
  command
      .add_option("--max-context", e.max_context,
                  "tokens of one sequence; 0: the model's, as far as memory allows")
      ->check(zero_or_more())
      ->capture_default_str();
  if (set.memory_budget) {
    command
        .add_option("--memory", o.memory,
                    "budget for weights, KV cache, scratch and runs of all models together: 80% of what is "
                    "available, 4GiB, or bytes")
        ->check([](const std::string& text) {
          const auto parsed = parse_memory(text);
          return parsed.ok() ? std::string() : parsed.status().message();
        })
        ->type_name("BYTES|%")
        ->default_str("80%");
  }
  command.add_flag("--no-mmap", o.no_mmap, "read weights into memory instead of mapping the file");
  heading("Engine");
  add_device_option(command, e.device);
  command.add_option("--threads", e.threads, "worker threads; 0: all usable CPUs")
      ->check(in_range(0, 4096))
      ->capture_default_str();
  command.add_option("--max-batch-tokens", e.max_batch_tokens, "token budget of one step")
      ->check(above_zero())
      ->capture_default_str();
  command.add_option("--max-sequences", e.max_sequences, "sequences running at once")
      ->check(above_zero())
      ->capture_default_str();
  command.add_flag("--no-prefix-cache", o.no_prefix_cache, "do not keep the KV pages of prompts for reuse");
  command.add_flag(
      "--mixed-prefix", o.mixed_prefix,
      "a device that computes prompts and generated tokens in two ways: prompts take pages of both, "
      "and answers depend, by roundings, on what is cached");
  command
      .add_option_function<std::string>(
          "--state-snapshots", [&e](const std::string& text) { e.state_snapshots = *parse_size(text); },
          "memory for recurrent states at which prompts are found again, of models that have such layers")
      ->check([](const std::string& text) { return parse_size(text).status().message(); })
      ->type_name("BYTES")
      ->default_str("an eighth of the cache's");
  command
      .add_option(
          "--snapshot-tokens", e.snapshot_tokens,
          "behind how many tokens such a state is kept, a multiple of 64, beside those at the ends of "
          "prompts and answers; 0: there alone")
      ->check(zero_or_more())
      ->capture_default_str();
  command
      .add_option_function<std::string>(
          "--speculative",
          [&o](const std::string& method) {
            o.engine.speculative.prompt_lookup = method == "ngram";
            o.drafts = method == "draft";
          },
          "speculative decoding, which changes no text: none; ngram (prompt lookup: what followed the last "
          "tokens where they stood before is verified, several tokens in one step, where that pays); or "
          "draft (what --draft-model says is verified so)")
      ->check(CLI::IsMember({"none", "ngram", "draft"}))
      ->type_name("METHOD")
      ->default_str("none");
  command
      .add_option("--draft-model", e.speculative.draft_model,
                  "with --speculative draft: a smaller model of the same tokenizer; a folder, a file, or "
                  "downloaded org/name. Its weights and cache are in the budget of --memory")
      ->type_name("MODEL");
  command
      .add_option("--num-speculative-tokens", e.speculative.max_tokens,
                  "draft tokens of a sequence in one step at most; how many pay is measured")
      ->check(in_range(1, 64))
      ->capture_default_str();
  command
      .add_option("--prompt-lookup-min", e.speculative.lookup_min, "last tokens that must have stood there")
      ->check(in_range(1, 64))
      ->capture_default_str();
  command
      .add_option("--prompt-lookup-max", e.speculative.lookup_max,
                  "last tokens that are compared; longer runs are preferred")
      ->check(in_range(1, 64))
      ->capture_default_str();
  command.add_option("--disable-pass", e.disabled_passes, "leave a graph pass out; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
  command.add_flag("--deterministic", e.deterministic,
                   "one reduction order for every batch, chunking and number of threads");
  // A table compares with a reference model; there the kernels have the longer name.
  command.add_flag(set.formats ? "--reference" : "--reference-kernels", e.reference,
                   "scalar double-precision kernels: slow, the truth");
  heading("Messages");
  auto* verbose = command.add_flag("-v,--verbose", o.verbose, "log more");
  command.add_flag("-q,--quiet", o.quiet, "log errors only, no progress")->excludes(verbose);
  heading("Options");
}

namespace {
// "NAME=DIR", or "DIR", which is named as its last folder.
std::pair<std::string, std::string> named_folder(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos) return {text.substr(0, equals), text.substr(equals + 1)};
  const std::filesystem::path path(text);
  return {(path.has_filename() ? path : path.parent_path()).filename().string(), text};
}
}  // namespace

void add_lora_options(CLI::App& command, ModelOptions& o, bool slots) {
  LanguageModelOptions& e = o.engine;
  const auto add = [&](const char* name, int most, const char* what) {
    command
        .add_option_function<std::vector<std::string>>(
            name,
            [&e, slots](const std::vector<std::string>& all) {
              for (const std::string& one : all) e.loras.push_back(named_folder(one));
              if (!slots && e.loras.size() > 1)
                throw CLI::ValidationError("--lora", cat(e.loras.size(),
                                                         " adapters are given and one is used; "
                                                         "serve several with oar serve"));
            },
            what)
        ->check([](const std::string& text) {
          const auto [adapter, folder] = named_folder(text);
          return adapter.empty() || folder.empty() ? cat("'", text, "' is not NAME=DIR") : std::string();
        })
        ->type_name("NAME=DIR")
        ->expected(1, most)
        ->take_all()
        ->group("Model");
  };
  add("--lora", 1,
      slots ? "an adapter of the model, a folder as PEFT saves it, served as model NAME; may be repeated"
            : "an adapter of the model: a folder as PEFT saves it");
  if (slots) {
    add("--lora-modules", CLI::detail::expected_max_vector_size,
        "the same by vLLM's name, one or more at a time");
    command
        .add_flag_callback(
            "--enable-lora",
            [&e] {
              if (e.loras.empty()) e.max_loras = 1;
            },
            "as vLLM has it: a slot for adapters to come, where neither --lora nor --max-loras says more")
        ->group("Model");
    command
        .add_option("--max-loras", e.max_loras,
                    "slots for adapters, those of --lora and others to come; 0: as many as --lora names")
        ->check(in_range(0, 1024))
        ->group("Model")
        ->capture_default_str();
  }
  command.add_option("--max-lora-rank", e.max_lora_rank, "the largest rank of an adapter")
      ->check(in_range(1, 512))
      ->group("Model")
      ->capture_default_str();
}

std::shared_ptr<const AdapterLease> chosen_adapter(const ModelOptions& o, const LanguageModel& model) {
  return o.engine.loras.empty() ? nullptr : model.adapters()->find(o.engine.loras.front().first);
}

void add_tune_seconds(CLI::App& command, ModelOptions& o) {
  command
      .add_option("--tune-seconds", o.tune_seconds,
                  "what --kv auto may take to choose tiers when none were chosen before")
      ->check(zero_or_more())
      ->default_str("10");
}

void add_chat_options(CLI::App& command, ModelOptions& options) {
  command.add_flag("--allow-special-in-text", options.engine.allow_special_in_text,
                   "read control tokens such as <|end|> also in the text of chat messages, where they stay "
                   "text otherwise");
  const auto names = [](const auto& styles) {
    std::string all = "auto, none";
    for (const auto& s : styles) all += cat(", ", s.name);
    return all;
  };
  command
      .add_option(
          "--tool-parser", options.engine.tool_parser,
          "how the model writes tool calls: auto is what its chat template says, none leaves them text; " +
              names(tools::tool_styles()))
      ->check([](const std::string& name) { return tools::find_tool_style(name, {}).status().message(); })
      ->group("Model")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--reasoning-parser", options.engine.reasoning_parser,
                  "how the model writes its reasoning, likewise: " + names(tools::reasoning_styles()))
      ->check(
          [](const std::string& name) { return tools::find_reasoning_style(name, {}).status().message(); })
      ->group("Model")
      ->type_name("NAME")
      ->capture_default_str();
}

namespace {
Status check_speculation(const ModelOptions& o) {
  const std::string& path = o.engine.speculative.draft_model;
  if (o.drafts == !path.empty()) return ok_status();
  return invalid_argument(o.drafts ? std::string("--speculative draft: no model drafts; name one with "
                                                 "--draft-model")
                                   : cat("--draft-model ", path,
                                         ": it drafts with --speculative draft alone; add that, or leave "
                                         "--draft-model out"),
                          "command line");
}
}  // namespace

Result<LanguageModelOptions> engine_options(const ModelOptions& o, LogLevel level, std::string& path) {
  OAR_RETURN_IF_ERROR(check_speculation(o));
  OAR_ASSIGN(ResolvedModel resolved, resolve_model(o.model, o.cache_dir));
  path = std::move(resolved.path);
  LanguageModelOptions e = o.engine;
  if (e.name.empty()) e.name = std::move(resolved.name);
  if (!o.memory.empty()) {
    OAR_ASSIGN(const MemoryWish budget, parse_memory(o.memory));
    e.memory_bytes = budget.bytes;
    e.memory_percent = budget.percent;
  }
  if (o.drafts) {
    OAR_ASSIGN(ResolvedModel draft, resolve_model(e.speculative.draft_model, o.cache_dir));
    e.speculative.draft_model = std::move(draft.path);
  }
  e.use_mmap = !o.no_mmap;
  e.cache_dir = o.cache_dir;
  e.cache_bytes = o.cache_bytes;
  e.prefix_cache = !o.no_prefix_cache;
  e.mixed_prefix = o.mixed_prefix;
  e.log = make_logger(o.verbose ? LogLevel::kDebug : o.quiet ? LogLevel::kError : level);
  return e;
}

Status check_tune_seconds(const ModelOptions& o) {
  if (!o.tune_seconds || o.kv_auto) return ok_status();
  return invalid_argument(
      cat("--tune-seconds ", *o.tune_seconds,
          ": it is what --kv auto may take, and --kv auto is not given; add it, or leave --tune-seconds out"),
      "command line");
}

Status settle_kv(const ModelOptions& o, const std::string& path, LanguageModelOptions& e,
                 const Progress& progress) {
  if (!o.kv_auto) return ok_status();
  TuneKvOptions tune;
  tune.model = e;
  tune.seconds = o.tune_seconds.value_or(10);
  OAR_ASSIGN(e.kv, choose_kv(path, tune, progress));
  return ok_status();
}

Result<std::unique_ptr<LanguageModel>> open_model(const ModelOptions& o, LogLevel level,
                                                  std::function<bool()> stop) {
  OAR_RETURN_IF_ERROR(check_tune_seconds(o));
  std::string path;
  OAR_ASSIGN(LanguageModelOptions e, engine_options(o, level, path));
  ProgressBar bar(o.quiet, std::move(stop));
  OAR_RETURN_IF_ERROR(settle_kv(o, path, e, bar.callback()));
  return LanguageModel::load(path, e, bar.callback());
}

}  // namespace oar::cli
