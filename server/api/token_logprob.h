// A token with its log-probability and its alternatives, as OpenAI's chats word it; others took it over.
#pragma once

#include "engine/runtime/text_stream.h"
#include "server/api/json_writer.h"
#include "server/api/model_handle.h"

namespace oar::api {

// {"token":text,"logprob":x,"bytes":[...],"top_logprobs":[the same without the last]}; `with_ids` also "id",
// which is llama.cpp's.
// `names_ids`: text is "token_id:" and the id, which is vLLM's.
void write_token_logprob(JsonWriter& w, const ModelHandle& model, const TextEvent::Token& token,
                         bool with_ids = false, bool names_ids = false);

// llama.cpp's, of what was drawn from: "prob" and "top_probs" take the places of those.
void write_token_probability(JsonWriter& w, const ModelHandle& model, const TextEvent::Token& token);

}  // namespace oar::api
