// Loading a draft model: same tokens as its target, a context as long, and a share of the same budget.
#pragma once

#include "engine/runtime/model_plan.h"

namespace oar {

// INVALID_ARGUMENT names the first token that differs.
Status check_same_tokens(const Tokenizer& target, const Tokenizer& draft, const std::string& name);

struct LoadedDraft {
  ModelPlan plan;
  std::string name, architecture;
  uint64_t parameters = 0;
};
// What `options` say of weights, device and steps holds for it too. Its cache is as wide as its file says, it
// has no adapters, and it drafts for contexts of `max_context`.
Result<LoadedDraft> load_draft(const std::string& path, const LanguageModelOptions& options,
                               const Tokenizer& target, int64_t max_context,
                               const std::shared_ptr<Backend>& backend, const ModelMemory& memory,
                               const Progress& progress);

}  // namespace oar
