#include "clients/loadtest/plot.h"

#include <algorithm>
#include <cmath>

#include "clients/loadtest/report.h"
#include "engine/base/format.h"

namespace oar::loadtest {
namespace {

// Of the drawing; the page scales it.
constexpr double kWidth = 480, kHeight = 236, kLeft = 46, kRight = 14, kTop = 50, kBottom = 34;
constexpr size_t kMostPoints = 2000;

std::string place(double v) { return fixed(v, 1); }

struct Prefix {
  double from, scale;
  const char* unit;
};
// The largest `from` that the highest value reaches.
constexpr Prefix kSeconds[] = {{0, 1e6, "µs"}, {1e-3, 1e3, "ms"}, {1, 1, "s"}};
constexpr Prefix kBytes[] = {{0, 1, "bytes"},
                             {1024., 1 / 1024., "KiB"},
                             {1024. * 1024, 1 / 1024. / 1024, "MiB"},
                             {1024. * 1024 * 1024, 1 / 1024. / 1024 / 1024, "GiB"}};
constexpr Prefix kNumbers[] = {{0, 1e6, "millionths"},
                               {1e-3, 1, ""},
                               {1e4, 1e-3, "thousand"},
                               {1e7, 1e-6, "million"},
                               {1e10, 1e-9, "billion"}};

template <size_t N>
const Prefix& prefix_of(const Prefix (&list)[N], double highest) {
  const Prefix* best = &list[0];
  for (const Prefix& p : list)
    if (highest >= p.from) best = &p;
  return *best;
}

std::string text(double x, double y, const char* kind, std::string_view words) {
  return cat("<text x=\"", place(x), "\" y=\"", place(y), "\" class=\"", kind, "\">", escape_html(words),
             "</text>");
}

}  // namespace

Axis make_axis(double highest, const std::string& unit) {
  Axis a;
  if (!(highest > 0) || !std::isfinite(highest)) highest = 1;
  const Prefix& prefix = unit == "s"       ? prefix_of(kSeconds, highest)
                         : unit == "bytes" ? prefix_of(kBytes, highest)
                                           : prefix_of(kNumbers, highest);
  a.scale = prefix.scale;
  a.unit = prefix.unit;
  if (unit != "s" && unit != "bytes") a.unit += cat(a.unit.empty() || unit.empty() ? "" : " ", unit);
  // Four steps or a little more reach the highest value as it is shown.
  const double shown = highest * a.scale, least = shown / 4;
  const double power = std::pow(10.0, std::floor(std::log10(least)));
  double step = 10 * power;
  for (const double nice : {5.0, 2.5, 2.0, 1.0})
    if (nice * power >= least * 0.999) step = nice * power;
  a.step = step / a.scale;
  a.count = std::max(1, static_cast<int>(std::ceil(shown / step - 1e-9)));
  const double last = step / power;
  a.decimals = std::max(0, -static_cast<int>(std::floor(std::log10(step) + 1e-9)) + (last == 2.5 ? 1 : 0));
  return a;
}

std::string Axis::label(int tick) const { return tick == 0 ? "0" : fixed(step * scale * tick, decimals); }

std::string plot(const PlotSpec& spec, const std::vector<Series>& series) {
  double x1 = 0, y1 = 0;
  size_t points = 0;
  for (const Series& s : series) {
    for (const Point& p : s.points) x1 = std::max(x1, p.x), y1 = std::max(y1, p.y);
    points += s.points.size();
  }
  if (points == 0) return {};
  const bool named = !spec.x_labels.empty();
  const Axis x_axis = make_axis(x1, spec.x_unit), y_axis = make_axis(y1, spec.y_unit);
  const double x_end =
      named ? std::max<double>(1, static_cast<double>(spec.x_labels.size()) - 1) : x_axis.end();
  const double indent = named ? 18 : 0;  // the first and the last name stand under their points
  const auto px = [&](double x) {
    return kLeft + indent + x / x_end * (kWidth - kLeft - kRight - 2 * indent);
  };
  const auto py = [&](double y) { return kHeight - kBottom - y / y_axis.end() * (kHeight - kBottom - kTop); };

  std::string out = cat("<svg viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\" aria-label=\"",
                        escape_html(spec.title), "\">", text(8, 17, "title", spec.title));
  for (int i = 0; i <= y_axis.count; ++i) {
    const double y = py(y_axis.step * i);
    out += cat("<line class=\"grid\" x1=\"", kLeft, "\" x2=\"", kWidth - kRight, "\" y1=\"", place(y),
               "\" y2=\"", place(y), "\"/>", text(kLeft - 6, y + 4, "end", y_axis.label(i)));
  }
  for (int i = 0; !named && i <= x_axis.count; ++i)
    out += text(px(x_axis.step * i), kHeight - kBottom + 15, "middle", x_axis.label(i));
  for (size_t i = 0; i < spec.x_labels.size(); ++i)
    out += text(px(static_cast<double>(i)), kHeight - kBottom + 15, "middle", spec.x_labels[i]);
  out += text(8, kTop - 12, "unit", y_axis.unit);
  out += text(kWidth - kRight, kHeight - 5, "end unit",
              cat(spec.x_name, named || x_axis.unit.empty() ? "" : cat(", ", x_axis.unit)));

  double legend = kLeft + 60;
  for (size_t k = 0; k < series.size(); ++k) {
    const auto& [name, all, dots] = series[k];
    const std::string color = cat("c", k % kPlotColors);
    const size_t step = all.size() / kMostPoints + 1;
    if (!dots) out += cat("<polyline class=\"line ", color, "\" points=\"");
    for (size_t i = 0; i < all.size(); i += step) {
      const std::string x = place(px(all[i].x)), y = place(py(all[i].y));
      out += dots ? cat("<circle class=\"dot ", color, "\" cx=\"", x, "\" cy=\"", y, "\" r=\"2\"/>")
                  : cat(x, ",", y, " ");
    }
    if (!dots) out += "\"/>";
    if (series.size() == 1) break;
    const double y = kTop - 12;
    out += dots ? cat("<circle class=\"dot ", color, "\" cx=\"", place(legend + 9), "\" cy=\"", place(y - 4),
                      "\" r=\"3.5\"/>")
                : cat("<line class=\"line ", color, "\" x1=\"", place(legend), "\" x2=\"", place(legend + 18),
                      "\" y1=\"", place(y - 4), "\" y2=\"", place(y - 4), "\"/>");
    out += text(legend + 23, y, "name", name);
    legend += 40 + 7 * static_cast<double>(name.size());
  }
  return out + "</svg>\n";
}

}  // namespace oar::loadtest
