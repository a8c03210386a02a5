#include "server/api/token_logprob.h"

#include "engine/base/format.h"
#include "server/api/text_tools.h"

namespace oar::api {

void write_token_logprob(JsonWriter& w, const ModelHandle& model, const TextEvent::Token& token,
                         bool with_ids, bool names_ids) {
  const auto describe_token = [&](int32_t id, float logprob) {
    const std::string bytes = token_bytes(model, id);
    if (with_ids) w.key("id").number(id);
    w.key("token")
        .string(names_ids ? cat("token_id:", id) : bytes)
        .key("logprob")
        .number(logprob)
        .key("bytes")
        .begin_array();
    for (const char b : bytes) w.number(static_cast<int32_t>(static_cast<unsigned char>(b)));
    w.end_array();
  };
  w.begin_object();
  describe_token(token.id, token.logprob);
  w.key("top_logprobs").begin_array();
  for (const TokenLogprob& alternative : token.top) {
    w.begin_object();
    describe_token(alternative.token, alternative.logprob);
    w.end_object();
  }
  w.end_array().end_object();
}

}  // namespace oar::api
