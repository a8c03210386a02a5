#include "server/api/ollama_answer.h"

#include "server/api/status_table.h"
#include "server/api/token_logprob.h"
#include "server/api/utc_text.h"

namespace oar::api {
namespace {

int64_t nanoseconds(Clock::time_point from, Clock::time_point to) {
  return std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

void begin(JsonWriter& w, const std::string& model) {
  w.begin_object().key("model").string(model);
  w.key("created_at").string(utc_text(std::chrono::system_clock::now()));
}

}  // namespace

OllamaAnswer::OllamaAnswer(const GenerationSpec& spec, bool chat)
    : model_(spec.model), chat_(chat), logprobs_(spec.request.logprobs.has_value()) {}

void OllamaAnswer::closed(size_t part) {
  if (parts_[part].kind == ReplyPart::Kind::kCall) piece_.calls.push_back(parts_[part]);
}

void OllamaAnswer::note(const TextEvent& event) {
  piece_.text += event.text;
  piece_.thinking += event.reasoning;
  parts_.add(event, this);
  if (logprobs_)
    for (const TextEvent::Token& token : event.tokens) {
      if (!piece_.logprobs.empty()) piece_.logprobs += ',';
      JsonWriter w(piece_.logprobs);
      write_token_logprob(w, *model_, token);
    }
  if (event.finish == FinishReason::kNone) return;
  parts_.close(this);
  finish_ = event.finish;
  stats_ = event.stats;
  failure_ = failure_of(event);
  finished_ = true;
}

void OllamaAnswer::append(std::string& out, const Piece& piece, bool done) const {
  JsonWriter w(out);
  begin(w, model_->name);
  if (chat_) {
    w.key("message").begin_object().key("role").string("assistant").key("content").string(piece.text);
  } else {
    w.key("response").string(piece.text);
  }
  if (!piece.thinking.empty()) w.key("thinking").string(piece.thinking);
  if (!piece.calls.empty()) {
    w.key("tool_calls").begin_array();
    for (const ReplyPart& call : piece.calls) {
      w.begin_object().key("id").string(call.id).key("function").begin_object();
      w.key("name").string(call.name).key("arguments");
      write_call_input(w, call.text);
      w.end_object().end_object();
    }
    w.end_array();
  }
  if (chat_) w.end_object();
  if (!piece.logprobs.empty()) w.key("logprobs").begin_array().raw(piece.logprobs).end_array();
  w.key("done").boolean(done);
  if (done) {
    w.key("done_reason").string(finish_reason_name(finish_));
    w.key("total_duration").number(nanoseconds(stats_.submitted, stats_.finished));
    w.key("load_duration").number(int64_t{0});
    w.key("prompt_eval_count").number(stats_.prompt_tokens);
    w.key("prompt_eval_duration").number(nanoseconds(stats_.scheduled, stats_.first_token));
    w.key("eval_count").number(stats_.completion_tokens);
    w.key("eval_duration").number(nanoseconds(stats_.first_token, stats_.finished));
  }
  w.end_object();
}

std::string OllamaAnswer::on_event(int32_t, const TextEvent& event) {
  if (finished_) return {};
  note(event);
  if (!failure_.ok()) return oip_error(failure_) + "\n";
  std::string out;
  if (!piece_.empty()) {
    append(out, piece_, false);
    out += '\n';
    piece_ = {};
  }
  if (finished_) {
    append(out, {}, true);
    out += '\n';
  }
  return out;
}

void OllamaAnswer::collect(int32_t, const TextEvent& event) { note(event); }

std::string OllamaAnswer::body() const {
  std::string out;
  append(out, piece_, true);
  return out;
}

std::string OllamaAnswer::loaded(const ModelHandle& model, bool chat) {
  std::string out;
  JsonWriter w(out);
  begin(w, model.name);
  if (chat) w.key("message").begin_object().key("role").string("assistant").key("content").string("");
  else w.key("response").string("");
  if (chat) w.end_object();
  w.key("done").boolean(true).key("done_reason").string("load").end_object();
  return out;
}

Result<std::string> ollama_embed_answer(const TensorModel& model, const EmbeddingRequest& request,
                                        std::vector<std::vector<float>> vectors, int64_t tokens) {
  OAR_RETURN_IF_ERROR(fit_vectors(request, vectors));
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("model").string(model.config.name).key("embeddings").begin_array();
  for (const std::vector<float>& vector : vectors) write_vector(w, request, vector);
  w.end_array();
  w.key("total_duration").number(nanoseconds(request.since, Clock::now()));
  w.key("load_duration").number(int64_t{0});
  w.key("prompt_eval_count").number(tokens).end_object();
  return out;
}

Result<std::string> ollama_embeddings_answer(const TensorModel&, const EmbeddingRequest& request,
                                             std::vector<std::vector<float>> vectors, int64_t) {
  OAR_RETURN_IF_ERROR(fit_vectors(request, vectors));
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("embedding");
  write_vector(w, request, vectors.at(0));
  w.end_object();
  return out;
}

}  // namespace oar::api
