// Paths by which other servers' clients know what stands under a path of OpenAI's here.
#pragma once

#include <string_view>

namespace oar::api {

struct RouteAlias {
  std::string_view path, of;
};
inline constexpr RouteAlias kRouteAliases[] = {
    {"/chat/completions", "/v1/chat/completions"},
    {"/chat/completions/input_tokens", "/v1/chat/completions/input_tokens"},
    {"/models", "/v1/models"},
    // Azure's, whose bodies name the model as well.
    {"/openai/deployments/{model}/chat/completions", "/v1/chat/completions"},
    {"/openai/deployments/{model}/completions", "/v1/completions"},
    {"/openai/deployments/{model}/embeddings", "/v1/embeddings"},
    {"/responses", "/v1/responses"},
    {"/reranking", "/v1/rerank"},
    {"/v1/reranking", "/v1/rerank"},
};

// The path that `pattern` stands for, itself where it is no alias.
constexpr std::string_view without_alias(std::string_view pattern) {
  for (const RouteAlias& alias : kRouteAliases)
    if (alias.path == pattern) return alias.of;
  return pattern;
}

}  // namespace oar::api
