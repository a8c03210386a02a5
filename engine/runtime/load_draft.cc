#include "engine/runtime/load_draft.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/model_tokenizer.h"

namespace oar {

Status check_same_tokens(const Tokenizer& target, const Tokenizer& draft, const std::string& name) {
  const int32_t n = std::max(target.vocab_size(), draft.vocab_size());
  const auto text = [](const Tokenizer& t, int32_t id) {
    return id < t.vocab_size() ? t.token_text(id) : std::string_view();
  };
  const auto shown = [](std::string_view token) {
    return token.empty() ? std::string("no token") : cat("\"", token, "\"");
  };
  for (int32_t id = 0; id < n; ++id) {
    if (text(target, id) == text(draft, id)) continue;
    return invalid_argument(cat("draft_model ", name, ": token ", id, " is ", shown(text(draft, id)),
                                ", and of the model it drafts for ", shown(text(target, id)),
                                "; give a draft model of the same tokenizer"),
                            "draft_model");
  }
  return ok_status();
}

Result<LoadedDraft> load_draft(const std::string& path, const LanguageModelOptions& options,
                               const Tokenizer& target, int64_t max_context,
                               const std::shared_ptr<Backend>& backend, const ModelMemory& memory,
                               const Progress& progress) {
  LoadedDraft out;
  OAR_ASSIGN(const ResolvedModel resolved, resolve_model(path));
  out.name = resolved.name;
  LanguageModelOptions own = options;
  own.speculative = {};
  own.loras.clear();
  own.max_loras = 0;
  own.kv = own.rotate = "auto";
  own.preferred_kv.clear();
  own.mla = "absorbed";
  own.max_context = max_context;
  OAR_ASSIGN(const ModelSource source, read_model_source(resolved.path, own, *backend, progress));
  OAR_ASSIGN(const TokenizerPtr tokens, make_tokenizer(source.checkpoint.tokenizer, source.config.vocab));
  OAR_RETURN_IF_ERROR(check_same_tokens(target, *tokens, out.name));
  if (source.config.max_context < max_context)
    return invalid_argument(
        cat("draft_model ", out.name, ": it was made for ", source.config.max_context,
            " tokens, and the model it drafts for is served with ", max_context,
            "; give a draft model with a context as long, or max_context ", source.config.max_context),
        "draft_model");
  out.architecture = source.config.model_type;
  out.parameters = source.parameters;
  OAR_ASSIGN(out.plan, plan_model(source, cat(options.name, " draft model ", out.name), own, backend, memory,
                                  progress));
  return out;
}

}  // namespace oar
