// The options every command that runs a model shares, and how they become a LanguageModel.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/runtime/language_model.h"

namespace oar::cli {

struct ModelOptions {
  std::string model;   // as given
  std::string memory;  // --memory as given; empty: the engine's default
  std::string cache_dir;
  uint64_t cache_bytes = kDefaultCacheBytes;
  std::optional<double> tune_seconds;  // --tune-seconds as given: for --kv auto
  bool drafts = false;                 // --speculative draft was asked for
  bool kv_auto = false;                // --kv auto was asked for
  bool no_mmap = false, no_prefix_cache = false, mixed_prefix = false, verbose = false, quiet = false;
  LanguageModelOptions engine;
};

struct ModelOptionSet {
  bool model_required = true;
  bool memory_budget = true;  // --memory BYTES|%
  bool formats = true;  // --weights, --kv and --rotate, one of each; a command that takes lists has its own
  std::string kv = {};  // the tier when --kv is not given; empty: no narrower than the file
};
// Adds MODEL and the options.
void add_model_options(CLI::App& command, ModelOptions& options, const ModelOptionSet& set = {});
// --lora, for commands that run a model with one adapter: then for every request, see chosen_adapter(). Or
// with many (`slots`), and --max-loras and --max-lora-rank beside it.
void add_lora_options(CLI::App& command, ModelOptions& options, bool slots);
std::shared_ptr<const AdapterLease> chosen_adapter(const ModelOptions& options, const LanguageModel& model);
// --device, of commands that run a model of any kind.
void add_device_option(CLI::App& command, std::string& device);
// --tune-seconds, beside any --kv.
void add_tune_seconds(CLI::App& command, ModelOptions& options);
// --allow-special-in-text, for commands that take conversations.
void add_chat_options(CLI::App& command, ModelOptions& options);
// MODEL, --cache-dir and --cache-size alone, for commands that only read files.
void add_model_argument(CLI::App& command, ModelOptions& options, bool required = true);

// --cache-size, of commands that keep what they prepare.
void add_cache_size(CLI::App& command, uint64_t& bytes);

// What the engine gets: memory parsed, logger installed at `level` (debug with --verbose), name and path
// resolved. Fills `path`.
Result<LanguageModelOptions> engine_options(const ModelOptions& options, LogLevel level, std::string& path);
// --tune-seconds has an effect beside --kv auto alone.
Status check_tune_seconds(const ModelOptions& options);
// Replaces an asked-for `--kv auto` by what is decided for the model at `path` (choose_kv()).
Status settle_kv(const ModelOptions& options, const std::string& path, LanguageModelOptions& engine,
                 const Progress& progress);

// Loads it with a progress bar. `stop` (may be empty) ends the loading.
Result<std::unique_ptr<LanguageModel>> open_model(const ModelOptions& options, LogLevel level,
                                                  std::function<bool()> stop = {});

}  // namespace oar::cli
