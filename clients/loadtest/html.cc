// The HTML page: tables and plots as inline SVG (plot.h), no script, nothing fetched. Every text that came
// from outside passes escape_html().
#include <algorithm>

#include "clients/loadtest/plot.h"
#include "clients/loadtest/report.h"
#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

using Reports = std::vector<const Report*>;

// Colours of series that are told apart on white and on black, also by the colour-blind (Okabe and Ito), and
// by their dashes.
constexpr const char* kStyle = R"(
:root{color-scheme:light dark;--ink:#1d2327;--soft:#5c666d;--paper:#fff;--box:#f4f5f6;--line:#d9dde0;--bad:#b00020;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#a0508a;--c4:#b8860b;--c5:#555}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--soft:#a3adb4;--paper:#15191c;--box:#1f2529;--line:#3a4248;
--bad:#ff8a80;--c0:#56b4e9;--c1:#ff9d4d;--c2:#3fcf9f;--c3:#e08fc4;--c4:#f0d060;--c5:#bbb}}
body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:1320px;padding:1.5em 1em 3em;color:var(--ink);
background:var(--paper)}
h1{font-size:1.6em;margin:0}h2{font-size:1.15em;margin:1.8em 0 .5em}
code{font:13px/1.5 ui-monospace,monospace;overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse}th,td{padding:.25em .9em .25em 0;text-align:left;
vertical-align:top;border-bottom:1px solid var(--line)}th{font-weight:600}thead th{color:var(--soft)}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}td{overflow-wrap:anywhere}
.bad{color:var(--bad);font-weight:600}.soft{color:var(--soft)}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30em),1fr));gap:1em}
svg{width:100%;height:auto;display:block;background:var(--box);border-radius:6px}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .title{font-size:13.5px;font-weight:600}
svg .unit{fill:var(--soft)}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
.grid{stroke:var(--line)}.line{fill:none;stroke-width:2;stroke-linejoin:round}.line.c1{stroke-dasharray:6 3}
.line.c2{stroke-dasharray:2 3}.dot{fill-opacity:.75}.dot.c1{fill-opacity:0;stroke-width:1.2}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}.c4{stroke:var(--c4)}
.c5{stroke:var(--c5)}.dot.c0{fill:var(--c0)}.dot.c2{fill:var(--c2)}.dot.c3{fill:var(--c3)}.dot.c4{fill:var(--c4)}
.dot.c5{fill:var(--c5)}
)";

std::string cell(const char* tag, std::string_view text, const char* kind = "") {
  return cat("<", tag, *kind != 0 ? cat(" class=\"", kind, "\"") : "", ">", escape_html(text), "</", tag,
             ">");
}

std::string percentile_plot(const Reports& reports, const char* title, const Histogram Summary::*member) {
  static constexpr double kAt[] = {10, 25, 50, 75, 90, 95, 99, 99.9, 100};
  std::vector<Series> series;
  PlotSpec spec{title, "percentile", "", "s"};
  for (const double p : kAt) spec.x_labels.push_back(p == 100 ? "max" : cat("p", p));
  for (const Report* r : reports) {
    const Histogram& h = r->summary.*member;
    if (h.count() == 0) continue;
    Series s{r->title, {}};
    for (size_t i = 0; i < std::size(kAt); ++i)
      s.points.push_back({static_cast<double>(i), static_cast<double>(h.percentile(kAt[i])) * 1e-9});
    series.push_back(std::move(s));
  }
  return plot(spec, series);
}

std::string timeline(const Reports& reports) {
  std::vector<Series> first, tokens;
  for (const Report* r : reports) {
    Series f{r->title, {}, true}, t{r->title, {}, false};
    std::vector<double> per_second;
    for (const Record& record : r->run->records) {
      if (!record.ok() || record.first < 0) continue;
      f.points.push_back({static_cast<double>(record.intended) * 1e-9,
                          static_cast<double>(record.first - record.intended) * 1e-9});
      // Tokens of a request, spread evenly from its first to its last.
      const double begin = static_cast<double>(record.first) * 1e-9,
                   end = static_cast<double>(record.last) * 1e-9;
      const auto from = static_cast<size_t>(std::max(0.0, begin)),
                 to = static_cast<size_t>(std::max(begin, end));
      if (to >= 100'000) continue;
      if (per_second.size() <= to) per_second.resize(to + 1);
      for (size_t i = from; i <= to; ++i)
        per_second[i] += static_cast<double>(record.output_tokens) / static_cast<double>(to - from + 1);
    }
    // A line needs two points; the last second is rarely a whole one.
    for (size_t i = 0; per_second.size() > 2 && i + 1 < per_second.size(); ++i)
      t.points.push_back({static_cast<double>(i), per_second[i]});
    first.push_back(std::move(f));
    tokens.push_back(std::move(t));
  }
  return plot({"Time to first token, by when a request was due", "time", "s", "s"}, first) +
         plot({"Output in each second", "time", "s", "tokens/s"}, tokens);
}

std::string server_plots(const Reports& reports) {
  std::string out;
  for (const std::string& name : default_metrics()) {
    std::vector<Series> series;
    for (const Report* r : reports) {
      Series s{r->title, {}};
      for (const Sample& sample : r->samples)
        if (const auto it = sample.values.find(name); it != sample.values.end())
          s.points.push_back({sample.at, it->second});
      if (s.points.size() > 1) series.push_back(std::move(s));
    }
    out += plot({name, "time", "s", name.ends_with("_bytes") ? "bytes" : ""}, series);
  }
  return out.empty() ? out
                     : cat("<h2>What the server says of itself</h2>\n<div class=\"plots\">", out, "</div>\n");
}

std::string load_of(const Report& r) {
  if (r.spec.closed_loop) return cat("closed loop, ", r.spec.concurrency, " requests under way");
  std::string out = arrival_name(r.arrival.kind);
  if (r.arrival.kind != ArrivalKind::kTrace) out += cat(", ", r.arrival.rate, " requests/s");
  if (r.spec.max_in_flight > 0) out += cat(", at most ", r.spec.max_in_flight, " under way");
  return out;
}

// What was run, so that somebody else can run it again.
std::string facts(const Reports& reports) {
  const Report& r = *reports[0];
  std::string out = "<div class=\"scroll\"><table>";
  const auto row = [&](const std::string& name, const std::string& value) {
    if (!value.empty()) out += cat("<tr>", cell("th", name), cell("td", value), "</tr>\n");
  };
  if (!r.command.empty())
    out += cat("<tr>", cell("th", "command"), "<td><code>", escape_html(r.command), "</code></td></tr>\n");
  for (const Report* side : reports)
    row(reports.size() > 1 ? "server " + side->title : "server",
        cat(side->spec.server.url, side->server_version.empty() ? "" : cat(" (", side->server_version, ")")));
  row("client", r.client_version.empty() ? ""
                                         : cat("oar ", r.client_version, ", ", r.spec.threads,
                                               r.spec.threads == 1 ? " thread" : " threads"));
  row("model", r.workload.model);
  row("requests", cat(endpoint_name(r.workload.endpoint), ", ", load_of(r)));
  if (r.workload.tensors.empty() && r.workload.body.empty() && r.arrival.kind != ArrivalKind::kTrace)
    row("lengths", cat("prompts of ", r.workload.prefix_words + r.workload.prompt_words,
                       " words, answers of ", r.workload.output_tokens, " tokens"));
  row("seed", cat(r.arrival.seed));
  return out + "</table></div>\n";
}

// Counts and rates, a column for each side.
std::string counts(const Reports& reports) {
  std::vector<std::vector<ReportRow>> columns;
  for (const Report* r : reports) columns.push_back(report_rows(*r));
  std::string out = "<div class=\"scroll\"><table>";
  if (reports.size() > 1) {
    out += "<thead><tr><th></th>";
    for (const Report* r : reports) out += cell("th", r->title);
    out += "</tr></thead>";
  }
  for (size_t i = 0; i < columns[0].size(); ++i) {
    out += "<tr>" + cell("th", columns[0][i].name);
    for (const auto& column : columns) out += cell("td", column[i].value);
    out += "</tr>\n";
  }
  out += "</table></div>\n";
  for (const Report* r : reports)
    for (const ReportRow& row : client_rows(*r))
      out += cat("<p class=\"soft\">", reports.size() > 1 ? escape_html(r->title) + ": " : "",
                 escape_html(row.name), " ", escape_html(row.value), "</p>\n");
  return out;
}

std::string latencies(const Reports& reports) {
  std::string out =
      "<h2>Latency</h2>\n<div class=\"scroll\"><table><thead><tr><th></th><th class=\"n\">mean</th>";
  for (const double p : reports[0]->percentiles) out += cell("th", cat("p", p), "n");
  out += "</tr></thead>";
  std::vector<std::vector<LatencyRow>> sides;
  size_t most = 0;
  for (const Report* r : reports) {
    sides.push_back(latency_rows(*r));
    most = std::max(most, sides.back().size());
  }
  for (size_t i = 0; i < most; ++i) {
    for (size_t k = 0; k < sides.size(); ++k) {
      if (i >= sides[k].size()) continue;
      out += "<tr>" + cell("th", cat(sides[k][i].name, sides.size() > 1 ? ", " + reports[k]->title : ""));
      for (const std::string& value : sides[k][i].values) out += cell("td", value, "n");
      out += "</tr>\n";
    }
  }
  return most == 0 ? "" : out + "</table></div>\n";
}

std::string comparison(const std::vector<Ratio>& ratios) {
  if (ratios.empty()) return {};
  std::string out = cat("<h2>B / A, ", ratios[0].rounds, ratios[0].rounds == 1 ? " round" : " rounds",
                        "</h2>\n<div class=\"scroll\"><table><thead><tr><th></th><th class=\"n\">ratio</th>"
                        "<th class=\"n\">95 % interval</th><th></th></tr></thead>");
  for (const Ratio& r : ratios)
    out += cat("<tr>", cell("th", r.name), cell("td", fixed(r.ratio, 3), "n"),
               cell("td", r.rounds < 2 ? "" : cat(fixed(r.low, 3), " to ", fixed(r.high, 3)), "n"),
               cell("td", verdict(r)), "</tr>\n");
  return out +
         "</table></div>\n<p class=\"soft\">Of rates, above 1 means that B is better; of times, below 1. "
         "The tables and plots below are of the last round.</p>\n";
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') out += "\xEF\xBF\xBD";
        else out += c;
    }
  }
  return out;
}

std::string html_report(const Reports& reports, const std::vector<Ratio>& ratios) {
  std::string out =
      cat("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'\">"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
          "<title>oar loadtest</title><style>",
          kStyle, "</style></head><body><h1>oar loadtest</h1>\n<p class=\"soft\">",
          now_text("%Y-%m-%d %H:%M %Z"), "</p>\n");
  for (const Report* r : reports)
    if (!r->summary.valid)
      out += cat("<p class=\"bad\">", escape_html(r->title),
                 " is invalid: the client could not keep its own schedule.</p>\n");
  out += facts(reports) + comparison(ratios) + "<h2>Counts and rates</h2>\n" + counts(reports) +
         latencies(reports);
  out += "<h2>Over time and by percentile</h2>\n<div class=\"plots\">";
  out += timeline(reports);
  out += percentile_plot(reports, "Time to first token (TTFT)", &Summary::ttft_intended);
  out += percentile_plot(reports, "Time between outputs (ITL)", &Summary::itl);
  out += percentile_plot(reports, "Time per output token (TPOT)", &Summary::tpot);
  out += percentile_plot(reports, "Whole answer (end to end)", &Summary::e2el_intended);
  out += "</div>\n" + server_plots(reports);
  return out + "</body></html>\n";
}

}  // namespace oar::loadtest
