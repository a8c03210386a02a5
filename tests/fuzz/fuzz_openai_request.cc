// Any bytes as a request body: a Status that names something, or a request whose values are inside their
// limits. The first byte picks the endpoint.
#include <cmath>
#include <cstdlib>

#include "engine/text/utf8.h"
#include "server/api/anthropic_request.h"
#include "server/api/decisions.h"
#include "server/api/frontend.h"
#include "server/api/llama_request.h"
#include "server/api/oip_request.h"
#include "server/api/ollama_request.h"
#include "server/api/responses_request.h"
#include "server/api/status_table.h"
#include "tests/fuzz/target.h"

namespace {

// Limits without an engine behind them.
class NoEngine final : public oar::Engine {
 public:
  NoEngine() {
    limits_.vocab_size = 1000;
    limits_.max_context = 512;
  }
  oar::Result<uint64_t> submit(oar::Request) override { return oar::unavailable("no engine"); }
  void cancel(uint64_t) override {}
  void finish_choice(uint64_t, int32_t, oar::FinishReason) override {}
  oar::Status check_room() const override { return oar::ok_status(); }
  void suspend(uint64_t) override {}
  void resume(uint64_t) override {}
  oar::EngineStats stats() const override { return {}; }
  const oar::RequestLimits& request_limits() const override { return limits_; }
  oar::EngineHealth health() const override { return oar::EngineHealth::kReady; }
  void on_step(std::function<void(const oar::StepInfo&)>) override {}
  bool drain(std::chrono::milliseconds) override { return true; }

 private:
  oar::RequestLimits limits_;
};

void require(bool ok) {
  if (!ok) std::abort();
}

void check_params(const oar::api::GenerationRequest& p) {
  const oar::SamplingParams& s = p.sampling;
  require(std::isfinite(s.temperature) && s.temperature >= 0);
  require(s.top_p > 0 && s.top_p <= 1 && s.min_p >= 0 && s.min_p <= 1 && s.top_k >= 0);
  require(p.n >= 1 && p.n <= 128 && p.max_tokens.value_or(0) >= 0 && p.stop.min_tokens >= 0);
  for (const auto& [id, bias] : s.logit_bias) require(id >= 0 && id < 1000 && std::fabs(bias) <= 100);
  for (const int32_t id : p.stop.stop_token_ids) require(id >= 0 && id < 1000);
  for (const std::string& stop : p.text.stop) require(!stop.empty());
}

void check_conversation(const oar::api::GenerationRequest& r) {
  require(!r.conversation->messages.empty());
  for (const auto& m : r.conversation->messages) require(!m.role.empty());
  for (const auto& prompt : r.prompts)
    for (const int32_t id : std::get<std::vector<int32_t>>(prompt)) require(id >= 0 && id < 1000);
}

// The error object of any failure is valid JSON with its four keys.
void check_error(const oar::Status& status) {
  require(!status.message().empty());
  const auto parsed = oar::parse_json(oar::api::openai_error(status), "error");
  require(parsed.ok() && parsed->at("error").as_object().size() == 4);
  require(oar::parse_json(oar::api::anthropic_error(status), "error").ok());
}

// Ollama's and llama.cpp's requests, and decisions: first bytes from 0x80.
void others(uint8_t which, const oar::json::object& body, const oar::ModelHandle& model,
            const oar::api::ApiLimits& limits) {
  switch (which % 8) {
    case 0:
    case 1: {
      const auto r = which % 8 == 0 ? oar::api::parse_ollama_chat(body, model, limits)
                                    : oar::api::parse_ollama_generate(body, model, limits);
      if (!r.ok()) return check_error(r.status());
      check_params(*r);
      require(r->n == 1 && (oar::api::loads_only(*r) || r->conversation || r->prompts.size() == 1));
      return;
    }
    case 2:
    case 3: {
      const auto r =
          which % 8 == 2 ? oar::api::parse_ollama_embed(body) : oar::api::parse_ollama_embeddings(body);
      if (!r.ok()) return check_error(r.status());
      require(!r->inputs.empty());
      return;
    }
    case 4: {
      const auto r = oar::api::parse_ollama_show(body);
      if (!r.ok()) check_error(r.status());
      return;
    }
    case 7: {
      const auto r = oar::api::parse_decision_request(body, model, limits);
      if (!r.ok()) return check_error(r.status());
      check_params(r->request);
      require(!r->questions.empty());
      for (const auto& q : r->questions) require(q.options.size() >= 2 && q.options.size() <= 26);
      return;
    }
    default: {
      const auto r = oar::api::parse_llama_request(body, model, limits, which % 8 == 6);
      if (!r.ok()) return check_error(r.status());
      check_params(r->request);
      require(!r->request.prompts.empty() && r->request.n == 1);
      return;
    }
  }
}

}  // namespace

OAR_FUZZ_TARGET(openai_request) {
  static NoEngine engine;
  static const oar::ModelHandle model = [] {
    oar::ModelHandle m;
    m.name = "m";
    m.engine = &engine;
    return m;
  }();
  const oar::api::ApiLimits limits;
  if (size == 0) return 0;
  oar::api::find_model_field({reinterpret_cast<const char*>(data) + 1, size - 1});
  const auto body = oar::api::parse_body({reinterpret_cast<const char*>(data) + 1, size - 1});
  if (!body.ok()) {
    check_error(body.status());
    return 0;
  }
  const auto name = oar::api::parse_model_field(*body);
  if (!name.ok()) check_error(name.status());
  if (data[0] >= 0x80) return others(data[0], *body, model, limits), 0;
  switch (data[0] % 7) {
    case 0: {
      const auto r = oar::api::parse_chat_request(*body, model, limits);
      if (!r.ok()) return check_error(r.status()), 0;
      check_params(*r);
      check_conversation(*r);
      return 0;
    }
    case 1: {
      const auto r = oar::api::parse_completion_request(*body, model, limits);
      if (!r.ok()) return check_error(r.status()), 0;
      check_params(*r);
      require(!r->prompts.empty() && r->prompts.size() * static_cast<size_t>(r->n) <= 512);
      return 0;
    }
    case 2: {
      const auto r = oar::api::parse_tokenize_request(*body, model, limits);
      if (!r.ok()) check_error(r.status());
      return 0;
    }
    case 3: {
      const auto r = oar::api::parse_detokenize_request(*body, model);
      if (!r.ok()) return check_error(r.status()), 0;
      for (const int32_t id : r->tokens) require(id >= 0 && id < 1000);
      return 0;
    }
    case 5: {
      const auto r = oar::api::parse_responses_request(*body, model, limits);
      if (!r.ok()) return check_error(r.status()), 0;
      check_params(r->request);
      check_conversation(r->request);
      return 0;
    }
    case 6: {
      const auto r = oar::api::parse_messages_request(*body, model, limits, data[0] & 8);
      if (!r.ok()) return check_error(r.status()), 0;
      check_params(*r);
      check_conversation(*r);
      return 0;
    }
    default: {
      const auto r = oar::api::parse_generate_body(*body, data[0] & 8);
      if (!r.ok()) return check_error(r.status()), 0;
      const auto wanted = oar::api::text_generation(*r, model, limits);
      if (!wanted.ok()) return check_error(wanted.status()), 0;
      check_params(*wanted);
      return 0;
    }
  }
}
