// A scatter plot as SVG text: points with names, y on a logarithmic scale, a series joined to a curve if
// asked. Just what the tables of this room need; not a plotting library.
#pragma once

#include <string>
#include <vector>

namespace oar {

struct PlotPoint {
  std::string label;
  double x = 0, y = 0;  // y above 0; others are drawn at the bottom
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> points;
  bool joined = false;  // by a line, from the least x to the largest
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotSeries> series;
};

std::string svg(const Plot& plot);

}  // namespace oar
