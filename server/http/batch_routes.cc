// /v1/files and /v1/batches, and the way that the requests of batches take: that of all others, to a writer
// that hands the answer back.
#include <charconv>
#include <cstdio>

#include "engine/base/format.h"
#include "server/api/openai_request.h"
#include "server/http/collected_answer.h"
#include "server/http/generation_route.h"
#include "server/http/multipart.h"

namespace oar::http {
namespace {

using WriterPtr = std::shared_ptr<ResponseWriter>;

// ---- requests of batches ----

Status start_batched(const Services& services, const api::BatchRequest& request, api::RequestContext context,
                     const WriterPtr& writer) {
  if (request.url == "/v1/embeddings")
    return start_embedding(services, std::move(context), request.url, request.body, writer);
  const Prepare prepare = request.url == "/v1/completions" ? &api::Frontend::prepare_completion
                          : request.url == "/v1/responses" ? &api::Frontend::prepare_responses
                                                           : &api::Frontend::prepare_chat;
  return start_generation(services, prepare, std::move(context), request.url, request.body, writer);
}

// ---- routes ----

Status off() {
  return unimplemented(
      "files and batches need a folder on the server, and it has none; start it with --files DIR");
}

std::string owner_of(const api::RequestContext& context) {
  return context.tenant ? context.tenant->name() : std::string();
}

// `answer` makes JSON of a request, on a worker thread, for it may wait for a disk.
template <class Answer>
Handler stored(const Services& services, Answer answer) {
  return [&services, answer](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post([&services, answer, shared, writer = std::move(writer)] {
      const auto made = [&]() -> Result<std::string> {
        if (services.files == nullptr) return off();
        OAR_ASSIGN(const api::RequestContext context, context_of(services, *shared));
        return answer(*shared, owner_of(context));
      }();
      writer->send(made.ok() ? json_answer(*made) : error_answer(shared->path, made.status()));
    });
  };
}

Result<std::string> upload(api::FileStore& files, const Request& request, const std::string& owner) {
  OAR_ASSIGN(const std::vector<FormPart> parts, parse_form(request.header("Content-Type"), request.body));
  json::object fields;
  std::string_view content;
  for (const FormPart& part : parts) {
    if (part.name == "file") {
      if (!part.file_name || part.file_name->empty())
        return invalid_argument("file: the part has no file name; send it as a file", "file");
      content = part.content;
      fields["file"] = *part.file_name;
      continue;
    }
    if (part.file_name) return invalid_argument(cat(part.name, " is sent as a file, and is none"), part.name);
    // Forms have texts alone.
    int64_t number = 0;
    const auto [end, error] =
        std::from_chars(part.content.data(), part.content.data() + part.content.size(), number);
    const bool whole = error == std::errc() && end == part.content.data() + part.content.size();
    if (whole) fields[part.name] = number;
    else fields[part.name] = json::string(part.content.data(), part.content.size());
  }
  OAR_ASSIGN(const api::UploadRequest asked, api::parse_upload(fields));
  if (content.empty()) return invalid_argument("file: it is empty", "file");
  OAR_ASSIGN(const api::StoredFile file, files.put(owner, asked, content));
  return json::serialize(file.json());
}

Result<std::string> list_files(api::FileStore& files, const Request& request, const std::string& owner) {
  constexpr int64_t kMost = 10'000;
  std::string purpose;
  OAR_ASSIGN(const api::ItemPage page,
             read_page(request.query, {.limit = kMost, .after = {}}, kMost, {{"purpose", &purpose}}));
  json::array items;
  for (const api::StoredFile& file : files.list(owner))
    if (purpose.empty() || purpose == file.purpose) items.push_back(file.json());
  return api::page_of(std::move(items), page);
}

// A file as it leaves: read while the client takes it. On the connection's thread.
class Outgoing : public std::enable_shared_from_this<Outgoing> {
 public:
  Outgoing(std::shared_ptr<const api::StoredFile> held, std::FILE* file, WriterPtr writer)
      : held_(std::move(held)), file_(file), writer_(std::move(writer)) {}
  ~Outgoing() { std::fclose(file_); }
  void start() {
    const WriterPtr writer = writer_;  // the client may leave meanwhile
    writer->start_stream({200, "application/octet-stream", {}, ""});
    writer->on_disconnect([self = shared_from_this()] { self->writer_.reset(); });
    writer->on_drain([self = shared_from_this()] { self->go_on(); });
  }

 private:
  void go_on() {
    char buffer[32 << 10];
    while (writer_ && !writer_->behind()) {
      const size_t n = std::fread(buffer, 1, sizeof buffer, file_);
      if (n == 0) {
        const WriterPtr writer = std::move(writer_);
        // Dropped without an end where the disk fails: a truncated stream must not look complete.
        if (std::ferror(file_) == 0) writer->finish();
        return;
      }
      writer_->write({buffer, n});
    }
  }

  const std::shared_ptr<const api::StoredFile> held_;
  std::FILE* const file_;
  WriterPtr writer_;
};

Status send_content(const Services& services, const Request& request, const WriterPtr& writer) {
  if (services.files == nullptr) return off();
  OAR_ASSIGN(const api::RequestContext context, context_of(services, request));
  const std::string owner = owner_of(context), &id = request.params[0];
  OAR_RETURN_IF_ERROR(services.files->find(owner, id).status());
  auto held = services.files->hold(owner, id);
  std::FILE* const file = held ? std::fopen(services.files->path_of(id).c_str(), "rb") : nullptr;
  if (file == nullptr) return unavailable("the file cannot be read");
  const auto outgoing = std::make_shared<Outgoing>(std::move(held), file, writer);
  writer->post([outgoing] { outgoing->start(); });
  return ok_status();
}

}  // namespace

api::BatchSend make_batch_send(const Services& services, api::WorkerPool& workers) {
  return [&services, executor = workers.executor()](const api::BatchRequest& request,
                                                    std::shared_ptr<api::Tenant> tenant,
                                                    std::function<void(api::BatchAnswer)> done) {
    auto answer = std::make_shared<CollectedAnswer>(executor, std::move(done));
    api::RequestContext context;
    context.tenant = std::move(tenant);
    context.peer = "batch";
    context.background = true;
    executor([&services, request, context, answer] {
      const Status s = start_batched(services, request, context, answer);
      if (!s.ok()) answer->send(error_answer(request.url, s));
    });
    return answer;
  };
}

void add_batch_routes(Router& router, const Services& services) {
  const auto files = [&](const char* method, const char* path, auto answer) {
    router.add(method, path,
               stored(services, [&services, answer](const Request& r, const std::string& owner) {
                 return answer(*services.files, r, owner);
               }));
  };
  files("POST", "/v1/files", upload);
  files("GET", "/v1/files", list_files);
  files("GET", "/v1/files/{id}",
        [](api::FileStore& store, const Request& r, const std::string& owner) -> Result<std::string> {
          OAR_ASSIGN(const api::StoredFile file, store.find(owner, r.params[0]));
          return json::serialize(file.json());
        });
  files("DELETE", "/v1/files/{id}",
        [](api::FileStore& store, const Request& r, const std::string& owner) -> Result<std::string> {
          OAR_RETURN_IF_ERROR(store.erase(owner, r.params[0]));
          return json::serialize(json::object{{"id", r.params[0]}, {"object", "file"}, {"deleted", true}});
        });
  router.add("GET", "/v1/files/{id}/content", [&services](Request&& request, WriterPtr writer) {
    auto shared = std::make_shared<Request>(std::move(request));
    services.workers->post([&services, shared, writer = std::move(writer)] {
      const Status s = send_content(services, *shared, writer);
      if (!s.ok()) writer->send(error_answer(shared->path, s));
    });
  });

  const auto batches = [&](const char* method, const char* path, auto answer) {
    router.add(method, path,
               stored(services, [&services, answer](const Request& r, const std::string& owner) {
                 return answer(*services.batches, r, owner);
               }));
  };
  batches("POST", "/v1/batches",
          [](api::Batches& all, const Request& r, const std::string& owner) -> Result<std::string> {
            OAR_ASSIGN(const json::object body, api::parse_body(r.body));
            OAR_ASSIGN(const api::BatchCreate asked, api::parse_batch_create(body));
            return all.create(owner, asked);
          });
  batches("GET", "/v1/batches",
          [](api::Batches& all, const Request& r, const std::string& owner) -> Result<std::string> {
            OAR_ASSIGN(const api::ItemPage page, read_page(r.query, {}, 100));
            return all.list(owner, page);
          });
  batches("GET", "/v1/batches/{id}", [](api::Batches& all, const Request& r, const std::string& owner) {
    return all.find(owner, r.params[0]);
  });
  batches("POST", "/v1/batches/{id}/cancel",
          [](api::Batches& all, const Request& r, const std::string& owner) {
            return all.cancel(owner, r.params[0]);
          });
}

}  // namespace oar::http
