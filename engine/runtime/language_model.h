// A language model ready to be asked: weights mapped and planned, an Engine running, and the text side
// (tokenizer, chat template, defaults) beside it. The server and the command line see this and nothing below
// it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "engine/base/log.h"
#include "engine/base/resources.h"
#include "engine/runtime/adapters.h"
#include "engine/runtime/cache_folder.h"
#include "engine/runtime/engine.h"
#include "engine/text/chat_template.h"
#include "engine/text/grammar/constraint_compiler.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tools/reply_plan.h"

namespace oar {

struct LanguageModelOptions {
  std::string name;              // what clients call it; empty: the folder's or file's name
  std::string device;            // cpu (also when empty), or a plug-in's: see make_plugin_backend()
  int threads = 0;               // 0: all usable CPUs
  std::string weights = "auto";  // auto (as in the file), or a name of weight_scheme()
  std::string cache_dir;         // for weights quantized at load; see cache_folder.h
  uint64_t cache_bytes = kDefaultCacheBytes;  // 0: none are kept
  // auto (no narrower than the file), f32, bf16, f16, int8, fp8, k8v4, int4, int4-mean, k4v3; or one of these
  // per layer, with slashes between.
  std::string kv = "auto";
  // With kv auto: a tier that comes before the file's width where the backend has kernels for it.
  std::string preferred_kv;
  // auto (kv beside a quantized cache, else none), none, kv, all, or a list of r1, r2, r3, r4
  // (engine/graph/passes/rotate.h).
  std::string rotate = "auto";
  // Attention over a latent: absorbed (one formula for every row), or expanded, where rows of prompts make
  // keys and values of every head. A position's prefill then differs from its decode by roundings, and an
  // answer that comes again in a prompt is computed once more: pages know which rows were of prompts.
  std::string mla = "absorbed";
  int64_t max_context = 0;         // 0: the model's, as far as memory allows
  int64_t max_batch_tokens = 512;  // token budget of one step
  int64_t max_sequences = 64;      // running at once
  uint64_t memory_bytes = 0;       // budget for weights, KV and scratch together; 0: from memory_percent
  double memory_percent = 80;      // of the memory available to this process (cgroup limit respected)
  // Shared with other models: its budget then counts in place of the two above, except on a device with
  // memory of its own.
  Resources resources;
  double kv_share = 1;  // the most the KV cache may take of what weights and scratch leave
  // Of it for snapshots of recurrent state, which prefixes are found by; absent: an eighth. And behind how
  // many tokens there is one beside those at the ends of prompts and answers; a multiple of page_tokens, 0:
  // none.
  std::optional<uint64_t> state_snapshots;
  int64_t snapshot_tokens = 0;
  int32_t page_tokens = 64;
  bool prefix_cache = true;
  bool mixed_prefix = false;  // EngineOptions
  SpeculativeOptions speculative;
  // Adapters (adapters.h) that are loaded with the model: names and folders. Slots for them and for those to
  // come: 0 is as many as these; and the largest rank of one.
  std::vector<std::pair<std::string, std::string>> loras;
  int64_t max_loras = 0, max_lora_rank = 16;
  int64_t adapter_slots() const { return max_loras > 0 ? max_loras : static_cast<int64_t>(loras.size()); }
  bool deterministic = false;  // same reduction order for every batch, chunking and thread count
  bool reference = false;      // scalar double kernels: slow, the truth
  bool use_mmap = true;
  bool allow_special_in_text = false;  // control tokens in the text of chat messages count
  // Styles of tool calls and reasoning, by name (engine/text/tools/style.h); auto: as the chat template says.
  std::string tool_parser = "auto", reasoning_parser = "auto";
  size_t max_waiting = 4096;
  int32_t max_logprobs = 20;  // EngineOptions
  uint64_t seed = 0;
  std::vector<std::string> disabled_passes;
  Logger log;
};

// Defaults from generation_config.json; absent fields fall back to the protocol's.
struct GenerationDefaults {
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
};

// Facts for people: printed by `oar serve`, returned by metadata endpoints.
struct ModelInfo {
  std::string name, path, architecture;
  uint64_t parameters = 0;
  uint64_t weight_bytes = 0;                    // in memory, each once: in place or packed
  uint64_t linear_bytes = 0, expert_bytes = 0;  // of these, what a step streams through; all experts
  // Weights that a token is multiplied with, by number: of linear layers less the head, of all experts, of
  // the head.
  uint64_t linear_values = 0, expert_values = 0, head_values = 0;
  int64_t experts = 0, experts_per_token = 0;  // of a layer of a mixture; 0: the model is dense
  uint64_t kv_bytes = 0, scratch_bytes = 0, kv_bytes_per_token = 0;
  uint64_t state_bytes_per_step = 0;  // of recurrent state, that a step reads of a sequence
  int64_t max_context = 0, vocab_size = 0;
  int64_t max_sequences = 0;  // that run at once
  int32_t layers = 0, page_tokens = 0, num_blocks = 0, threads = 0;
  std::string weights, kv, isa;
  // Of the draft model, where there is one; its cache and scratch are counted above.
  std::string draft, draft_architecture;
  uint64_t draft_parameters = 0, draft_weight_bytes = 0;
  double load_seconds = 0;
};

class LanguageModel {
 public:
  // Loads a folder, a file or "demo" (the embedded default model). Refuses before allocating when the budget
  // does not hold weights, scratch and at least one sequence of pages, and says what would fit.
  static Result<std::unique_ptr<LanguageModel>> load(const std::string& path,
                                                     const LanguageModelOptions& options,
                                                     const Progress& progress = {});

  Engine& engine() { return *engine_; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const { return tokenizer_; }
  const ChatTemplate& chat_template() const { return *chat_template_; }
  const GenerationDefaults& defaults() const { return defaults_; }
  const ModelInfo& info() const { return info_; }
  // Strings the chat template names: its beginning- and end-of-sequence tokens.
  const std::string& bos_token() const { return bos_token_; }
  const std::string& eos_token() const { return eos_token_; }
  const std::vector<int32_t>& end_tokens() const { return end_tokens_; }  // at which the engine stops
  bool allows_special_in_text() const { return allow_special_in_text_; }
  // Compiles what Request::constraint takes, for this model's tokens; any thread but the engine's.
  const std::shared_ptr<grammar::ConstraintCompiler>& constraints() const { return constraints_; }
  // Null where the model was loaded without slots for adapters.
  const std::shared_ptr<Adapters>& adapters() const { return adapters_; }
  // How the model writes tool calls and reasoning; null: nobody knows, or it does not.
  const tools::ToolStyle* tool_style() const { return tool_style_; }
  const tools::ReasoningStyle* reasoning_style() const { return reasoning_style_; }
  // The same with what else plan_reply() wants to know.
  ReplyModel reply_model() const { return {tokenizer_, tool_style_, reasoning_style_, constraints_.get()}; }

 private:
  LanguageModel() = default;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_template_;
  GenerationDefaults defaults_;
  ModelInfo info_;
  std::string bos_token_, eos_token_;
  std::vector<int32_t> end_tokens_;
  bool allow_special_in_text_ = false;
  std::shared_ptr<grammar::ConstraintCompiler> constraints_;
  const tools::ToolStyle* tool_style_ = nullptr;
  const tools::ReasoningStyle* reasoning_style_ = nullptr;
  std::shared_ptr<Adapters> adapters_;
  Resources resources_;
  Reservation reserved_;            // mapped weights; on a device everything. Buffers hold their own
  Reservation draft_reserved_;      // the draft model's mapped weights
  std::unique_ptr<Engine> engine_;  // last: its thread stops before the rest goes
};

}  // namespace oar
