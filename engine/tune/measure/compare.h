// The instrument: what weight formats and KV tiers cost, measured on a text against a 16-bit reference, in
// one table. Each case runs beside the reference, chunk by chunk, through the graph and kernels that serve;
// nothing but a chunk of logits is kept, so a large vocabulary costs no memory.
//
// The windows are those of eval.h. The reference runs its weights as they are in its file, with an f32 cache.
#pragma once

#include <string>
#include <vector>

#include "engine/tune/measure/eval.h"
#include "engine/tune/measure/eval_model.h"

namespace oar {

struct CompareCase {
  std::string label;  // the checkpoint's name, for people
  const Checkpoint* checkpoint = nullptr;
  std::string weights = "auto", kv = "auto";  // as LanguageModelOptions; kv also a name of peer_kv()
  std::string rotate = "auto";
  std::string activations;  // a name of activation_code(); empty: as the kernels take them
};

struct CompareOptions {
  LanguageModelOptions model;     // threads, page size and so on; what cases and contexts say is set here
  std::vector<int64_t> contexts;  // tokens per window, BOS included
  PerplexityOptions eval;         // separator and BOS; context is taken from `contexts`
  int64_t rows = 256;             // tokens per chunk
};

struct CompareRow {
  std::string label, weights, kv, rotate, activations;
  int64_t context = 0, positions = 0;
  ModelBits bits;
  double kv_bits = 0;  // per element of what queries saw, 16-bit pages beside quantized ones among it
  double perplexity = 0, reference_perplexity = 0;
  double mean_kld = 0, mean_kld_error = 0, p99_kld = 0, top1 = 0, logit_snr_db = 0, seconds = 0;
  double perplexity_change() const { return perplexity / reference_perplexity - 1; }
};

struct CompareReport {
  std::string reference, text;
  std::vector<CompareRow> rows;
  double seconds = 0;
};

// Blocks until done. INVALID_ARGUMENT names a case that cannot be built, or whose vocabulary differs from the
// reference's.
Result<CompareReport> compare_models(const Checkpoint& reference, const Tokenizer& tokenizer,
                                     std::string_view text, const std::vector<CompareCase>& cases,
                                     const CompareOptions& options, const Progress& progress = {});

// A table for a terminal or a Markdown page.
std::string compare_table(const CompareReport& report);
json::object compare_json(const CompareReport& report);
// Mean KLD (log scale) against bits per weight, or against bits per element of the KV cache where only those
// vary.
std::string compare_svg(const CompareReport& report);

}  // namespace oar
