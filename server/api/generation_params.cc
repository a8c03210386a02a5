#include "server/api/generation_params.h"

#include <charconv>

#include "engine/base/format.h"

namespace oar::api {
namespace {

// {"<token id>": bias}: JSON object keys are strings, so the ids are too.
void read_logit_bias(Fields& fields, const RequestLimits& engine, SamplingParams& sampling) {
  const json::object* bias = fields.object("logit_bias");
  if (!bias) return;
  if (bias->size() > engine.max_logit_bias) {
    return fields.fail("logit_bias", cat("logit_bias has ", bias->size(), " entries; at most ",
                                         engine.max_logit_bias, " are accepted"));
  }
  for (const auto& entry : *bias) {
    const std::string_view key(entry.key().data(), entry.key().size());
    int64_t id = -1;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0 ||
        id >= engine.vocab_size) {
      return fields.fail("logit_bias", cat("logit_bias names token id ", describe(json::value(entry.key())),
                                           "; ids are integers in [0, ", engine.vocab_size, ")"));
    }
    json::error_code ec;
    const double value = entry.value().to_number<double>(ec);
    if (ec || !(value >= -100 && value <= 100)) {
      return fields.fail(
          "logit_bias",
          cat("logit_bias of token ", id, " must be a number in [-100, 100], got ", describe(entry.value())));
    }
    sampling.logit_bias.emplace_back(static_cast<int32_t>(id), static_cast<float>(value));
  }
}

}  // namespace

GenerationParams default_params(const GenerationDefaults& defaults) {
  GenerationParams p;
  if (defaults.temperature) p.sampling.temperature = *defaults.temperature;
  if (defaults.top_p) p.sampling.top_p = *defaults.top_p;
  if (defaults.min_p) p.sampling.min_p = *defaults.min_p;
  if (defaults.top_k) p.sampling.top_k = *defaults.top_k;
  if (defaults.repetition_penalty) p.sampling.repetition_penalty = *defaults.repetition_penalty;
  return p;
}

void read_params(Fields& f, const RequestLimits& engine, const ApiLimits& limits, int64_t min_max_tokens,
                 GenerationParams& p) {
  constexpr int64_t kMaxTokens = int64_t{1}
                                 << 31;  // far beyond any context; the engine stops at the context's end
  f.number("temperature", p.sampling.temperature, 0, 100);
  f.number("top_p", p.sampling.top_p, 0, 1);
  if (f.ok() && !(p.sampling.top_p > 0))
    f.fail("top_p", "top_p must be in (0, 1], got 0; use temperature 0 for greedy");
  int32_t top_k = p.sampling.top_k;
  f.integer("top_k", top_k, -1, INT32_MAX);
  p.sampling.top_k = top_k < 0 ? 0 : top_k;  // vLLM writes -1 for all
  f.number("min_p", p.sampling.min_p, 0, 1);
  f.number("repetition_penalty", p.sampling.repetition_penalty, 0.01, 100);
  f.number("presence_penalty", p.sampling.presence_penalty, -2, 2);
  f.number("frequency_penalty", p.sampling.frequency_penalty, -2, 2);
  f.bits("seed", p.sampling.seed);
  read_logit_bias(f, engine, p.sampling);

  std::optional<int64_t> max_tokens;
  // llama.cpp's name; -1: as many as the context holds.
  if (const json::value* n = f.find("n_predict"); n && *n != -1)
    f.integer("n_predict", max_tokens, min_max_tokens, kMaxTokens);
  f.integer("max_tokens", max_tokens, min_max_tokens, kMaxTokens);
  f.integer("max_completion_tokens", max_tokens, min_max_tokens, kMaxTokens);
  if (max_tokens) {
    p.stop.max_tokens = *max_tokens;
    p.max_tokens_given = true;
  }
  f.integer("min_tokens", p.stop.min_tokens, 0, kMaxTokens);
  if (f.ok() && p.max_tokens_given && p.stop.min_tokens > p.stop.max_tokens) {
    f.fail("min_tokens",
           cat("min_tokens is ", p.stop.min_tokens, " but max_tokens only ", p.stop.max_tokens));
  }
  f.boolean("ignore_eos", p.stop.ignore_eos);
  f.integers("stop_token_ids", p.stop.stop_token_ids, engine.max_stop_tokens, 0, engine.vocab_size - 1);
  f.strings("stop", p.text.stop, limits.max_stop_strings, limits.max_stop_bytes);
  f.boolean("include_stop_str_in_output", p.text.include_stop_in_output);
  f.boolean("skip_special_tokens", p.text.skip_special_tokens);

  f.integer("n", p.n, 1, engine.max_n);
  f.string("cache_salt", p.cache_salt, 256);
  f.number("timeout", p.timeout_seconds, 0.001, limits.max_timeout_seconds);
}

}  // namespace oar::api
