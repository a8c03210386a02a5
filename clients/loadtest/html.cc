// The HTML page: tables and plots as inline SVG, no script, nothing fetched. Every text that came from
// outside passes escape_html().
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "clients/loadtest/report.h"
#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

constexpr double kWidth = 640, kHeight = 240, kLeft = 64, kBottom = 34, kTop = 26;
constexpr const char* kColors[] = {"#1f6f8b", "#d1495b", "#6a8d3a", "#8e5ea2", "#c98b1b", "#555555"};

struct Point {
  double x, y;
};
struct Series {
  std::string name;
  std::vector<Point> points;
  bool dots = false;
};

std::string number(double v) {
  char buffer[32];
  const int n = std::snprintf(buffer, sizeof buffer, "%.4g", v);
  return std::string(buffer, static_cast<size_t>(n));
}

// A plot of all series over common axes that begin at 0 in y. Points beyond `kMost` are thinned evenly.
std::string plot(const std::string& title, const std::string& x_name, const std::string& y_name,
                 const std::vector<Series>& series, const std::vector<std::string>& x_labels = {}) {
  constexpr size_t kMost = 2000;
  double x0 = INFINITY, x1 = -INFINITY, y1 = 0;
  for (const Series& s : series)
    for (const Point& p : s.points) x0 = std::min(x0, p.x), x1 = std::max(x1, p.x), y1 = std::max(y1, p.y);
  if (!(x0 <= x1)) return {};
  if (x1 == x0) x1 = x0 + 1;
  if (y1 == 0) y1 = 1;
  const auto px = [&](double x) { return kLeft + (x - x0) / (x1 - x0) * (kWidth - kLeft - 12); };
  const auto py = [&](double y) { return kHeight - kBottom - y / y1 * (kHeight - kBottom - kTop); };
  std::string out = cat("<svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\"><text x=\"", kLeft,
                        "\" y=\"15\" class=\"title\">", escape_html(title), "</text>");
  for (int i = 0; i <= 4; ++i) {
    const double y = y1 * i / 4;
    out += cat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth - 12, "\" y1=\"", number(py(y)),
               "\" y2=\"", number(py(y)), "\"/><text x=\"", kLeft - 6, "\" y=\"", number(py(y) + 4),
               "\" class=\"y\">", number(y), "</text>");
    if (x_labels.empty()) {
      const double x = x0 + (x1 - x0) * i / 4;
      out += cat("<text x=\"", number(px(x)), "\" y=\"", kHeight - kBottom + 16, "\" class=\"x\">", number(x),
                 "</text>");
    }
  }
  for (size_t i = 0; i < x_labels.size(); ++i)
    out += cat("<text x=\"", number(px(static_cast<double>(i))), "\" y=\"", kHeight - kBottom + 16,
               "\" class=\"x\">", escape_html(x_labels[i]), "</text>");
  out += cat("<text x=\"", kWidth - 12, "\" y=\"", kHeight - 4, "\" class=\"y\">", escape_html(x_name),
             "</text><text x=\"4\" y=\"", kTop - 4, "\">", escape_html(y_name), "</text>");
  double legend = kLeft + 150;
  for (size_t k = 0; k < series.size(); ++k) {
    const char* color = kColors[k % std::size(kColors)];
    const auto& points = series[k].points;
    const size_t step = points.size() / kMost + 1;
    if (series[k].dots) {
      for (size_t i = 0; i < points.size(); i += step)
        out += cat("<circle cx=\"", number(px(points[i].x)), "\" cy=\"", number(py(points[i].y)),
                   "\" r=\"1.8\" fill=\"", color, "\"/>");
    } else {
      out += cat("<polyline fill=\"none\" stroke-width=\"1.6\" stroke=\"", color, "\" points=\"");
      for (size_t i = 0; i < points.size(); i += step)
        out += cat(number(px(points[i].x)), ",", number(py(points[i].y)), " ");
      out += "\"/>";
    }
    out += cat("<text x=\"", number(legend), "\" y=\"15\" fill=\"", color, "\">", escape_html(series[k].name),
               "</text>");
    legend += 14 + 7.2 * static_cast<double>(series[k].name.size());
  }
  return out + "</svg>\n";
}

std::string percentile_plot(const std::vector<const Report*>& reports, const char* title,
                            const Histogram Summary::*member) {
  std::vector<Series> series;
  std::vector<std::string> labels;
  const double at[] = {10, 25, 50, 75, 90, 95, 99, 99.9, 100};
  for (const double p : at) labels.push_back(p == 100 ? "max" : cat("p", p));
  for (const Report* r : reports) {
    const Histogram& h = r->summary.*member;
    if (h.count() == 0) continue;
    Series s{r->title, {}, false};
    for (size_t i = 0; i < std::size(at); ++i)
      s.points.push_back({static_cast<double>(i), to_ms(static_cast<double>(h.percentile(at[i])))});
    series.push_back(std::move(s));
  }
  return series.empty() ? std::string() : plot(title, "percentile", "ms", series, labels);
}

std::string timeline(const std::vector<const Report*>& reports) {
  std::vector<Series> first, tokens;
  for (const Report* r : reports) {
    Series f{r->title, {}, true}, t{r->title, {}, false};
    std::vector<double> per_second;
    for (const Record& record : r->run->records) {
      if (!record.ok() || record.first < 0) continue;
      f.points.push_back({static_cast<double>(record.intended) * 1e-9,
                          to_ms(static_cast<double>(record.first - record.intended))});
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
    for (size_t i = 0; i < per_second.size(); ++i)
      t.points.push_back({static_cast<double>(i), per_second[i]});
    first.push_back(std::move(f));
    tokens.push_back(std::move(t));
  }
  return plot("TTFT over time", "s", "ms", first) + plot("Output tokens per second", "s", "1/s", tokens);
}

std::string server_plots(const Report& r) {
  std::string out;
  for (const std::string& name : default_metrics()) {
    Series s{name, {}, false};
    for (const Sample& sample : r.samples)
      if (const auto it = sample.values.find(name); it != sample.values.end())
        s.points.push_back({sample.at, it->second});
    if (s.points.size() > 1) out += plot(r.title, "s", "", {s});
  }
  return out;
}

std::string table(const Report& r) {
  std::string out = "<pre>";
  out += escape_html(text_report(r));
  out += cat("  model                             ", escape_html(r.workload.model), "\n</pre>\n");
  return out;
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

std::string html_report(const std::vector<const Report*>& reports) {
  std::string out =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">"
      "<title>oar loadtest</title><style>body{font:14px/1.45 system-ui,sans-serif;margin:2em "
      "auto;max-width:1340px;"
      "padding:0 "
      "1em;color:#222}pre{background:#f5f5f3;padding:1em;overflow:auto}svg{width:640px;max-width:100%;"
      "background:#fff;border:1px solid #ddd;margin:4px}svg text{font-size:11px;fill:#444}svg "
      ".title{font-weight:bold}"
      "svg .y{text-anchor:end}svg "
      ".x{text-anchor:middle}.grid{stroke:#e4e4e4}.bad{color:#b00020;font-weight:bold}"
      "</style></head><body><h1>oar loadtest</h1>\n";
  for (const Report* r : reports) {
    if (!r->summary.valid)
      out += "<p class=\"bad\">Invalid: the client could not keep its own schedule.</p>\n";
    out += table(*r);
  }
  out += timeline(reports);
  out += percentile_plot(reports, "TTFT", &Summary::ttft_intended);
  out += percentile_plot(reports, "ITL", &Summary::itl);
  out += percentile_plot(reports, "TPOT", &Summary::tpot);
  out += percentile_plot(reports, "End-to-end", &Summary::e2el_intended);
  for (const Report* r : reports) out += server_plots(*r);
  return out + "</body></html>\n";
}

}  // namespace oar::loadtest
