// The report of the instrument in its three dresses: text, JSON, plot.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "engine/base/format.h"
#include "engine/tune/measure/compare.h"
#include "engine/tune/measure/svg_plot.h"

namespace oar {
namespace {

std::string number(double v, const char* format) {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, format, v);
  return buffer;
}

// "w4a8 x int8" where activations were rounded as asked.
std::string weights_of(const CompareRow& r) {
  return r.activations.empty() ? r.weights : cat(r.weights, " x ", r.activations);
}

std::vector<std::string> cells(const CompareRow& r) {
  return {r.label,
          weights_of(r),
          number(r.bits.bits_per_weight, "%.2f"),
          r.kv,
          r.rotate,
          number(r.kv_bits, "%.2f"),
          cat(r.context),
          number(r.perplexity, "%.4f"),
          number(100 * r.perplexity_change(), "%+.2f"),
          number(r.mean_kld, "%.6f"),
          number(r.mean_kld_error, "%.6f"),
          number(r.p99_kld, "%.5f"),
          number(100 * r.top1, "%.2f"),
          number(r.logit_snr_db, "%.1f")};
}

const std::vector<std::string>& headings() {
  static const std::vector<std::string> kHeadings = {"model",   "weights", "bits/w",  "kv",    "rotate",
                                                     "kv bits", "context", "ppl",     "ppl %", "mean KLD",
                                                     "+-",      "p99 KLD", "top-1 %", "SNR dB"};
  return kHeadings;
}

bool left_aligned(size_t column) { return column == 0 || column == 1 || column == 3 || column == 4; }

}  // namespace

std::string compare_table(const CompareReport& report) {
  std::vector<std::vector<std::string>> lines{headings()};
  for (const CompareRow& r : report.rows) lines.push_back(cells(r));
  std::vector<size_t> width(headings().size(), 0);
  for (const auto& l : lines) {
    for (size_t c = 0; c < l.size(); ++c) width[c] = std::max(width[c], l[c].size());
  }
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    for (size_t c = 0; c < lines[i].size(); ++c) {
      const std::string pad(width[c] - lines[i][c].size(), ' ');
      out += left_aligned(c) ? "| " + lines[i][c] + pad + " " : "| " + pad + lines[i][c] + " ";
    }
    out += "|\n";
    if (i > 0) continue;
    for (size_t c = 0; c < width.size(); ++c) {
      out +=
          left_aligned(c) ? "|" + std::string(width[c] + 2, '-') : "|" + std::string(width[c] + 1, '-') + ":";
    }
    out += "|\n";
  }
  out += cat("reference: ", report.reference);
  if (!report.rows.empty()) out += cat(", perplexity ", number(report.rows[0].reference_perplexity, "%.4f"));
  for (size_t i = 1; i < report.rows.size(); ++i) {
    if (report.rows[i].context == report.rows[0].context) break;
    out += cat(" at ", report.rows[i - 1].context, ", ", number(report.rows[i].reference_perplexity, "%.4f"));
    if (i + 1 == report.rows.size() || report.rows[i + 1].context == report.rows[0].context) {
      out += cat(" at ", report.rows[i].context);
    }
  }
  std::vector<int64_t> contexts;
  for (const CompareRow& r : report.rows) {
    if (!contexts.empty() && r.context == report.rows[0].context) break;
    contexts.push_back(r.positions);
  }
  out += "; positions";
  for (const int64_t n : contexts) out += cat(" ", n);
  return out + cat("; ", number(report.seconds, "%.1f"), " s\n");
}

json::object compare_json(const CompareReport& report) {
  json::array rows;
  for (const CompareRow& r : report.rows) {
    json::object row{{"model", r.label},
                     {"weights", r.weights},
                     {"activations", r.activations.empty() ? "kernel" : r.activations},
                     {"kv", r.kv},
                     {"rotate", r.rotate},
                     {"context", r.context},
                     {"positions", r.positions},
                     {"bits_per_weight", r.bits.bits_per_weight},
                     {"bits_per_weight_without_head", r.bits.body_bits_per_weight},
                     {"kv_bytes_per_token", r.bits.kv_bytes_per_token},
                     {"kv_bits", r.kv_bits},
                     {"kv_bits_of_quantized_pages", r.bits.kv_bits()},
                     {"perplexity", r.perplexity},
                     {"reference_perplexity", r.reference_perplexity},
                     {"perplexity_change", r.perplexity_change()},
                     {"mean_kld", r.mean_kld},
                     {"mean_kld_standard_error", r.mean_kld_error},
                     {"p99_kld", r.p99_kld},
                     {"top1_agreement", r.top1},
                     {"seconds", r.seconds}};
    if (std::isfinite(r.logit_snr_db)) row["logit_snr_db"] = r.logit_snr_db;
    rows.push_back(std::move(row));
  }
  return {{"reference", report.reference},
          {"text", report.text},
          {"rows", std::move(rows)},
          {"seconds", report.seconds}};
}

std::string compare_svg(const CompareReport& report) {
  std::set<double> weight_bits, kv_bits;
  std::set<std::string> rotations;
  std::map<std::string, size_t> labels;  // and how many rows each has
  std::vector<int64_t> contexts;
  for (const CompareRow& r : report.rows) {
    rotations.insert(r.rotate);
    ++labels[r.label];
    weight_bits.insert(r.bits.bits_per_weight);
    kv_bits.insert(r.kv_bits);
    if (std::find(contexts.begin(), contexts.end(), r.context) == contexts.end())
      contexts.push_back(r.context);
  }
  const bool by_kv = weight_bits.size() <= 1 && kv_bits.size() > 1;
  Plot plot{.title = cat("Loss against ", report.reference, ": ", report.text),
            .x_label = by_kv ? "bits per element of the KV cache, as used"
                             : "bits per weight (linear layers and head)",
            .y_label = "mean KLD (nats)",
            .series = {}};
  // Several checkpoints of each of several names: a curve for each name. Names with one row are points.
  const bool curves =
      !by_kv && contexts.size() == 1 &&
      std::count_if(labels.begin(), labels.end(), [](const auto& l) { return l.second > 1; }) > 1;
  // The reference itself has no loss to draw, and its bits would stretch the axis.
  for (auto label = labels.begin(); curves && label != labels.end(); ++label) {
    PlotSeries series{label->first, {}, label->second > 1};
    for (const CompareRow& r : report.rows) {
      if (r.label != label->first || r.mean_kld <= 0) continue;
      series.points.push_back({weights_of(r), r.bits.bits_per_weight, r.mean_kld});
    }
    if (!series.points.empty()) plot.series.push_back(std::move(series));
  }
  if (curves) return svg(plot);
  for (const int64_t context : contexts) {
    PlotSeries series{cat("context ", context), {}, false};
    for (const CompareRow& r : report.rows) {
      if (r.context != context || r.mean_kld <= 0) continue;
      // A checkpoint with a row of its own goes by its name.
      const bool named = labels.size() > 1 && labels.at(r.label) == contexts.size();
      std::string label = by_kv ? r.kv : named ? r.label : weights_of(r);
      if (by_kv && rotations.size() > 1) label += " (" + r.rotate + ")";
      if (!by_kv && kv_bits.size() > 1) label += " / " + r.kv;
      series.points.push_back({std::move(label), by_kv ? r.kv_bits : r.bits.bits_per_weight, r.mean_kld});
    }
    plot.series.push_back(std::move(series));
  }
  return svg(plot);
}

}  // namespace oar
