// The pure parts: histogram, arrivals, statistics, parsers, reports.
#include <algorithm>
#include <cmath>

#include "clients/loadtest/answer.h"
#include "clients/loadtest/compare.h"
#include "clients/loadtest/plot.h"
#include "clients/loadtest/report.h"
#include "clients/loadtest/response.h"
#include "clients/loadtest/search.h"
#include "tests/support/catch.h"

namespace {
using namespace oar;
using namespace oar::loadtest;

TEST_CASE("histogram: percentiles within 1/1024 of the exact ones") {
  uint64_t state = 3;
  for (const int bits : {8, 20, 40, 61}) {
    Histogram h, left, right;
    std::vector<int64_t> values;
    for (int i = 0; i < 5000; ++i) {
      const auto v = static_cast<int64_t>(next_random(state) >> (64 - bits));
      values.push_back(v);
      h.record(v);
      (i % 2 == 0 ? left : right).record(v);
    }
    std::sort(values.begin(), values.end());
    left.merge(right);
    for (const double p : {0.0, 1.0, 50.0, 90.0, 99.0, 99.9, 100.0}) {
      const auto rank = static_cast<size_t>(std::max(1.0, std::ceil(p / 100 * 5000 - 1e-6)));
      const auto exact = static_cast<double>(values[rank - 1]);
      CHECK(std::abs(static_cast<double>(h.percentile(p)) - exact) <= exact / 1024);
      CHECK(left.percentile(p) == h.percentile(p));
    }
    CHECK(h.min() == values.front());
    CHECK(h.max() == values.back());
    double sum = 0;
    for (const int64_t v : values) sum += static_cast<double>(v);
    CHECK(h.mean() == Approx(sum / 5000));
    int64_t in_buckets = 0;
    for (const auto& b : h.buckets()) in_buckets += b.count;
    CHECK(in_buckets == 5000);
  }
  Histogram h;
  CHECK(h.percentile(99) == 0);
  h.record(-5);
  h.record(INT64_MAX);
  CHECK(h.min() == 0);
  CHECK(h.max() == int64_t{1} << 62);
}

// Mean and coefficient of variation of the gaps.
std::pair<double, double> gaps(const std::vector<double>& t) {
  double mean = 0, squares = 0;
  const double n = static_cast<double>(t.size() - 1);
  for (size_t i = 1; i < t.size(); ++i) mean += (t[i] - t[i - 1]) / n;
  for (size_t i = 1; i < t.size(); ++i) squares += std::pow(t[i] - t[i - 1] - mean, 2) / n;
  return {mean, std::sqrt(squares) / mean};
}

TEST_CASE("arrivals have the rate and the burstiness asked for, and repeat") {
  ArrivalSpec s;
  s.rate = 50;
  s.count = 40'000;
  s.seed = 9;
  // A gap has standard deviation cv / rate, so the mean of n gaps is off by cv / sqrt(n): 4 of these are 2 %
  // here for cv 1, 4 % for cv 2.
  s.kind = ArrivalKind::kConstant;
  CHECK(gaps(*arrival_times(s)).first == Approx(0.02).epsilon(1e-9));
  CHECK(gaps(*arrival_times(s)).second < 1e-6);
  s.kind = ArrivalKind::kPoisson;
  CHECK(gaps(*arrival_times(s)).first == Approx(0.02).epsilon(0.02));
  CHECK(gaps(*arrival_times(s)).second == Approx(1).epsilon(0.04));
  s.kind = ArrivalKind::kGamma;
  for (const double shape : {0.25, 1.0, 4.0}) {
    s.burstiness = shape;
    CHECK(gaps(*arrival_times(s)).first == Approx(0.02).epsilon(0.04));
    CHECK(gaps(*arrival_times(s)).second == Approx(1 / std::sqrt(shape)).epsilon(0.06));
  }
  CHECK(*arrival_times(s) == *arrival_times(s));
  s.kind = ArrivalKind::kBurst;
  s.burst = 100;
  const auto bursts = *arrival_times(s);
  CHECK(bursts[99] == 0);
  CHECK(bursts[100] == Approx(2));
  s.kind = ArrivalKind::kRamp;
  s.rate = 10;
  s.rate_end = 90;
  const auto ramp = *arrival_times(s);
  CHECK(std::is_sorted(ramp.begin(), ramp.end()));
  CHECK(ramp.back() == Approx(800).epsilon(1e-3));  // 40000 at 50 per second on average
  CHECK(1 / (ramp[1] - ramp[0]) == Approx(10).epsilon(0.01));
  CHECK(1 / (ramp.back() - ramp[ramp.size() - 2]) == Approx(90).epsilon(0.01));

  s.rate = 0;
  CHECK(arrival_times(s).status().param() == "rate");
  s.rate = 1;
  s.rate_end = NAN;
  CHECK(arrival_times(s).status().param() == "rate-end");
  CHECK(!parse_arrival("sometimes").ok());
}

TEST_CASE("events are the same however the bytes are cut") {
  const std::string bytes =
      ": ping\r\n\r\ndata: {\"a\":1}\n\nevent: x\ndata:two\ndata: lines\r\rid: 3\n\ndata: [DONE]\n\n";
  const std::vector<std::string> expected = {"{\"a\":1}", "two\nlines", "[DONE]"};
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    SseParser p;
    std::vector<std::string> got;
    for (size_t at = 0; at < bytes.size(); at += piece)
      REQUIRE_OK(p.push(std::string_view(bytes).substr(at, piece),
                        [&](std::string_view d) { got.emplace_back(d); }));
    CHECK(got == expected);
    CHECK(!p.incomplete());
  }
  SseParser p;
  REQUIRE_OK(p.push("data: half", [](std::string_view) {}));
  CHECK(p.incomplete());
  const std::string much(1 << 20, 'x');
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) status = p.push(much, [](std::string_view) {});
  CHECK(status.code() == StatusCode::kDataLoss);
}

TEST_CASE("responses are the same however the bytes are cut") {
  const std::string bytes =
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;x=y\r\nhello\r\n1\r\n \r\n5\r\nworld\r\n0\r\nTrailer: t\r\n\r\n";
  for (size_t piece = 1; piece <= bytes.size(); ++piece) {
    std::string body;
    ResponseParser p([&](std::string_view part) { body += part; });
    for (size_t at = 0; at < bytes.size(); at += piece) REQUIRE_OK(p.push(bytes.substr(at, piece)));
    CHECK(p.done());
    CHECK(p.keep_alive());
    CHECK(p.status_code() == 200);
    CHECK(p.content_type() == "text/event-stream");
    CHECK(body == "hello world");
    CHECK(!p.push("x").ok());
  }
  for (const char* wrong :
       {"220 mail\r\n", "HTTP/1.1 abc\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
    ResponseParser p([](std::string_view) {});
    CHECK(p.push(wrong).code() == StatusCode::kDataLoss);
  }
  ResponseParser endless([](std::string_view) {});
  Status status = endless.push("HTTP/1.1 200 OK\r\n");
  for (int i = 0; i < 10'000 && status.ok(); ++i)
    status = endless.push("X-Header: of a server that never stops\r\n");
  CHECK(!status.ok());
}

TEST_CASE("ratios and their intervals") {
  const auto of_rate = [](double seconds) {
    Summary s;
    s.completed = 100;
    s.seconds = seconds;
    return s;
  };
  std::vector<Summary> a, b;
  for (const double noise : {0.98, 1.01, 1.0, 1.02, 0.99, 1.0}) {
    a.push_back(of_rate(10 * noise));
    b.push_back(of_rate(8 * (2 - noise)));
  }
  const auto ratios = compare(a, b);
  REQUIRE(!ratios.empty());
  CHECK(ratios[0].name == "request throughput");
  CHECK(ratios[0].ratio == Approx(1.25).epsilon(0.01));
  CHECK(ratios[0].low > 1.2);
  CHECK(ratios[0].high < 1.3);
  CHECK(ratios[0].significant());
  // Against numpy/scipy: logs of five ratios, mean 0.02, sd 0.1 -> 0.02 +- 2.776 * 0.1 / sqrt(5).
  a.clear(), b.clear();
  const double sd = 0.1;
  for (const double z : {-1.264911064, -0.632455532, 0.0, 0.632455532, 1.264911064}) {
    a.push_back(of_rate(1));
    b.push_back(of_rate(std::exp(-(0.02 + sd * z))));
  }
  const auto five = compare(a, b);
  CHECK(std::log(five[0].high) - std::log(five[0].ratio) ==
        Approx(2.776 * sd / std::sqrt(5.0)).epsilon(1e-6));
  CHECK(!five[0].significant());
  CHECK(student_t95(60) == Approx(2.0003).epsilon(1e-3));
  CHECK(!compare({of_rate(1)}, {of_rate(2)})[0].significant());
}

TEST_CASE("the rate search closes in on the limit") {
  const double capacity = 37.5;
  int runs = 0;
  const auto run = [&](double rate) -> Result<Summary> {
    ++runs;
    Summary s;
    s.requests = 1000;
    s.good = rate <= capacity ? 1000 : 900;
    return s;
  };
  auto found = search_rate({.start = 1, .share = 0.99, .precision = 0.05}, run);
  REQUIRE_OK(found);
  CHECK(found->rate <= capacity);
  CHECK(found->rate >= capacity / 1.05);
  CHECK(runs < 15);
  found = search_rate({.start = 500, .share = 0.99, .precision = 0.05}, run);
  REQUIRE_OK(found);
  CHECK(found->rate >= capacity / 1.05);
  found = search_rate({.start = 1, .highest = 20, .share = 0.99, .precision = 0.05}, run);
  CHECK(found->rate == Approx(20));
  const auto never = search_rate({.start = 1}, [](double) -> Result<Summary> { return Summary{}; });
  CHECK(never->rate == 0);
  CHECK(!search_rate({.start = 1}, [](double) -> Result<Summary> { return unavailable("gone"); }).ok());
  // A late client says nothing of the server; above a rate that was met it is a bound.
  runs = 0;
  const auto late = search_rate({.start = 1}, [&](double) -> Result<Summary> {
    ++runs;
    Summary s;
    s.valid = false;
    s.slip_p99_ms = 7.5;
    return s;
  });
  CHECK(late.status().code() == StatusCode::kUnavailable);
  CHECK(late.status().message().find("late by 7.5 ms") != std::string::npos);
  CHECK(runs == 1);
  found = search_rate({.start = 1, .share = 0.99, .precision = 0.05}, [&](double rate) -> Result<Summary> {
    Summary s;
    s.requests = s.good = 100;
    s.valid = rate <= 10;
    return s;
  });
  REQUIRE(found.ok());
  CHECK(found->rate <= 10);
  CHECK(found->rate > 9);
}

TEST_CASE("goodput limits are read by name") {
  const auto g = parse_goodput("ttft:200, e2el:1500.5");
  REQUIRE_OK(g);
  CHECK(*g->ttft == 200);
  CHECK(*g->e2el == 1500.5);
  CHECK(!g->tpot);
  for (const char* wrong : {"ttft", "ttft:", "ttft:x", "ttft:-1", "latency:3", "ttft:200ms"}) {
    INFO(wrong);
    CHECK(!parse_goodput(wrong).ok());
  }
}

TEST_CASE("hostile names stay text in the page, in CSV and in JSON") {
  RunResult run;
  Record bad;
  bad.error = "</pre><script>alert(1)</script>, \"quoted\"\nline";
  run.records.push_back(bad);
  Report r;
  r.title = "<img src=x onerror=alert(2)>";
  r.workload.model = "m'\"><svg/onload=alert(3)>\x01";
  r.spec.server.url = "http://h\"><b>";
  r.run = &run;
  r.summary = summarize(run, r.spec, {});
  const std::string page = html_report({&r});
  for (const char* tag : {"<script", "<img", "<svg/", "<b>", "</pre><"}) {
    INFO(tag);
    CHECK(page.find(tag) == std::string::npos);
  }
  CHECK(page.find("&lt;script&gt;") != std::string::npos);
  CHECK(page.find('\x01') == std::string::npos);
  CHECK(page.find("http-equiv=\"Content-Security-Policy\"") != std::string::npos);
  const std::string csv = csv_report(r);
  CHECK(csv.find("\"</pre><script>alert(1)</script>, \"\"quoted\"\"\nline\"") != std::string::npos);
  auto parsed = parse_json(json::serialize(json_report(r, true)), "report");
  REQUIRE_OK(parsed);
  CHECK(parsed->at("model_id").as_string() == r.workload.model);
  CHECK(parse_json(jsonl_report(r), "line").ok());
}

std::vector<std::string> labels(double highest, const char* unit) {
  const Axis a = make_axis(highest, unit);
  std::vector<std::string> out;
  for (int i = 0; i <= a.count; ++i) out.push_back(a.label(i));
  out.push_back(a.unit);
  return out;
}

TEST_CASE("axes have round numbers in a unit that fits") {
  using Texts = std::vector<std::string>;
  CHECK(labels(5.265e-05, "s") == Texts{"0", "20", "40", "60", "µs"});
  CHECK(labels(0.0179, "s") == Texts{"0", "5", "10", "15", "20", "ms"});
  CHECK(labels(1, "s") == Texts{"0", "0.25", "0.50", "0.75", "1.00", "s"});
  CHECK(labels(93, "s") == Texts{"0", "25", "50", "75", "100", "s"});
  CHECK(labels(0.31, "") == Texts{"0", "0.1", "0.2", "0.3", "0.4", ""});
  CHECK(labels(7, "") == Texts{"0", "2", "4", "6", "8", ""});
  CHECK(labels(41000, "tokens/s") == Texts{"0", "20", "40", "60", "thousand tokens/s"});
  CHECK(labels(1.5e9, "bytes") == Texts{"0", "0.5", "1.0", "1.5", "GiB"});
  CHECK(labels(0, "s") == labels(1, "s"));
  for (double highest = 1e-9; highest < 1e12; highest *= 1.37) {
    const Axis a = make_axis(highest, "s");
    INFO(highest);
    CHECK(a.end() >= highest * 0.999);
    CHECK(a.count <= 5);
    CHECK(a.end() < highest * 2);
    for (int i = 1; i <= a.count; ++i)
      CHECK(std::stod(a.label(i)) == Approx(a.step * a.scale * i).epsilon(1e-6));
  }
}

TEST_CASE("two sides in the page are told apart, and their ratios have intervals") {
  RunResult run;
  for (int i = 0; i < 5; ++i) {
    Record r;
    r.intended = r.sent = i * 10'000;
    r.first = r.sent + 4'000, r.last = r.end = r.sent + 9'000 * (i + 1);
    r.output_tokens = 10;
    run.records.push_back(r);
  }
  run.seconds = 1e-4;
  Report a, b;
  a.title = "A", b.title = "B";
  a.spec.server.url = "http://one:8000", b.spec.server.url = "http://two:8000";
  a.server_version = "oar 9.8.7";
  a.command = "oar loadtest http://one:8000 --against http://two:8000 --seed 42";
  a.client_version = "1.2.3";
  a.arrival.seed = 42;
  for (Report* r : {&a, &b}) {
    r->run = &run;
    r->summary = summarize(run, r->spec, {});
    r->samples = {{0, {{"process_resident_memory_bytes", 5e6}}},
                  {1, {{"process_resident_memory_bytes", 6e6}}}};
  }
  Ratio ratio;
  ratio.name = "TTFT p50", ratio.ratio = 1.25, ratio.low = 1.125, ratio.high = 1.5, ratio.rounds = 4;
  const std::string page = html_report({&a, &b}, {ratio});
  for (const char* words :
       {"B / A, 4 rounds", "TTFT p50", ">1.250<", ">1.125 to 1.500<", ">differs<", "--seed 42", "oar 1.2.3",
        "http://one:8000 (oar 9.8.7)", "http://two:8000", "prefers-color-scheme:dark"}) {
    INFO(words);
    CHECK(page.find(words) != std::string::npos);
  }
  // Numbers on axes are round: none with an exponent.
  CHECK(page.find("e-0") == std::string::npos);
  // Each plot is titled by what it shows, and its legend names the sides in their colours.
  const size_t memory = page.find("aria-label=\"process_resident_memory_bytes\"");
  REQUIRE(memory != std::string::npos);
  const std::string drawn = page.substr(memory, page.find("</svg>", memory) - memory);
  for (const char* words : {"class=\"title\">process_resident_memory_bytes<", "class=\"name\">A<",
                            "class=\"name\">B<", "<line class=\"line c0\"", "<line class=\"line c1\""}) {
    INFO(words);
    CHECK(drawn.find(words) != std::string::npos);
  }
  CHECK(page.find(".c0{stroke:var(--c0)}.c1{stroke:var(--c1)}") != std::string::npos);
}

TEST_CASE("the summary has the keys that tools for vLLM's benchmark read") {
  RunResult run;
  Record r;
  r.sent = 0, r.first = 20'000'000, r.last = 110'000'000, r.end = 110'000'000;
  r.output_tokens = 10, r.prompt_tokens = 3, r.counted_by_server = true;
  run.records.push_back(r);
  run.seconds = 2;
  Report report;
  report.run = &run;
  report.summary = summarize(run, report.spec, {});
  const json::object o = json_report(report, true);
  for (const char* key : {"date",
                          "endpoint_type",
                          "model_id",
                          "num_prompts",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "mean_ttft_ms",
                          "median_ttft_ms",
                          "std_ttft_ms",
                          "p99_ttft_ms",
                          "mean_tpot_ms",
                          "median_itl_ms",
                          "p99_e2el_ms",
                          "p99.9_e2el_ms",
                          "input_lens",
                          "output_lens",
                          "ttfts",
                          "itls",
                          "generated_texts",
                          "errors"}) {
    INFO(key);
    CHECK(o.contains(key));
  }
  CHECK(o.at("mean_ttft_ms").as_double() == Approx(20));
  CHECK(o.at("mean_tpot_ms").as_double() == Approx(10));  // (110 - 20) / (10 - 1)
  CHECK(o.at("mean_e2el_ms").as_double() == Approx(110));
  CHECK(o.at("output_throughput").as_double() == Approx(5));
}

TEST_CASE("metrics are summed over label sets") {
  const auto v = parse_metrics(
      "# HELP a b\nvllm:num_requests_running{model=\"x}\\\" 9\"} 2\nvllm:num_requests_running{model=\"y\"} 3 "
      "1700000\n"
      "process_resident_memory_bytes 1.5e+06\nvllm:num_requests_running_total "
      "7\nbroken{\nvllm:kv_cache_usage_perc\n",
      default_metrics());
  CHECK(v.size() == 2);
  CHECK(v.at("vllm:num_requests_running") == 5);
  CHECK(v.at("process_resident_memory_bytes") == 1.5e6);
}

}  // namespace
