#include "clients/loadtest/report.h"

#include <cstdio>
#include <ctime>
#include <map>

#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

// "p50", "p99_9" would not be vLLM's way: it writes p99.9 as "p99.9".
std::string percentile_name(double p) { return cat("p", p); }

double ms(int64_t ns) { return to_ms(static_cast<double>(ns)); }

void add_latency(std::vector<LatencyRow>& rows, const char* name, const Histogram& h,
                 const std::vector<double>& percentiles) {
  if (h.count() == 0) return;
  LatencyRow row{name, {fixed(to_ms(h.mean()))}};
  for (const double p : percentiles) row.values.push_back(fixed(ms(h.percentile(p))));
  rows.push_back(std::move(row));
}

void put(json::object& o, const char* name, const Histogram& h, const std::vector<double>& percentiles) {
  o[cat("mean_", name, "_ms")] = to_ms(h.mean());
  o[cat("median_", name, "_ms")] = ms(h.percentile(50));
  o[cat("std_", name, "_ms")] = to_ms(h.stddev());
  for (const double p : percentiles) o[cat(percentile_name(p), "_", name, "_ms")] = ms(h.percentile(p));
}

json::object record_json(const Record& r) {
  json::object o = {{"index", r.index},
                    {"turn", r.turn},
                    {"intended_ms", ms(r.intended)},
                    {"dispatched_ms", ms(r.dispatched)},
                    {"sent_ms", r.sent < 0 ? json::value(nullptr) : json::value(ms(r.sent))},
                    {"first_ms", r.first < 0 ? json::value(nullptr) : json::value(ms(r.first))},
                    {"end_ms", r.end < 0 ? json::value(nullptr) : json::value(ms(r.end))},
                    {"prompt_tokens", r.prompt_tokens},
                    {"output_tokens", r.output_tokens},
                    {"tokens_counted_by", r.counted_by_server ? "server" : "chunks"},
                    {"chunks", r.chunks},
                    {"http_status", r.http_status},
                    {"cancelled", r.cancelled},
                    {"slow_reader", r.slow},
                    {"error", r.error}};
  if (!r.gaps.empty()) o["gaps_ms"] = json::value_from(r.gaps);
  if (!r.text.empty()) o["text"] = r.text;
  return o;
}

std::string csv_field(const std::string& s) {
  if (s.find_first_of(",\"\r\n") == std::string::npos) return s;
  std::string out = "\"";
  for (const char c : s) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::string now_text(const char* format) {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  char buffer[64];
  return std::string(buffer, std::strftime(buffer, sizeof buffer, format, &local));
}

std::string fixed(double v, int digits) {
  char buffer[64];
  const int n = std::snprintf(buffer, sizeof buffer, "%.*f", digits, v);
  return std::string(buffer, static_cast<size_t>(n));
}

std::vector<ReportRow> report_rows(const Report& r) {
  const Summary& s = r.summary;
  std::vector<ReportRow> rows = {
      {"requests",
       cat(s.requests, " (", s.completed, " completed, ", s.failed, " failed, ", s.cancelled, " cancelled)")},
      {"duration", cat(fixed(s.seconds), " s")},
      {"request throughput", cat(fixed(s.per_second(s.completed)), " req/s")},
      {"output throughput", cat(fixed(s.per_second(s.output_tokens)), " tokens/s",
                                s.counted_by_server ? "" : " (chunks counted: the server gives no usage)")},
      {"total throughput", cat(fixed(s.per_second(s.output_tokens + s.input_tokens)), " tokens/s")}};
  if (r.limits.any())
    rows.push_back({"goodput", cat(fixed(s.per_second(s.good)), " req/s (", s.good, " of ", s.requests,
                                   " within the limits)")});
  return rows;
}

std::vector<LatencyRow> latency_rows(const Report& r) {
  const Summary& s = r.summary;
  const bool intended = !r.spec.closed_loop;
  std::vector<LatencyRow> rows;
  add_latency(rows, "TTFT ms", s.ttft, r.percentiles);
  if (intended) add_latency(rows, "TTFT ms, from intended time", s.ttft_intended, r.percentiles);
  add_latency(rows, "TPOT ms", s.tpot, r.percentiles);
  add_latency(rows, "ITL ms", s.itl, r.percentiles);
  add_latency(rows, "end-to-end ms", s.e2el, r.percentiles);
  if (intended) add_latency(rows, "end-to-end ms, from intended time", s.e2el_intended, r.percentiles);
  return rows;
}

std::vector<ReportRow> client_rows(const Report& r) {
  const Summary& s = r.summary;
  std::vector<ReportRow> rows;
  if (!r.spec.closed_loop)
    rows.push_back({"schedule slip",
                    cat("p99 ", fixed(s.slip_p99_ms, 3), " ms, worst ", fixed(ms(s.slip.max()), 3), " ms")});
  rows.push_back({"client CPU", cat(fixed(s.cpu_seconds), " s for ", s.chunks, " chunks")});
  std::map<std::string, int64_t> errors;
  for (const Record& record : r.run->records)
    if (!record.error.empty()) ++errors[record.error];
  int shown = 0;
  for (const auto& [error, count] : errors) {
    if (++shown > 5) break;
    rows.push_back({cat("error x", count), error});
  }
  return rows;
}

std::string text_report(const Report& r) {
  std::string out = cat(r.title, ": ", r.spec.server.url, ", ", endpoint_name(r.workload.endpoint), "\n");
  const auto row = [&](const std::string& name, const std::string& value) {
    out += cat("  ", name, std::string(name.size() < 34 ? 34 - name.size() : 1, ' '), value, "\n");
  };
  for (const ReportRow& line : report_rows(r)) row(line.name, line.value);
  for (const LatencyRow& line : latency_rows(r)) {
    std::string values = "mean " + line.values[0];
    for (size_t i = 1; i < line.values.size(); ++i)
      values += cat("  ", percentile_name(r.percentiles[i - 1]), " ", line.values[i]);
    row(line.name, values);
  }
  if (!r.spec.closed_loop && !r.summary.valid)
    out += cat("  INVALID: this client was late by more than ", Summary::kMaxSlipMs,
               " ms at p99; use more --threads, or a lower rate\n");
  for (const ReportRow& line : client_rows(r)) row(line.name, line.value);
  return out;
}

json::object json_report(const Report& r, bool detailed) {
  const Summary& s = r.summary;
  json::object o;
  o["date"] = now_text("%Y%m%d-%H%M%S");
  o["endpoint_type"] = r.workload.endpoint == Endpoint::kChat          ? "openai-chat"
                       : r.workload.endpoint == Endpoint::kCompletions ? "openai"
                                                                       : endpoint_name(r.workload.endpoint);
  o["backend"] = o["endpoint_type"];
  o["label"] = r.title;
  o["command"] = r.command;
  o["client_version"] = r.client_version;
  o["server_version"] = r.server_version.empty() ? json::value(nullptr) : json::value(r.server_version);
  o["seed"] = r.arrival.seed;
  o["base_url"] = r.spec.server.url;
  o["model_id"] = r.workload.model;
  o["tokenizer_id"] = nullptr;
  o["num_prompts"] = s.requests;
  o["request_rate"] = r.spec.closed_loop ? json::value("inf") : json::value(r.arrival.rate);
  o["burstiness"] = r.arrival.burstiness;
  o["arrival"] = arrival_name(r.arrival.kind);
  o["max_concurrency"] = r.spec.closed_loop         ? json::value(r.spec.concurrency)
                         : r.spec.max_in_flight > 0 ? json::value(r.spec.max_in_flight)
                                                    : json::value(nullptr);
  o["duration"] = s.seconds;
  o["completed"] = s.completed;
  o["failed"] = s.failed;
  o["cancelled"] = s.cancelled;
  o["total_input_tokens"] = s.input_tokens;
  o["total_output_tokens"] = s.output_tokens;
  o["output_tokens_counted_by"] = s.counted_by_server ? "server" : "chunks";
  o["request_throughput"] = s.per_second(s.completed);
  o["request_goodput"] = r.limits.any() ? json::value(s.per_second(s.good)) : json::value(nullptr);
  o["output_throughput"] = s.per_second(s.output_tokens);
  o["total_token_throughput"] = s.per_second(s.output_tokens + s.input_tokens);
  put(o, "ttft", s.ttft, r.percentiles);
  put(o, "tpot", s.tpot, r.percentiles);
  put(o, "itl", s.itl, r.percentiles);
  put(o, "e2el", s.e2el, r.percentiles);
  put(o, "ttft_intended", s.ttft_intended, r.percentiles);
  put(o, "e2el_intended", s.e2el_intended, r.percentiles);
  put(o, "schedule_slip", s.slip, r.percentiles);
  o["valid"] = s.valid;
  o["client_cpu_seconds"] = s.cpu_seconds;
  if (!r.samples.empty()) {
    json::array samples;
    for (const Sample& sample : r.samples) {
      json::object values = {{"at_s", sample.at}};
      for (const auto& [name, value] : sample.values) values[name] = value;
      samples.push_back(std::move(values));
    }
    o["server_metrics"] = std::move(samples);
  }
  if (detailed) {
    json::array in, out, ttfts, itls, texts, errors;
    for (const Record& record : r.run->records) {
      in.push_back(record.prompt_tokens);
      out.push_back(record.output_tokens);
      ttfts.push_back(record.first < 0 || record.sent < 0 ? 0.0 : ms(record.first - record.sent) * 1e-3);
      json::array gaps;
      for (const float g : record.gaps) gaps.push_back(g * 1e-3);
      itls.push_back(std::move(gaps));
      texts.push_back(json::value(record.text));
      errors.push_back(json::value(record.error));
    }
    o["input_lens"] = std::move(in);
    o["output_lens"] = std::move(out);
    o["ttfts"] = std::move(ttfts);
    o["itls"] = std::move(itls);
    o["generated_texts"] = std::move(texts);
    o["errors"] = std::move(errors);
  }
  return o;
}

std::string jsonl_report(const Report& r) {
  std::string out;
  for (const Record& record : r.run->records) out += json::serialize(record_json(record)) + "\n";
  return out;
}

std::string csv_report(const Report& r) {
  std::string out =
      "index,turn,intended_ms,dispatched_ms,sent_ms,first_ms,end_ms,prompt_tokens,output_tokens,chunks,http_"
      "status,"
      "cancelled,error\n";
  const auto time = [](int64_t ns) { return ns < 0 ? std::string() : cat(ms(ns)); };
  for (const Record& record : r.run->records)
    out += cat(record.index, ",", record.turn, ",", time(record.intended), ",", time(record.dispatched), ",",
               time(record.sent), ",", time(record.first), ",", time(record.end), ",", record.prompt_tokens,
               ",", record.output_tokens, ",", record.chunks, ",", record.http_status, ",",
               record.cancelled ? 1 : 0, ",", csv_field(record.error), "\n");
  return out;
}

}  // namespace oar::loadtest
