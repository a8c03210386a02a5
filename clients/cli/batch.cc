// oar batch: a file of requests answered into a file of responses, by a server that runs or by a model served
// for the occasion. Interrupted and called again, it goes on where it was.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <thread>
#include <vector>

#include "clients/cli/batch_server.h"
#include "clients/cli/command.h"
#include "clients/cli/progress.h"
#include "clients/cli/ranges.h"
#include "clients/cli/signals.h"
#include "clients/cli/tls_options.h"
#include "clients/loadtest/http_request.h"
#include "engine/base/format.h"
#include "server/api/batch_lines.h"

namespace oar::cli {
namespace {

using api::BatchInput;
using api::BatchOutput;
using api::BatchRequest;

struct Options {
  ModelOptions model;  // empty: --server
  std::string input, output, server = "http://127.0.0.1:8000", api_key, set_model;
  loadtest::TlsOptions tls;
  int concurrency = 16, retries = 5;
  double timeout = 600;
  bool restart = false, quiet = false;
};

constexpr size_t kMostAnswer = size_t{64} << 20;

// Busy, starting, or behind a proxy that has lost it: worth another try.
bool passes(unsigned status) {
  return status == 408 || status == 429 || status == 502 || status == 503 || status == 504;
}

class Batch {
 public:
  Batch(const Options& o, loadtest::Server server, BatchInput& in, BatchOutput& out,
        const SignalWatcher& signals)
      : o_(o), server_(std::move(server)), in_(in), out_(out), signals_(signals) {
    if (!o.api_key.empty()) headers_.push_back("Authorization: Bearer " + o.api_key);
  }

  void run() {
    std::vector<std::thread> threads;
    const int64_t n = std::min<int64_t>(o_.concurrency, in_.left());
    for (int64_t i = 0; i < n; ++i) threads.emplace_back([this] { work(); });
    {
      ProgressBar bar(o_.quiet);
      const Progress progress = bar.callback();
      while (ended_ < n) {
        if (progress)
          progress("requests", static_cast<uint64_t>(good_ + failed_), static_cast<uint64_t>(in_.left()));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
    for (std::thread& t : threads) t.join();
  }
  int64_t good() const { return good_; }
  int64_t failed() const { return failed_; }
  const Status& broken() const { return broken_; }

 private:
  bool stopping() const { return signals_.requested() || stop_; }

  void work() {
    while (!stopping()) {
      const auto request = in_.next();
      if (!request) break;
      answer(*request);
    }
    ++ended_;
  }

  void answer(const BatchRequest& r) {
    std::string last;
    for (int attempt = 0;; ++attempt) {
      const auto reply =
          loadtest::http_request(server_, "POST", r.url, headers_, r.body, o_.timeout, kMostAnswer);
      const bool again =
          reply.ok() ? passes(reply->status) : reply.status().code() == StatusCode::kUnavailable;
      if (!again || attempt >= o_.retries) {
        (reply.ok() && reply->status == 200 ? good_ : failed_)++;
        return write(reply.ok()
                         ? api::batch_output_line(r.custom_id, reply->status, reply->body)
                         : api::batch_error_line(r.custom_id, "request_failed", reply.status().message()));
      }
      // 0.25, 0.5, 1 ... 8 s; a signal ends the wait, and the request stays undone for the next run.
      const auto pause = std::chrono::milliseconds(250 << std::min(attempt, 5));
      for (auto waited = std::chrono::milliseconds(0); waited < pause;
           waited += std::chrono::milliseconds(50)) {
        if (stopping()) return;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
    }
  }

  void write(const std::string& line) {
    Status s = out_.append(line);
    if (s.ok() || stop_.exchange(true)) return;
    broken_ = std::move(s);
  }

  const Options& o_;
  const loadtest::Server server_;
  BatchInput& in_;
  BatchOutput& out_;
  const SignalWatcher& signals_;
  std::vector<std::string> headers_;
  std::atomic<int64_t> good_{0}, failed_{0}, ended_{0};
  std::atomic<bool> stop_{false};
  Status broken_;  // written by the one that set stop_, read after joining
};

int batch(Options o) {
  SignalWatcher signals;
  std::unordered_set<std::string> done;
  // The input first: a wrong file must not cost the answers of an earlier run.
  if (const auto whole = BatchInput::open(o.input, o.set_model, {}); !whole.ok()) return fail(whole.status());
  auto out =
      BatchOutput::open(o.output, o.restart ? BatchOutput::Keep::kNothing : BatchOutput::Keep::kGood, done);
  if (!out.ok()) return fail(out.status());
  auto in = BatchInput::open(o.input, o.set_model, std::move(done));
  if (!in.ok()) return fail(in.status());
  const int64_t before = (*in)->total() - (*in)->left();
  if ((*in)->left() == 0) {
    std::printf("all %lld requests were done before\n", static_cast<long long>(before));
    return kSuccess;
  }
  std::unique_ptr<BatchServer> own;
  if (!o.model.model.empty()) {
    auto started = start_batch_server(o.model, [&] { return signals.requested(); });
    if (!started.ok()) return fail(started.status());
    own = std::move(*started);
    o.server = own->url();
    o.api_key = own->api_key();
    o.concurrency = std::min(o.concurrency, own->most_requests());
  }
  const auto server = loadtest::parse_server(o.server, o.tls);
  if (!server.ok()) return fail(server.status());
  const auto start = std::chrono::steady_clock::now();
  Batch work(o, *server, **in, **out, signals);
  work.run();
  if (!work.broken().ok()) return fail(work.broken());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%lld answered, %lld failed, %lld done before, of %lld; %.1f s\n",
              static_cast<long long>(work.good()), static_cast<long long>(work.failed()),
              static_cast<long long>(before), static_cast<long long>((*in)->total()), seconds);
  if (signals.requested()) {
    std::fprintf(stderr, "oar: interrupted; the same command goes on with the rest\n");
    return 128 + signals.signal();
  }
  if (work.failed() > 0)
    std::fprintf(stderr, "oar: see \"error\" and \"status_code\" in %s\n", o.output.c_str());
  return work.failed() > 0 ? kFailure : kSuccess;
}

}  // namespace

void add_batch(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("batch", "Answer a file of requests into a file of responses");
  c->add_option("INPUT", o->input,
                "JSONL: {\"custom_id\", \"method\": \"POST\", \"url\": \"/v1/...\", \"body\"}")
      ->required();
  ModelOptionSet set;
  set.model_required = false;
  add_model_options(*c, o->model, set);
  add_chat_options(*c, o->model);
  c->add_option("-o,--output", o->output, "JSONL with the responses, in the order in which they come")
      ->required();
  c->add_option("--server", o->server, "without MODEL: http[s]://host:port of an OpenAI-compatible server")
      ->capture_default_str();
  c->add_option("--api-key", o->api_key, "of that server")->envname("OAR_API_KEY");
  c->add_option("--set-model", o->set_model, "write this model's name into every request");
  c->add_option("-c,--concurrency", o->concurrency, "requests under way at once")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  c->add_option("--retries", o->retries, "of a request that the server was too busy for")
      ->check(in_range(0, 100))
      ->capture_default_str();
  c->add_option("--timeout", o->timeout, "seconds of one request")
      ->check(above_zero())
      ->capture_default_str();
  c->add_flag("--restart", o->restart, "do not keep the answers that OUTPUT already holds");
  add_tls_options(*c, o->tls);
  c->footer(
      "Called again with the same files it keeps the good answers and asks for the rest. Exit code 1 when a "
      "request\n"
      "failed; its line says why.\n"
      "Examples:\n"
      "  oar batch questions.jsonl demo -o answers.jsonl --set-model demo\n"
      "  oar batch questions.jsonl -o answers.jsonl --server https://gpu:8000 -c 64");
  c->callback([o, &action] {
    o->quiet = o->model.quiet;
    action = [o] { return batch(*o); };
  });
}

}  // namespace oar::cli
