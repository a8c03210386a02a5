#include "server/api/token_logprob.h"

#include <cmath>

#include "engine/base/format.h"
#include "server/api/text_tools.h"

namespace oar::api {
namespace {

// `value` writes the member that says how likely it is.
template <class F>
void write_token(JsonWriter& w, const ModelHandle& model, int32_t id, bool with_id, bool names_ids,
                 F&& value) {
  const std::string bytes = token_bytes(model, id);
  if (with_id) w.key("id").number(id);
  w.key("token").string(names_ids ? cat("token_id:", id) : bytes);
  value();
  w.key("bytes").begin_array();
  for (const char b : bytes) w.number(static_cast<int32_t>(static_cast<unsigned char>(b)));
  w.end_array();
}

// The token, then its alternatives under the name `others`.
template <class F>
void write_with_others(JsonWriter& w, const TextEvent::Token& token, const char* others, F&& one) {
  w.begin_object();
  one(token.id, token.logprob);
  w.key(others).begin_array();
  for (const TokenLogprob& alternative : token.top) {
    w.begin_object();
    one(alternative.token, alternative.logprob);
    w.end_object();
  }
  w.end_array().end_object();
}

}  // namespace

void write_token_logprob(JsonWriter& w, const ModelHandle& model, const TextEvent::Token& token,
                         bool with_ids, bool names_ids) {
  write_with_others(w, token, "top_logprobs", [&](int32_t id, float logprob) {
    write_token(w, model, id, with_ids, names_ids, [&] { w.key("logprob").number(logprob); });
  });
}

void write_token_probability(JsonWriter& w, const ModelHandle& model, const TextEvent::Token& token) {
  write_with_others(w, token, "top_probs", [&](int32_t id, float logprob) {
    write_token(w, model, id, true, false, [&] { w.key("prob").number(std::exp(logprob)); });
  });
}

}  // namespace oar::api
