// A run on paper: a table for people, JSON with the keys of vLLM's benchmark, JSON lines and CSV with one
// request per line, and one HTML page that needs nothing else.
#pragma once

#include <string>
#include <vector>

#include "clients/loadtest/run.h"
#include "clients/loadtest/scrape.h"
#include "clients/loadtest/summary.h"
#include "clients/loadtest/workload.h"
#include "engine/base/json.h"

namespace oar::loadtest {

struct Report {
  std::string title;  // "oar loadtest", or the name of a side
  RunSpec spec;
  WorkloadSpec workload;
  ArrivalSpec arrival;
  Goodput limits;
  const RunResult* run = nullptr;
  Summary summary;
  std::vector<Sample> samples;
  std::vector<double> percentiles = {50, 90, 99, 99.9};
};

std::string text_report(const Report& report);
// `detailed`: also lists with one entry per request, as --save-detailed of vLLM's benchmark writes them.
json::object json_report(const Report& report, bool detailed);
std::string jsonl_report(const Report& report);
std::string csv_report(const Report& report);
std::string html_report(const std::vector<const Report*>& reports);

// &, <, >, quotes and control characters: safe in HTML text and attributes.
std::string escape_html(std::string_view text);

}  // namespace oar::loadtest
