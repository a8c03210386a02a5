// oar loadtest: drives a server and says what its users would have seen. The work is in clients/loadtest.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>
#include <optional>

#include "clients/cli/command.h"
#include "clients/cli/loadtest_view.h"
#include "clients/cli/prompt.h"
#include "clients/cli/ranges.h"
#include "clients/cli/tls_options.h"
#include "clients/loadtest/compare.h"
#include "clients/loadtest/report.h"
#include "clients/loadtest/scrape.h"
#include "clients/loadtest/search.h"
#include "engine/base/format.h"

namespace oar::cli {
namespace {

using namespace oar::loadtest;  // NOLINT: this file is its command line

struct Options {
  std::string server = "http://127.0.0.1:8000", other, endpoint = "chat", arrival, trace, goodput, body_file,
              extra;
  std::string api_key, json_file, jsonl_file, csv_file, html_file, metrics = "/metrics";
  int64_t count = 0, warmup = 0, words_limit = 0, output_limit = 0, rounds = 6;
  double speed = 1, rate_end = 0;
  double find_share = 0.99;
  bool find_rate = false, check = false, detailed = false, no_stream = false, use_eos = false, quiet = false;
  WorkloadSpec workload;
  RunSpec run;
  ArrivalSpec arrivals;
  TlsOptions tls;
};

std::atomic<bool> stopped{false};
static_assert(std::atomic<bool>::is_always_lock_free, "set in a signal handler");

Status write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return ok_status();
  }
  std::ofstream out(path, std::ios::binary);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.flush();
  return out ? ok_status() : unavailable(cat("cannot write ", path));
}

// What a server calls itself: Open Inference servers at /v2, vLLM and its like at /version. Empty: it does
// not say, which is no error.
std::string server_version(const Server& server, const std::vector<std::string>& headers) {
  for (const char* path : {"/v2", "/version"}) {
    const auto text = http_get(server, path, headers, 10);
    const auto v = text.ok() ? parse_json(*text, path) : Result<json::value>(text.status());
    const json::object* o = v.ok() ? v->if_object() : nullptr;
    std::string out;
    for (const char* key : {"name", "version"})
      if (const json::value* word = o == nullptr ? nullptr : o->if_contains(key);
          word != nullptr && word->is_string())
        out += cat(out.empty() ? "" : " ", std::string_view(word->get_string()));
    if (!out.empty()) return out;
  }
  return {};
}

// The name of the only or first model served, where the user gave none.
Result<std::string> find_model(const RunSpec& run) {
  OAR_ASSIGN(const std::string text, http_get(run.server, "/v1/models", run.headers, 10));
  OAR_ASSIGN(const json::value v, parse_json(text, "/v1/models"));
  const json::object* o = v.if_object();
  const json::value* data = o == nullptr ? nullptr : o->if_contains("data");
  if (data != nullptr && data->is_array() && !data->get_array().empty() && data->get_array()[0].is_object())
    if (const json::value* id = data->get_array()[0].get_object().if_contains("id");
        id != nullptr && id->is_string())
      return std::string(id->get_string());
  return not_found(cat(run.server.url, "/v1/models names no model; give --model"));
}

Status prepare(Options& o) {
  OAR_ASSIGN(o.run.server, parse_server(o.server, o.tls));
  if (!o.api_key.empty()) o.run.headers.push_back("Authorization: Bearer " + o.api_key);
  OAR_ASSIGN(o.workload.endpoint, parse_endpoint(o.endpoint));
  const bool has_rate = o.arrivals.rate > 0;
  if (o.arrival.empty())
    o.arrival = !o.trace.empty() ? "trace" : has_rate || o.find_rate ? "poisson" : "closed";
  OAR_ASSIGN(o.arrivals.kind, parse_arrival(o.arrival));
  o.run.closed_loop = o.arrivals.kind == ArrivalKind::kClosed;
  if (!has_rate) o.arrivals.rate = 1;
  o.arrivals.rate_end = o.rate_end;
  if ((o.arrivals.kind == ArrivalKind::kTrace) != !o.trace.empty())
    return invalid_argument("trace: --arrival trace and --trace FILE go together", "trace");
  if (o.find_rate && (o.goodput.empty() || o.run.closed_loop || !o.trace.empty()))
    return invalid_argument("find-rate: needs --goodput with limits, and an arrival with a rate",
                            "find-rate");
  if (o.find_rate && !o.other.empty())
    return invalid_argument("find-rate: searches one server; leave --against out", "find-rate");
  if (!(o.speed > 0)) return invalid_argument("speed: must be > 0", "speed");
  if (o.run.duration <= 0 && o.count == 0) o.count = 100;
  if (!o.body_file.empty()) { OAR_ASSIGN(o.workload.body, read_text(o.body_file)); }
  if (!o.extra.empty()) {
    OAR_ASSIGN(json::value v, parse_json(o.extra, "--extra-body"));
    if (!v.is_object()) return invalid_argument("extra-body: must be a JSON object", "extra-body");
    o.workload.extra = std::move(v.get_object());
  }
  o.workload.stream = !o.no_stream;
  o.workload.ignore_eos = !o.use_eos;
  o.workload.seed = o.arrivals.seed;
  o.run.keep_gaps = o.detailed || !o.jsonl_file.empty();
  o.run.keep_texts = o.detailed || o.check;
  o.run.stop = &stopped;
  if (o.workload.model.empty() && o.workload.endpoint != Endpoint::kInfer && !is_grpc(o.workload.endpoint)) {
    OAR_ASSIGN(o.workload.model, find_model(o.run));
  }
  return ok_status();
}

Result<std::vector<Plan>> make_plans(const Options& o, const Workload& workload, double rate) {
  if (!o.trace.empty()) {
    OAR_ASSIGN(const auto trace, read_trace(o.trace, o.count));
    return workload.plan(trace, o.speed, o.words_limit, o.output_limit);
  }
  ArrivalSpec spec = o.arrivals;
  spec.rate = rate;
  // For a duration without a number: as many as a closed loop could use, or as the rate asks for and a
  // margin.
  const double most = o.run.closed_loop
                          ? 200'000
                          : std::min(2e6, std::ceil(o.run.duration * std::max(rate, o.rate_end) * 1.5) + 10);
  spec.count = o.count > 0 ? o.count : static_cast<int64_t>(most);
  if (o.run.closed_loop) return workload.plan(spec.count, {});
  OAR_ASSIGN(const auto times, arrival_times(spec));
  return workload.plan(spec.count, times);
}

struct Side {
  Report report;
  RunResult run;
};

// The same requests in other words, so that no run finds the prompts of another in a prefix cache.
Workload salted(const Workload& workload, uint64_t salt) {
  WorkloadSpec spec = workload.spec();
  spec.salt = salt;
  auto other = Workload::create(std::move(spec));
  OAR_CHECK(other.ok(), "a valid workload stays valid in other words");
  return std::move(*other);
}

Result<std::unique_ptr<Side>> run_side(const Options& o, const Workload& workload, const Server& server,
                                       double rate, const std::string& title, const std::string& stage = {}) {
  auto side = std::make_unique<Side>();
  Report& r = side->report;
  r.title = title;
  r.command = shown_command();
  r.client_version = OAR_VERSION;
  if (!is_grpc(o.workload.endpoint)) r.server_version = server_version(server, o.run.headers);
  r.spec = o.run;
  r.spec.server = server;
  r.workload = o.workload;
  r.arrival = o.arrivals;
  r.arrival.rate = rate;
  OAR_ASSIGN(r.limits, parse_goodput(o.goodput));
  OAR_ASSIGN(const std::vector<Plan> plans, make_plans(o, workload, rate));
  LoadProgress progress;
  const bool live = !o.quiet && isatty(STDERR_FILENO) != 0;
  std::optional<Scraper> scraper;
  if (o.metrics.starts_with("http")) {
    OAR_ASSIGN(const Server where, parse_server(o.metrics, o.tls));
    scraper.emplace(where, "", r.spec.headers, 1.0);
  } else if (!o.metrics.empty() && !is_grpc(o.workload.endpoint)) {
    scraper.emplace(server, o.metrics, r.spec.headers, 1.0);
  }
  {
    LoadGoal goal{stage, static_cast<int64_t>(plans.size()) * o.workload.turns, r.spec.duration};
    // An open loop ends when the last request was due, and then some.
    if (!r.spec.closed_loop && !plans.empty())
      goal.seconds = goal.seconds > 0 ? std::min(goal.seconds, plans.back().at) : plans.back().at;
    LiveView view(progress, std::move(goal), live);
    OAR_ASSIGN(side->run, run_load(r.spec, workload, plans, &progress));
  }
  if (scraper) r.samples = scraper->stop();
  r.run = &side->run;
  r.summary = summarize(side->run, r.spec, r.limits);
  return side;
}

Status warm_up(const Options& o, const Workload& workload, const Server& server) {
  if (o.warmup <= 0) return ok_status();
  RunSpec spec = o.run;
  spec.server = server;
  spec.closed_loop = true;
  spec.concurrency = std::min<int64_t>(4, o.warmup);
  spec.duration = 0;
  WorkloadSpec other = workload.spec();
  other.seed ^= 0x77617261;  // not the prompts that will be measured
  OAR_ASSIGN(const Workload warm, Workload::create(other));
  return run_load(spec, warm, warm.plan(o.warmup, {})).status();
}

Status write_outputs(const Options& o, const std::vector<const Report*>& reports,
                     const std::vector<Ratio>& ratios = {}) {
  const auto lines = [&](const std::string& path, auto&& make) -> Status {
    if (path.empty()) return ok_status();
    std::string all;
    for (const Report* r : reports) all += make(*r);
    return write_file(path, all);
  };
  if (!o.json_file.empty()) {
    json::value v;
    if (reports.size() == 1) v = json_report(*reports[0], o.detailed);
    else {
      json::array sides;
      for (const Report* r : reports) sides.push_back(json_report(*r, o.detailed));
      v = std::move(sides);
    }
    OAR_RETURN_IF_ERROR(write_file(o.json_file, json::serialize(v) + "\n"));
  }
  OAR_RETURN_IF_ERROR(lines(o.jsonl_file, [](const Report& r) { return jsonl_report(r); }));
  OAR_RETURN_IF_ERROR(lines(o.csv_file, [](const Report& r) { return csv_report(r); }));
  return o.html_file.empty() ? ok_status() : write_file(o.html_file, html_report(reports, ratios));
}

// Every answer under load against the same request alone: number of differences.
Result<int64_t> check_texts(const Options& o, const Workload& workload, const Side& side) {
  RunSpec alone = side.report.spec;
  alone.closed_loop = true;
  alone.concurrency = 1;
  alone.threads = 1;
  alone.duration = 0;
  OAR_ASSIGN(std::vector<Plan> plans, make_plans(o, workload, side.report.arrival.rate));
  for (Plan& p : plans) p.cancel_after = -1, p.slow = false;
  plans.resize(std::min(
      plans.size(), side.run.records.empty() ? 0 : static_cast<size_t>(side.run.records.back().index) + 1));
  OAR_ASSIGN(const RunResult reference, run_load(alone, workload, plans));
  std::map<std::pair<int64_t, int64_t>, const Record*> by_index;
  for (const Record& r : reference.records) by_index[{r.index, r.turn}] = &r;
  int64_t compared = 0, different = 0;
  for (const Record& r : side.run.records) {
    const auto it = by_index.find({r.index, r.turn});
    if (!r.ok() || it == by_index.end() || !it->second->ok()) continue;
    ++compared;
    if (r.text == it->second->text) continue;
    if (++different <= 3)
      std::fprintf(stderr, "request %lld differs:\n  alone:      %.200s\n  under load: %.200s\n",
                   static_cast<long long>(r.index), it->second->text.c_str(), r.text.c_str());
  }
  std::printf("check: %lld answers compared with the same request alone, %lld differ\n",
              static_cast<long long>(compared), static_cast<long long>(different));
  if (compared == 0) return unavailable("check: no answer could be compared");
  return different;
}

int run_search(const Options& o, const Workload& workload) {
  SearchSpec spec;
  spec.start = o.arrivals.rate;
  spec.share = o.find_share;
  std::unique_ptr<Side> best;
  uint64_t runs = 0;
  const auto result = search_rate(spec, [&](double rate) -> Result<Summary> {
    if (stopped) return Status(StatusCode::kCancelled, "interrupted");
    // A moment in which the machine kept this client waiting says nothing about the server: once more then.
    std::unique_ptr<Side> side;
    for (int attempt = 0; attempt < 3 && !stopped && (!side || !side->report.summary.valid); ++attempt) {
      OAR_ASSIGN(side, run_side(o, salted(workload, ++runs), o.run.server, rate, cat("rate ", rate),
                                cat(rate, " req/s: ")));
    }
    if (!side) return Status(StatusCode::kCancelled, "interrupted");
    const Summary s = side->report.summary;
    std::printf("%10.3f req/s: %lld of %lld good%s -> %s\n", rate, static_cast<long long>(s.good),
                static_cast<long long>(s.requests), s.valid ? "" : " (client late: invalid)",
                meets(s, o.find_share) ? "met" : "not met");
    std::fflush(stdout);
    if (meets(s, o.find_share)) best = std::move(side);
    return s;
  });
  if (!result.ok()) return fail(result.status());
  if (!best) {
    std::printf("no rate tried meets %s\n", o.goodput.c_str());
    return kFailure;
  }
  std::printf("highest rate that meets %s: %.3f req/s\n%s", o.goodput.c_str(), result->rate,
              text_report(best->report).c_str());
  const Status written = write_outputs(o, {&best->report});
  return written.ok() ? kSuccess : fail(written);
}

int run_against(const Options& o, const Workload& workload) {
  const auto other = parse_server(o.other, o.tls);
  if (!other.ok()) return fail(other.status());
  std::vector<Summary> a, b;
  std::unique_ptr<Side> last_a, last_b;
  for (const Server* s : {&o.run.server, &*other})
    if (Status warm = warm_up(o, workload, *s); !warm.ok()) return fail(warm);
  for (int64_t round = 0; round < o.rounds && !stopped; ++round) {
    // A B, B A, A B ...: whatever drifts, drifts for both.
    for (int turn = 0; turn < 2 && !stopped; ++turn) {
      const bool is_a = (round + turn) % 2 == 0;
      auto side = run_side(o, salted(workload, static_cast<uint64_t>(2 * round + turn + 1)),
                           is_a ? o.run.server : *other, o.arrivals.rate, is_a ? "A" : "B",
                           cat("round ", round + 1, " of ", o.rounds, ", ", is_a ? "A: " : "B: "));
      if (!side.ok()) return fail(side.status());
      (is_a ? a : b).push_back((*side)->report.summary);
      (is_a ? last_a : last_b) = std::move(*side);
    }
  }
  if (!last_a || !last_b) return kFailure;
  const std::vector<Ratio> ratios = compare(a, b);
  std::printf("%s%s%s", text_report(last_a->report).c_str(), text_report(last_b->report).c_str(),
              compare_text(ratios).c_str());
  const Status written = write_outputs(o, {&last_a->report, &last_b->report}, ratios);
  return written.ok() ? kSuccess : fail(written);
}

int run_command(Options o) {
  struct sigaction on_interrupt = {};
  on_interrupt.sa_handler = [](int) {
    if (stopped.exchange(true)) _exit(128 + SIGINT);
  };
  sigaction(SIGINT, &on_interrupt, nullptr);
  if (Status s = prepare(o); !s.ok()) return fail(s);
  const auto workload = Workload::create(o.workload);
  if (!workload.ok()) return fail(workload.status());
  if (o.find_rate) return run_search(o, *workload);
  if (!o.other.empty()) return run_against(o, *workload);
  if (Status s = warm_up(o, *workload, o.run.server); !s.ok()) return fail(s);
  auto side = run_side(o, *workload, o.run.server, o.arrivals.rate, "oar loadtest");
  if (!side.ok()) return fail(side.status());
  const Report& r = (*side)->report;
  // With a file on standard output the table goes beside it.
  const bool taken = o.json_file == "-" || o.jsonl_file == "-" || o.csv_file == "-" || o.html_file == "-";
  std::fputs(text_report(r).c_str(), taken ? stderr : stdout);
  if (Status s = write_outputs(o, {&r}); !s.ok()) return fail(s);
  if (o.check) {
    const auto different = check_texts(o, *workload, **side);
    if (!different.ok()) return fail(different.status());
    if (*different > 0) return kFailure;
  }
  if (stopped) return 128 + SIGINT;
  return r.summary.completed > 0 && r.summary.valid ? kSuccess : kFailure;
}

void add_workload(CLI::App& c, Options& o) {
  WorkloadSpec& w = o.workload;
  c.add_option("--endpoint", o.endpoint,
               "chat, completions, generate_stream, infer, grpc_infer or grpc_stream")
      ->capture_default_str();
  c.add_option("--model", w.model, "default: the first that /v1/models names");
  c.add_option("--prompt-words", w.prompt_words, "of each prompt; a word is about a token")
      ->capture_default_str();
  c.add_option("--output-tokens", w.output_tokens, "max_tokens of each request")->capture_default_str();
  c.add_option("--length-spread", w.length_spread, "lengths vary by this part, uniformly")
      ->capture_default_str();
  c.add_option("--prefix-words", w.prefix_words, "the same in front of every prompt of a group")
      ->capture_default_str();
  c.add_option("--prefix-groups", w.prefix_groups, "how many different prefixes")->capture_default_str();
  c.add_option("--turns", w.turns, "questions of a conversation, each with all before")
      ->capture_default_str();
  c.add_option("--temperature", w.temperature)->capture_default_str();
  c.add_flag("--use-eos", o.use_eos, "let the model end its answers; otherwise ignore_eos is sent");
  c.add_flag("--no-stream", o.no_stream, "ask for whole answers");
  c.add_option("--cancel-share", w.cancel_share, "part of the requests whose client leaves early")
      ->capture_default_str();
  c.add_option("--slow-share", w.slow_share, "part of the requests whose client reads slowly")
      ->capture_default_str();
  c.add_option("--slow-bytes", o.run.slow_bytes_per_second, "bytes per second of a slow reader")
      ->check(above_zero())
      ->capture_default_str();
  c.add_option("--tensor", w.tensors,
               "tensor endpoints: an input of random numbers, name:FP32:1,3,224,224; may be repeated")
      ->allow_extra_args(false);
  c.add_option("--body", o.body_file, "tensor endpoints: file with the JSON of an Open Inference request");
  c.add_option("--connections", o.run.connections, "gRPC: calls are spread over so many")
      ->check(in_range(1, 10000))
      ->capture_default_str();
  c.add_option("--extra-body", o.extra, "JSON object whose fields are added to every request");
}

void add_schedule(CLI::App& c, Options& o) {
  c.add_option("-n,--requests", o.count, "how many; default 100, or what --duration takes")
      ->check(zero_or_more());
  c.add_option("--duration", o.run.duration, "seconds after which nothing new is sent")
      ->check(zero_or_more());
  c.add_option("-c,--concurrency", o.run.concurrency, "closed loop: requests under way at once")
      ->check(in_range(1, 1'000'000))
      ->capture_default_str();
  o.arrivals.rate = 0;
  c.add_option("-r,--rate", o.arrivals.rate, "open loop: requests per second")->check(above_zero());
  c.add_option("--arrival", o.arrival,
               "closed, constant, poisson (default with --rate), gamma, ramp, burst, trace");
  c.add_option("--burstiness", o.arrivals.burstiness, "gamma: shape; below 1 burstier")
      ->capture_default_str();
  c.add_option("--rate-end", o.rate_end, "ramp: the last rate");
  c.add_option("--burst", o.arrivals.burst, "burst: requests at once")->capture_default_str();
  c.add_option("--trace", o.trace, "CSV or JSONL of recorded requests to replay");
  c.add_option("--speed", o.speed, "replay this many times faster")->capture_default_str();
  c.add_option("--trace-words", o.words_limit, "cut the trace's prompts to this many words");
  c.add_option("--trace-output", o.output_limit, "cut the trace's answers to this many tokens");
  c.add_option("--max-in-flight", o.run.max_in_flight,
               "open loop: more wait in the client, and their waiting counts")
      ->check(zero_or_more());
  c.add_option("--warmup", o.warmup, "requests before measuring")->check(zero_or_more());
  c.add_option("--seed", o.arrivals.seed, "of prompts and arrival times")->capture_default_str();
  c.add_option("--threads", o.run.threads, "of this client")->check(in_range(1, 256))->capture_default_str();
  c.add_flag(
      "--spin", o.run.spin,
      "look for answers all the time instead of sleeping: on one machine a wake takes the server's time");
  c.add_option("--timeout", o.run.timeout, "seconds of one request")
      ->check(above_zero())
      ->capture_default_str();
  c.add_option("--stall-timeout", o.run.stall_timeout, "seconds without a byte")
      ->check(above_zero())
      ->capture_default_str();
}

}  // namespace

void add_loadtest(CLI::App& app, Action& action) {
  auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("loadtest", "Measure a server: latency, throughput, goodput");
  c->add_option("SERVER", o->server, "http[s]://host:port of an OpenAI-compatible or Open Inference server")
      ->capture_default_str();
  c->add_option("--api-key", o->api_key)->envname("OAR_API_KEY");
  c->add_option("--header", o->run.headers, "'Name: value', added to every request")->allow_extra_args(false);
  add_tls_options(*c, o->tls);
  add_workload(*c, *o);
  add_schedule(*c, *o);
  c->add_option("--goodput", o->goodput,
                "limits in ms, e.g. 'ttft:200 tpot:50 e2el:5000', from the intended time");
  c->add_flag("--find-rate", o->find_rate, "search the highest rate that meets --goodput, from --rate on");
  c->add_option("--find-share", o->find_share, "part of the requests that must meet it")
      ->capture_default_str();
  c->add_option("--against", o->other, "a second server: both in turns, ratios with confidence intervals");
  c->add_option("--rounds", o->rounds, "of --against")->check(above_zero())->capture_default_str();
  c->add_flag("--check", o->check, "afterwards ask everything again alone: the answers must be the same");
  c->add_option("--metrics", o->metrics,
                "path or whole URL of the server's metrics, read once a second; '' for none")
      ->capture_default_str();
  c->add_option("--json", o->json_file, "summary with the keys of vLLM's benchmark; - is standard output");
  c->add_option("--jsonl", o->jsonl_file, "one JSON object per request");
  c->add_option("--csv", o->csv_file, "one line per request");
  c->add_option("--html", o->html_file, "a page with plots that needs nothing else");
  c->add_flag("--detailed", o->detailed, "--json also lists every request, with its text");
  c->add_flag("-q,--quiet", o->quiet, "no live line");
  c->footer(
      "Latencies are given from the actual send time and from the intended one; the second includes what a\n"
      "request waited because the client or its limits held it back. A run whose client was itself late by "
      "more\n"
      "than 1 ms at p99 is marked invalid and exits with 1.\n"
      "Examples:\n"
      "  oar loadtest -c 8 -n 200                                    closed loop against 127.0.0.1:8000\n"
      "  oar loadtest http://gpu:8000 --rate 20 --duration 60 --goodput 'ttft:200 tpot:50' --html "
      "report.html\n"
      "  oar loadtest --rate 2 --duration 20 --goodput ttft:200 --find-rate\n"
      "  oar loadtest http://a:8000 --against http://b:8000 -c 16 -n 200\n"
      "  oar loadtest --trace AzureLLMInferenceTrace_code.csv --speed 4 -n 500");
  c->callback([o, &action] { action = [o] { return run_command(*o); }; });
}

}  // namespace oar::cli
