#include "engine/tune/measure/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/base/format.h"

namespace oar {
namespace {

constexpr double kWidth = 860, kHeight = 520, kLeft = 80, kRight = 30, kTop = 50, kBottom = 60;
// Distinguishable without color vision (Okabe and Ito).
constexpr const char* kColors[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#000000", "#b8a800"};

std::string decimal(double v, const char* format = "%.2f") {
  char buffer[48];
  std::snprintf(buffer, sizeof buffer, format, v);
  return buffer;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '&') out += "&amp;";
    else if (c == '"') out += "&quot;";
    else out += c;
  }
  return out;
}

struct Scale {
  double low = 0, high = 1;
  double at(double v) const { return (std::clamp(v, low, high) - low) / (high - low); }
};

std::string text(double x, double y, const std::string& s, const char* attributes = "") {
  return cat("<text x=\"", decimal(x), "\" y=\"", decimal(y), "\" ", attributes, ">", escaped(s),
             "</text>\n");
}

std::string line(double x0, double y0, double x1, double y1, const char* stroke) {
  return cat("<line x1=\"", decimal(x0), "\" y1=\"", decimal(y0), "\" x2=\"", decimal(x1), "\" y2=\"",
             decimal(y1), "\" stroke=\"", stroke, "\"/>\n");
}

// A step of 1, 2 or 5 times a power of ten that cuts `span` into at most ten parts.
double nice_step(double span) {
  const double power = std::pow(10.0, std::floor(std::log10(span / 10)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    if (span / (power * factor) <= 10) return power * factor;
  }
  return power * 10;
}

struct Box {
  double left, top, right, bottom;
  bool meets(const Box& o) const {
    return left < o.right && o.left < right && top < o.bottom && o.top < bottom;
  }
};

// Where names of points go: beside, above or below them where nothing is yet, else farther off with a line to
// the point.
class Labels {
 public:
  void take(const Box& box) { taken_.push_back(box); }
  std::string place(double x, double y, const std::string& name) {
    constexpr double kHigh = 11, kWide = 5.8;  // of a line and, about, a character of 10 points
    const double wide = kWide * static_cast<double>(name.size());
    for (int away = 0; away < 12; ++away) {
      for (const double side : {-1.0, 1.0}) {
        const double middle = y + side * away * kHigh;
        for (const double left : {x + 8, x - 8 - wide}) {
          const Box box{left, middle - kHigh / 2, left + wide, middle + kHigh / 2};
          if (!free(box)) continue;
          take(box);
          std::string out = text(left, middle + 3.5, name, "font-size=\"10\"");
          if (away > 1) out += line(x, y, left > x ? left - 1 : left + wide + 1, middle, "#bbbbbb");
          return out;
        }
      }
    }
    return "";  // the point's title has it
  }

 private:
  bool free(const Box& box) const {
    if (box.left < kLeft || box.right > kWidth || box.top < kTop - 10 || box.bottom > kHeight - kBottom)
      return false;
    return std::none_of(taken_.begin(), taken_.end(), [&](const Box& b) { return b.meets(box); });
  }
  std::vector<Box> taken_;
};

}  // namespace

std::string svg(const Plot& plot) {
  double x_low = 1e300, x_high = -1e300, y_low = 1e300, y_high = 0;
  for (const PlotSeries& s : plot.series) {
    for (const PlotPoint& p : s.points) {
      x_low = std::min(x_low, p.x);
      x_high = std::max(x_high, p.x);
      if (p.y > 0) y_low = std::min(y_low, p.y);
      y_high = std::max(y_high, p.y);
    }
  }
  if (x_high < x_low) x_low = 0, x_high = 1;
  const double margin = std::max((x_high - x_low) * 0.08, 0.1);
  const Scale x{x_low - margin, x_high + margin};
  if (y_high <= 0) y_low = 1e-6, y_high = 1;
  const Scale y{std::log10(y_low) - 0.1, std::log10(y_high) + 0.1};
  const auto px = [&](double v) { return kLeft + x.at(v) * (kWidth - kLeft - kRight); };
  const auto py = [&](double v) {
    const double exponent = v > 0 ? std::log10(v) : y.low;
    return kHeight - kBottom - y.at(exponent) * (kHeight - kTop - kBottom);
  };

  std::string out = cat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", decimal(kWidth, "%.0f"),
                        " ", decimal(kHeight, "%.0f"),
                        "\" font-family=\"sans-serif\" font-size=\"12\">\n"
                        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n");
  out += text(kWidth / 2, 24, plot.title, "text-anchor=\"middle\" font-size=\"15\"");
  out += text(kWidth / 2, kHeight - 14, plot.x_label, "text-anchor=\"middle\"");
  out += cat("<text transform=\"translate(18 ", decimal(kHeight / 2),
             ") rotate(-90)\" text-anchor=\"middle\">", escaped(plot.y_label), "</text>\n");
  // Powers of ten, and 2 and 5 times them where those would be few.
  for (double e = std::floor(y.low); e <= y.high; ++e) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double v = factor * std::pow(10.0, e), at = std::log10(v);
      if (at < y.low || at > y.high || (factor > 1 && y.high - y.low > 3)) continue;
      out += line(kLeft, py(v), kWidth - kRight, py(v), "#dddddd");
      out += text(kLeft - 8, py(v) + 4, decimal(v, "%.3g"), "text-anchor=\"end\"");
    }
  }
  const double step = nice_step(x.high - x.low);
  for (double v = std::ceil(x.low / step) * step; v <= x.high; v += step) {
    out += line(px(v), kHeight - kBottom, px(v), kHeight - kBottom + 5, "#000000");
    out += text(px(v), kHeight - kBottom + 20, decimal(v, "%.4g"), "text-anchor=\"middle\"");
  }
  out += line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#000000");
  out += line(kLeft, kTop, kLeft, kHeight - kBottom, "#000000");

  Labels labels;
  std::string legend;
  for (size_t k = 0; k < plot.series.size(); ++k) {
    const double x0 = kWidth - kRight - 170, row = kTop + 16.0 * static_cast<double>(k);
    legend += cat("<circle cx=\"", decimal(x0), "\" cy=\"", decimal(row), "\" r=\"4\" fill=\"",
                  kColors[k % std::size(kColors)], "\"/>\n");
    legend += text(x0 + 10, row + 4, plot.series[k].name);
    labels.take({x0 - 6, row - 8, kWidth - kRight, row + 8});
    for (const PlotPoint& p : plot.series[k].points) {
      labels.take({px(p.x) - 4, py(p.y) - 4, px(p.x) + 4, py(p.y) + 4});
    }
  }
  std::string points_and_names;
  for (size_t k = 0; k < plot.series.size(); ++k) {
    const char* color = kColors[k % std::size(kColors)];
    std::vector<PlotPoint> points = plot.series[k].points;
    std::stable_sort(points.begin(), points.end(),
                     [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
    std::string path;
    for (const PlotPoint& p : points) path += cat(decimal(px(p.x)), ",", decimal(py(p.y)), " ");
    if (plot.series[k].joined) {
      out += cat("<polyline points=\"", path, "\" fill=\"none\" stroke=\"", color, "\"/>\n");
    }
    for (const PlotPoint& p : points) {
      points_and_names += labels.place(px(p.x), py(p.y), p.label);
      points_and_names += cat("<circle cx=\"", decimal(px(p.x)), "\" cy=\"", decimal(py(p.y)),
                              "\" r=\"4\" fill=\"", color, "\"><title>", escaped(p.label), ": ",
                              decimal(p.x, "%.4g"), ", ", decimal(p.y, "%.4g"), "</title></circle>\n");
    }
  }
  out += points_and_names + legend;
  return out + "</svg>\n";
}

}  // namespace oar
