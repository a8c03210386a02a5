// Puts the parts together and takes them down in the right order: requests in flight need workers, workers
// need the frontend, everything needs the catalog.
#include "server/server.h"

#include <algorithm>
#include <future>

#include "engine/base/format.h"
#include "server/api/frontend.h"
#include "server/api/listen_address.h"
#include "server/api/traced_models.h"
#include "server/api/worker_pool.h"
#include "server/grpc/grpc_server.h"
#include "server/http/routes.h"
#include "server/metrics/metrics.h"
#include "server/ui/page.h"

namespace oar {
namespace {

// Open to all like the health endpoints: the pages hold nothing; what they ask for needs the key.
void add_page(http::Router& router, const char* path, ui::Page page) {
  const http::Response answer = [&] {
    return http::Response{200,
                          "text/html; charset=utf-8",
                          {{"Content-Security-Policy", std::move(page.content_security_policy)},
                           {"X-Content-Type-Options", "nosniff"},
                           {"Referrer-Policy", "no-referrer"},
                           {"Cache-Control", "no-cache"}},
                          std::move(page.html)};
  }();
  router.add(
      "GET", path, [answer](http::Request&&, std::shared_ptr<http::ResponseWriter> w) { w->send(answer); },
      http::Access::kOpen);
}

// Who may come in, from the files and lists that the options name.
struct Gate {
  std::shared_ptr<api::ApiKeys> keys;
  api::ModelControl control;
  http::OriginPolicy origins;
  std::shared_ptr<tls::ServerContext> tls;
};

Result<Gate> open_gate(const ServerOptions& o, const Logger& log) {
  Gate out;
  OAR_ASSIGN(out.keys, api::ApiKeys::load(o.api_key, o.api_key_file, log));
  if (!o.admin_key_file.empty() && !o.model_control)
    return invalid_argument(
        "admin-key-file: its keys load and unload models, which is off; add "
        "--model-control explicit, or leave the file out",
        "admin-key-file");
  OAR_ASSIGN(const std::shared_ptr<api::ApiKeys> admin_keys,
             api::ApiKeys::load("", o.admin_key_file, log, "admin-key-file", false));
  out.control = {o.model_control, admin_keys};
  OAR_ASSIGN(out.origins, http::OriginPolicy::create(o.allowed_origins, o.allowed_hosts));
  OAR_ASSIGN(out.tls, tls::ServerContext::load(o.tls, log));
  const bool anybody =
      std::find(o.allowed_origins.begin(), o.allowed_origins.end(), "*") != o.allowed_origins.end();
  if (o.cors.credentials && anybody)
    return invalid_argument(
        "cors-credentials: with the origin * browsers refuse every answer that allows credentials; name the "
        "origins",
        "cors-credentials");
  for (const auto& [name, text] :
       {std::pair("cors-methods", &o.cors.methods), std::pair("cors-headers", &o.cors.headers)})
    if (std::any_of(text->begin(), text->end(), [](unsigned char c) { return c < 32 || c > 126; }))
      return invalid_argument(cat(name, ": it becomes a header, so it holds printable ASCII alone"), name);
  const bool words = o.cors.credentials || !o.cors.methods.empty() || !o.cors.headers.empty();
  if (words && o.allowed_origins.empty())
    return invalid_argument(cat("cors-",
                                o.cors.credentials       ? "credentials"
                                : o.cors.methods.empty() ? "headers"
                                                         : "methods",
                                ": no origin is allowed that could read it; give --allowed-origins too"),
                            "cors");
  if (const std::string& root = o.root_path;
      !root.empty() && (root.front() != '/' || root.back() == '/' || root.find_first_of("?#% ") != root.npos))
    return invalid_argument(
        cat("root-path is '", root, "'; give a path such as /llm, without a slash at its end"), "root-path");
  if (o.no_metrics && !o.metrics_address.empty())
    return invalid_argument("no-metrics: --metrics asks for a listener of them; leave one of the two out",
                            "no-metrics");
  return out;
}

class ServerImpl final : public Server {
 public:
  ServerImpl(ServerOptions options, std::shared_ptr<api::ModelCatalog> catalog)
      : options_(std::move(options)),
        catalog_(std::move(catalog)),
        metrics_(*catalog_),
        settings_(options_.settings ? options_.settings
                                    : std::make_shared<api::ServerSettings>(options_.trace)),
        frontend_(*catalog_, options_.api_limits),
        served_(*catalog_, frontend_),
        workers_(options_.worker_threads),
        writers_(options_.writer_threads),
        loaders_(1),
        batch_workers_(1) {}
  ~ServerImpl() override {
    drain_and_stop(std::chrono::milliseconds(0));
    catalog_->load_on(nullptr);
    catalog_->observe(nullptr);
  }

  Status listen();
  int http_port() const override { return http_port_; }
  int grpc_port() const override { return grpc_port_; }
  int metrics_port() const override { return metrics_http_ ? metrics_http_->port() : 0; }
  bool ready() const override { return frontend_.ready(); }
  void set_ready(bool ready) override {
    frontend_.announce_ready(ready);
    if (grpc_) grpc_->update_health();
  }
  void reload_keys() override {
    if (http_services_.keys) http_services_.keys->reload();
    if (http_services_.control.keys) http_services_.control.keys->reload();
  }
  bool drain_and_stop(std::chrono::milliseconds timeout) override;

 private:
  http::HttpServerOptions http_options(const std::string& address);
  void warn_if_open() const;
  Status open_files();

  const ServerOptions options_;
  const std::shared_ptr<api::ModelCatalog> catalog_;
  Metrics metrics_;
  std::shared_ptr<api::TraceFile> trace_;  // null: none is asked for
  const std::shared_ptr<api::ServerSettings> settings_;
  api::Frontend frontend_;
  api::ServedModels served_;
  api::WorkerPool workers_, writers_, loaders_, batch_workers_;
  http::Services http_services_;
  std::unique_ptr<api::FileStore> files_;  // null: off, as the next is
  std::unique_ptr<api::Batches> batches_;
  http::OriginPolicy origins_;
  std::unique_ptr<http::HttpServer> metrics_http_;
  std::vector<std::unique_ptr<http::HttpServer>> http_;  // one for each address
  std::unique_ptr<grpc_api::GrpcServer> grpc_;
  int http_port_ = 0, grpc_port_ = 0;
  bool stopped_ = false, clean_ = true;
};

http::HttpServerOptions ServerImpl::http_options(const std::string& address) {
  http::HttpServerOptions o;
  o.address = address;
  o.root_path = options_.root_path;
  o.limits = options_.http_limits;
  o.origins = origins_;
  o.cors = options_.cors;
  o.log = options_.log;
  o.error_response = http::error_response;
  if (options_.error_style == api::ErrorStyle::kTriton) o.reword = http::word_as_triton;
  o.on_complete = [this](const std::string& route, const std::string& method, int status, double seconds) {
    metrics_.on_http_request(route, method, status, seconds);
  };
  return o;
}

// Mutual TLS says who may come, as keys do.
void ServerImpl::warn_if_open() const {
  if (http_services_.keys || !options_.tls.client_ca.empty()) return;
  std::vector<std::string> addresses = http::addresses_in(options_.http_address);
  addresses.push_back(options_.grpc_address);
  for (const std::string& address : addresses) {
    const auto where = api::split_address(address, "");
    if (address.empty() || !where.ok() || api::is_loopback(where->host)) continue;
    options_.log(LogLevel::kWarning, cat("anyone who reaches ", address,
                                         " can use this server: it listens beyond this machine and asks for "
                                         "no key (--api-key-file, --tls-client-ca)"));
  }
}

Status ServerImpl::open_files() {
  OAR_ASSIGN(files_, api::FileStore::open(options_.files, options_.files_bytes, options_.log));
  const auto tenant = [keys = http_services_.keys](const std::string& owner) {
    auto found = keys ? keys->named(owner) : nullptr;
    if (!found && (keys || !owner.empty()))
      return Result<std::shared_ptr<api::Tenant>>(
          Status(StatusCode::kUnauthenticated, "the key that the batch was made with is no longer accepted"));
    return Result<std::shared_ptr<api::Tenant>>(std::move(found));
  };
  http_services_.files = files_.get();
  OAR_ASSIGN(batches_, api::Batches::start(*files_, options_.batch_concurrency,
                                           http::make_batch_send(http_services_, batch_workers_), tenant,
                                           options_.log));
  http_services_.batches = batches_.get();
  return ok_status();
}

Status ServerImpl::listen() {
  OAR_ASSIGN(const Gate gate, open_gate(options_, options_.log));
  if (!options_.request_log.empty()) {
    OAR_ASSIGN(auto log, api::RequestLog::open(options_.request_log));
    frontend_.set_request_log(std::move(log));
  }
  if (!options_.trace.empty()) {
    OAR_ASSIGN(trace_,
               api::TraceFile::open(options_.trace, options_.trace_bytes, options_.log, options_.trace_kind));
  }
  catalog_->load_on(loaders_.executor());
  catalog_->observe(
      [this](const ModelHandle& model) {
        auto counted = metrics_.observe(model);
        return trace_ ? api::traced(trace_, model, std::move(counted), settings_->trace_switch(model.name))
                      : counted;
      },
      [this](const api::TensorModel& model) {
        return trace_ ? api::traced(trace_, model, settings_->trace_switch(model.config.name)) : nullptr;
      });
  const auto& [keys, control, origins, tls] = gate;
  origins_ = origins;
  http_services_ = {&frontend_, catalog_.get(), &served_,
                    &workers_,  &loaders_,      [this] { return metrics_.text(); },
                    keys,       control,        options_.log};
  http_services_.metrics_off = options_.no_metrics;
  http_services_.slots_off = options_.no_slots;
  http_services_.owner = options_.server_name;
  http_services_.adapter_paths = options_.adapter_paths;
  http_services_.predict_path = options_.predict_path;
  http_services_.health_path = options_.health_path;
  OAR_ASSIGN(http_services_.memory, api::SharedMemory::create(options_.shared_memory));
  http_services_.settings = settings_;
  if (!options_.files.empty()) OAR_RETURN_IF_ERROR(open_files());
  warn_if_open();
  if (!options_.metrics_address.empty()) {
    http::HttpServerOptions o = http_options(options_.metrics_address);
    o.threads = 1;
    OAR_ASSIGN(metrics_http_,
               http::HttpServer::start(std::move(o), http::make_monitoring_router(http_services_)));
  }
  // The first last: who finds it ready finds the others.
  const std::vector<std::string> addresses = http::addresses_in(options_.http_address);
  for (auto address = addresses.rbegin(); address != addresses.rend(); ++address) {
    http::HttpServerOptions o = http_options(*address);
    o.threads = options_.http_threads;
    o.tls = tls;
    o.admit = http::make_admission(http_services_);
    http::Router router = http::make_router(http_services_);
    if (!options_.no_page) {
      add_page(router, "/", ui::status_page());
      add_page(router, "/docs", ui::docs_page());
    }
    http::add_openapi(router, http_services_);
    OAR_ASSIGN(auto started, http::HttpServer::start(std::move(o), std::move(router)));
    http_port_ = started->port();
    http_.insert(http_.begin(), std::move(started));
  }
  if (!http_.empty())
    metrics_.set_connection_gauge([this] {
      size_t sum = 0;
      for (const auto& server : http_) sum += server->connections();
      return sum;
    });
  if (!options_.grpc_address.empty()) {
    OAR_ASSIGN(grpc_, grpc_api::GrpcServer::start(
                          options_.grpc_address,
                          {&frontend_, catalog_.get(), &served_, &workers_, &writers_, &loaders_, &metrics_,
                           keys, control, tls, options_.grpc_limits, options_.log, http_services_.memory,
                           settings_, options_.server_name}));
    grpc_port_ = grpc_->port();
  }
  return ok_status();
}

bool ServerImpl::drain_and_stop(std::chrono::milliseconds timeout) {
  if (stopped_) return clean_;
  stopped_ = true;
  set_ready(false);
  if (batches_) batches_->stop();  // the next server goes on with them
  frontend_.set_accepting(false);
  // Who still runs at the timeout is told so, while the connections are there to carry the words.
  constexpr std::chrono::milliseconds kWords{1000};
  const auto last = timeout.count() > 0 ? timeout + kWords : timeout;
  std::promise<void> drained;
  std::future<bool> told;
  if (timeout.count() > 0) {
    told = std::async(std::launch::async, [this, timeout, over = drained.get_future()] {
      if (over.wait_for(timeout) == std::future_status::ready) return false;
      const Status why =
          unavailable("the server stopped before the answer was complete; send the request again");
      return frontend_.running().cancel_all(why) > 0;
    });
  }
  // Both transports drain against the same clock.
  std::future<bool> grpc_clean;
  if (grpc_) grpc_clean = std::async(std::launch::async, [this, last] { return grpc_->stop(last); });
  for (const auto& server : http_) server->begin_drain();
  const auto until = Clock::now() + last;
  for (const auto& server : http_) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    clean_ = server->stop(std::max(std::chrono::milliseconds(0), left)) && clean_;
  }
  if (grpc_clean.valid()) clean_ = grpc_clean.get() && clean_;
  drained.set_value();
  if (told.valid() && told.get()) clean_ = false;
  if (metrics_http_) metrics_http_->stop(std::chrono::milliseconds(0));  // says "not ready" until the end
  workers_.stop();
  loaders_.stop();
  batch_workers_.stop();
  writers_.stop();
  grpc_.reset();
  http_.clear();
  metrics_http_.reset();
  frontend_.running().forget();
  if (trace_) trace_->close();
  return clean_;
}

}  // namespace

Status Server::check(const ServerOptions& options) {
  OAR_RETURN_IF_ERROR(open_gate(options, {}).status());
  if (!options.request_log.empty()) OAR_RETURN_IF_ERROR(api::RequestLog::open(options.request_log).status());
  if (!options.trace.empty()) OAR_RETURN_IF_ERROR(api::TraceFile::check(options.trace, options.trace_bytes));
  OAR_RETURN_IF_ERROR(api::SharedMemory::create(options.shared_memory).status());
  if (!options.files.empty())
    OAR_RETURN_IF_ERROR(api::FileStore::open(options.files, options.files_bytes, {}).status());
  std::vector<std::string> addresses = http::addresses_in(options.http_address);
  addresses.insert(addresses.end(), {options.grpc_address, options.metrics_address});
  return http::check_addresses(addresses);
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options,
                                              std::shared_ptr<api::ModelCatalog> catalog) {
  if (catalog->index().empty()) return invalid_argument("a server needs at least one model");
  auto server = std::make_unique<ServerImpl>(std::move(options), std::move(catalog));
  OAR_RETURN_IF_ERROR(server->listen());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace oar
