// Perplexity of a model on a text, through the same Engine that serves: log-probabilities of prompt tokens,
// no code path of its own.
//
// Protocol. The text is cut into documents at `separator`; if it occurs at all, each document is stripped of
// white space at both ends and empty ones are dropped. A document's ids (encoded without special tokens) are
// cut into consecutive windows of context - 1 ids; each window is evaluated alone, behind one BOS when the
// model has one. Every id is predicted once, from the BOS and the ids before it in its window. Without BOS
// the first id of a window is not predicted. Sums are in double.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/log.h"
#include "engine/runtime/engine.h"
#include "engine/text/tokenizer.h"

namespace oar {

struct PerplexityOptions {
  int64_t context = 0;  // ids per window, BOS included; 0: the engine's
  std::string separator = "<|endoftext|>";
  bool add_bos = true;
  std::shared_ptr<const AdapterLease> adapter;  // of all requests; null: the model without one
  int in_flight = 4;                            // windows handed to the engine at once
};

struct EvalResult {
  double nll = 0;      // sum of -ln p
  int64_t tokens = 0;  // predicted
  int64_t documents = 0, windows = 0;
  uint64_t bytes = 0;  // of the documents
  int64_t context = 0;
  double seconds = 0;
  double perplexity() const;     // exp(nll / tokens)
  double bits_per_byte() const;  // nll / ln 2 / bytes: comparable between tokenizers
};

struct EvalWindows {
  std::vector<std::vector<int32_t>> windows;
  int64_t documents = 0;
  uint64_t bytes = 0;
};

// The windows of the protocol. INVALID_ARGUMENT when the text has nothing to predict or context is below 2.
Result<EvalWindows> eval_windows(const Tokenizer& tokenizer, std::string_view text,
                                 const PerplexityOptions& options);

// Blocks until done; `progress` is told windows and may stop the work (CANCELLED).
Result<EvalResult> evaluate_perplexity(Engine& engine, const Tokenizer& tokenizer, std::string_view text,
                                       PerplexityOptions options, const Progress& progress = {});

}  // namespace oar
