#include "server/http/generation_route.h"

namespace oar::http {
namespace {

using api::Generation;
using WriterPtr = std::shared_ptr<ResponseWriter>;

// One answer under way. Lives in the generation's callback; touched by the connection's thread only.
struct AnswerUnderWay {
  AnswerUnderWay(api::Prepared& prepared, std::string p, WriterPtr w)
      : streaming(prepared.stream),
        text(std::move(prepared.answer)),
        writer(std::move(w)),
        path(std::move(p)),
        id(prepared.spec.request.id) {}

  void open_stream() {
    if (!streaming || opened) return;
    opened = true;
    writer->start_stream(
        {200, text->content_type(), {{"Cache-Control", "no-cache"}, {"X-Request-Id", id}}, ""});
  }
  void on_event(Generation& generation, int32_t choice, const TextEvent& event) {
    if (closed) return;
    if (streaming) {
      open_stream();
      writer->write(text->on_event(choice, event));
    } else {
      text->collect(choice, event);
    }
    if (!text->failure().ok()) generation.cancel();  // the other choices have no reader any more
    if (!text->finished() && text->failure().ok()) return;
    closed = true;
    if (streaming) {
      writer->finish();
    } else if (text->failure().ok()) {
      Response r = json_answer(text->body());
      r.headers.push_back({"X-Request-Id", id});
      writer->send(std::move(r));
    } else {
      writer->send(error_answer(path, text->failure()));
    }
  }

  const bool streaming;
  const std::unique_ptr<api::AnswerWriter> text;
  const WriterPtr writer;
  const std::string path, id;
  bool opened = false, closed = false;
};

}  // namespace

Status start_generation(const Services& services, Prepare prepare, api::RequestContext context,
                        const std::string& path, const std::string& body_text, const WriterPtr& writer) {
  const Result<json::object> body = api::parse_body(body_text);
  if (!body.ok()) return services.frontend->refused(body.status(), {}, context);
  return start_generation(services, prepare, std::move(context), path, *body, writer);
}

Status start_generation(const Services& services, Prepare prepare, api::RequestContext context,
                        const std::string& path, const json::object& body, const WriterPtr& writer) {
  context.gone = watch_leaving(*writer);
  Result<api::Prepared> made = (services.frontend->*prepare)(body, context);
  if (!made.ok()) {
    const Result<std::string> model = api::parse_model_field(body);
    return services.frontend->refused(made.status(), model.ok() ? *model : std::string(), context);
  }
  api::Prepared& prepared = *made;
  if (prepared.done) {
    writer->send(json_answer(std::move(*prepared.done)));
    return ok_status();
  }
  auto answer = std::make_shared<AnswerUnderWay>(prepared, path, writer);
  OAR_ASSIGN(
      const std::shared_ptr<Generation> generation,
      Generation::start(
          std::move(prepared.spec), [writer](api::Job job) { writer->post(std::move(job)); },
          [answer](Generation& g, int32_t choice, TextEvent&& event) { answer->on_event(g, choice, event); },
          reads_along(answer->streaming, writer)));
  writer->post([answer] { answer->open_stream(); });
  writer->on_drain([generation] { generation->wake(); });
  // Also what keeps the generation alive until its answer is complete.
  writer->on_disconnect([generation] { generation->cancel(api::caller_left()); });
  return ok_status();
}

std::shared_ptr<const std::atomic<bool>> watch_leaving(ResponseWriter& writer) {
  auto gone = std::make_shared<std::atomic<bool>>(false);
  writer.on_disconnect([gone] { *gone = true; });
  return gone;
}

Generation::Ready reads_along(bool streaming, const WriterPtr& writer) {
  if (!streaming) return {};  // the answer is collected, however long it takes to send
  return [writer] { return !writer->behind(); };
}

Handler generation_route(const Services& services, Prepare prepare) {
  return [&services, prepare](Request&& request, WriterPtr writer) {
    Result<api::RequestContext> context = context_of(services, request);
    if (context.ok()) {
      if (const auto refusal = services.frontend->refuse_early(request.body, *context))
        return writer->send(error_answer(request.path, *refusal));
    }
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post(
        [&services, prepare, shared, writer = std::move(writer), context = std::move(context)]() mutable {
          const auto excess = std::make_shared<api::PromptExcess>();
          if (context.ok()) context->excess = excess;
          const Status s = context.ok() ? start_generation(services, prepare, std::move(*context),
                                                           shared->path, shared->body, writer)
                                        : services.frontend->refused(context.status(), {}, {});
          if (!s.ok()) writer->send(error_answer(shared->path, s, *excess));
        });
  };
}

Handler json_route(const Services& services, JsonMethod method) {
  return [&services, method](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post([&services, method, shared, writer = std::move(writer)] {
      const Result<json::object> body = api::parse_body(shared->body);
      const Result<std::string> answer = body.ok() ? (services.frontend->*method)(*body) : body.status();
      writer->send(answer.ok() ? json_answer(*answer) : error_answer(shared->path, answer.status()));
    });
  };
}

}  // namespace oar::http
