// What is written of a run: a table for people, JSON with the keys of vLLM's benchmark, JSON lines and CSV
// with one request per line. And one HTML page (html.cc) that needs no other file.
#pragma once

#include <string>
#include <vector>

#include "clients/loadtest/compare.h"
#include "clients/loadtest/run.h"
#include "clients/loadtest/scrape.h"
#include "clients/loadtest/summary.h"
#include "clients/loadtest/workload.h"
#include "engine/base/json.h"

namespace oar::loadtest {

struct Report {
  std::string title;           // "oar loadtest", or the name of a side
  std::string command;         // the command line, keys hidden
  std::string client_version;  // of this program
  std::string server_version;  // "oar 1.2.3" as the server says; empty: it does not
  RunSpec spec;
  WorkloadSpec workload;
  ArrivalSpec arrival;
  Goodput limits;
  const RunResult* run = nullptr;
  Summary summary;
  std::vector<Sample> samples;
  std::vector<double> percentiles = {50, 90, 99, 99.9};
};

// What a person reads, in order: counts, rates, and the rows whose values stand beside each other.
struct ReportRow {
  std::string name, value;
};
struct LatencyRow {
  std::string name;
  std::vector<std::string> values;  // mean, then Report::percentiles
};
std::vector<ReportRow> report_rows(const Report& report);
std::vector<LatencyRow> latency_rows(const Report& report);  // in milliseconds
std::vector<ReportRow> client_rows(const Report& report);    // of this client, and errors

std::string text_report(const Report& report);
// `detailed`: also lists with one entry per request, as --save-detailed of vLLM's benchmark writes them.
json::object json_report(const Report& report, bool detailed);
std::string jsonl_report(const Report& report);
std::string csv_report(const Report& report);
// One side, or A and B with `ratios` from all rounds.
std::string html_report(const std::vector<const Report*>& reports, const std::vector<Ratio>& ratios = {});

std::string now_text(const char* format);         // local time as strftime() writes it
std::string fixed(double value, int digits = 2);  // with so many digits behind the point

// &, <, >, quotes and control characters: safe in HTML text and attributes.
std::string escape_html(std::string_view text);

}  // namespace oar::loadtest
