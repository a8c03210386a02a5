// What Google's Vertex AI asks of a container: one path that takes several requests and answers all of them,
// and one that says that it is ready. As llama.cpp's server has it, a request is a chat.
#include <atomic>

#include "engine/base/format.h"
#include "server/api/openai_request.h"
#include "server/http/collected_answer.h"
#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;
constexpr const char* kChats = "/v1/chat/completions";  // whose words its errors have

// Answers that come one by one, and go together. The first that is none is the answer to all.
class Predictions {
 public:
  Predictions(WriterPtr writer, size_t count) : writer_(std::move(writer)), answers_(count), open_(count) {}

  void take(size_t k, api::BatchAnswer answer) {
    answers_[k] = std::move(answer);
    if (--open_ > 0) return;
    std::string out = R"({"predictions":[)";
    for (size_t i = 0; i < answers_.size(); ++i) {
      if (answers_[i].status != 200)
        return writer_->send(
            {static_cast<int>(answers_[i].status), "application/json", {}, std::move(answers_[i].body)});
      out += (i > 0 ? "," : "") + answers_[i].body;
    }
    writer_->send(json_answer(out + "]}"));
  }

 private:
  const WriterPtr writer_;
  std::vector<api::BatchAnswer> answers_;
  std::atomic<size_t> open_;
};

// The chat that an instance is.
Result<std::string> chat_of(const json::value& instance, const std::string& path) {
  if (!instance.is_object())
    return invalid_argument(cat(path, " must be an object, got ", api::describe(instance)), path);
  json::object body = instance.get_object();
  constexpr const char* kFormat = "@requestFormat";
  if (const json::value* format = body.if_contains(kFormat); format && *format != "chatCompletions")
    return invalid_argument(
        cat(path, ".", kFormat, " is ", api::describe(*format), "; chatCompletions is the one there is"),
        cat(path, ".", kFormat));
  body.erase(kFormat);
  if (const json::value* stream = body.if_contains("stream"); stream && *stream == true)
    return invalid_argument(cat(path, ".stream: predictions are whole answers; leave it out"),
                            path + ".stream");
  return json::serialize(body);
}

Status predict(const Services& services, const Request& request, const WriterPtr& writer) {
  OAR_ASSIGN(api::RequestContext context, context_of(services, request));
  OAR_ASSIGN(const json::object body, api::parse_body(request.body));
  api::Fields f(body);
  f.require("instances", "send a list of requests");
  const json::array* instances = f.array("instances");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  const size_t most = services.frontend->limits().max_prompts;
  if (instances->empty() || instances->size() > most)
    return invalid_argument(cat("instances has ", instances->size(), " elements; send 1 to ", most),
                            "instances");
  std::vector<std::string> chats;
  for (size_t k = 0; k < instances->size(); ++k) {
    OAR_ASSIGN(std::string chat, chat_of((*instances)[k], cat("instances[", k, "]")));
    chats.push_back(std::move(chat));
  }
  if (chats.size() > 1) context.id.clear();  // each has its own
  const auto all = std::make_shared<Predictions>(writer, chats.size());
  std::vector<std::shared_ptr<CollectedAnswer>> each;
  for (size_t k = 0; k < chats.size(); ++k)
    each.push_back(std::make_shared<CollectedAnswer>(
        services.workers->executor(),
        [all, k](api::BatchAnswer answer) { all->take(k, std::move(answer)); }));
  writer->on_disconnect([each] {
    for (const auto& one : each) one->cancel();
  });
  for (size_t k = 0; k < chats.size(); ++k) {
    const Status s =
        start_generation(services, &api::Frontend::prepare_chat, context, kChats, chats[k], each[k]);
    if (!s.ok()) each[k]->send(error_answer(kChats, s));
  }
  return ok_status();
}

}  // namespace

void add_vertex_routes(Router& router, const Services& services) {
  if (services.predict_path.empty()) return;
  router.add("POST", services.predict_path, [&services](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post([&services, shared, writer = std::move(writer)] {
      const Status s = predict(services, *shared, writer);
      if (!s.ok()) writer->send(error_answer(kChats, s));
    });
  });
  router.add(
      "GET", services.health_path,
      [&services](Request&&, WriterPtr writer) {
        writer->send(Response{services.frontend->ready() ? 200 : 503, "", {}, ""});
      },
      Access::kOpen, true);
}

}  // namespace oar::http
