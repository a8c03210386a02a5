// A conversation in JSON to the prompt of a model.
#pragma once

#include <string>

#include "engine/runtime/language_model.h"

namespace oar::capi {

// `tools` may be null. INVALID_ARGUMENT for what is no conversation or the template refuses.
Result<ChatPrompt> chat_prompt(LanguageModel& model, const char* messages, const char* tools);
Result<ChatPrompt> chat_prompt(LanguageModel& model, const char* messages, const json::array* tools);

}  // namespace oar::capi
