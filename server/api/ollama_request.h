// Ollama's requests: /api/chat, /api/generate, /api/embed and the older /api/embeddings. Sampling stands in
// `options`, under Ollama's names or the common ones, and `stream` is true unless it is said otherwise. What
// has no meaning here (images, templates, contexts) is refused by name.
#pragma once

#include <string>

#include "server/api/embeddings.h"
#include "server/api/generation_request.h"

namespace oar::api {

// Without messages, or without a prompt, it asks for no text: the protocol's way to have a model loaded. Then
// loads_only() holds.
Result<GenerationRequest> parse_ollama_chat(const RequestBody& body, const ModelHandle& model,
                                            const ApiLimits& limits);
// With `raw`, a `suffix`, or a model that has no chat template the prompt is taken as it is.
Result<GenerationRequest> parse_ollama_generate(const RequestBody& body, const ModelHandle& model,
                                                const ApiLimits& limits);
bool loads_only(const GenerationRequest& request);

// Longer texts are cut unless `truncate` is false.
Result<EmbeddingRequest> parse_ollama_embed(const RequestBody& body);
Result<EmbeddingRequest> parse_ollama_embeddings(const RequestBody& body);

struct OllamaShowRequest {
  std::string model;
  bool verbose = false;
};
Result<OllamaShowRequest> parse_ollama_show(const RequestBody& body);

}  // namespace oar::api
