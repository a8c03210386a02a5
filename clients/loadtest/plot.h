// A plot as one <svg> element. Colours are classes c0, c1, ... and come from the page's style (html.cc), so
// that light and dark pages share the drawing.
#pragma once

#include <string>
#include <vector>

namespace oar::loadtest {

struct Point {
  double x = 0, y = 0;
};
struct Series {
  std::string name;  // in the legend, which one series alone does without
  std::vector<Point> points;
  bool dots = false;
};
struct PlotSpec {
  std::string title;
  std::string x_name;  // behind the axis
  std::string x_unit;  // "s", "bytes" or another name; ticks get a fitting prefix: ms, KiB, k
  std::string y_unit;
  std::vector<std::string> x_labels = {};  // names of x = 0, 1, ... instead of numbers
};

// All series over common axes that begin at 0; empty when there is no point. Series of more than 2,000 points
// are thinned evenly.
std::string plot(const PlotSpec& spec, const std::vector<Series>& series);

// How many colours there are: series beyond them repeat.
inline constexpr int kPlotColors = 6;

// An axis from 0: `count` + 1 ticks `step` apart reach `highest` or beyond. Values are shown times `scale`,
// in `unit`, with `decimals` digits behind the point. Steps are 1, 2, 2.5 or 5 times a power of ten as shown.
struct Axis {
  double step = 1, scale = 1;
  int count = 1, decimals = 0;
  std::string unit;
  double end() const { return step * count; }
  std::string label(int tick) const;  // of tick 0 .. count
};
Axis make_axis(double highest, const std::string& unit);

}  // namespace oar::loadtest
