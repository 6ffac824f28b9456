// Writes charts of a sweep as SVG text. The functions are pure, except for the one that writes a file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::client {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
  std::string label;  // printed beside the point; empty: none
};

struct PlotSeries {
  std::string name;  // in the legend
  std::vector<PlotPoint> points;
};

// PlotPanel is one chart. Its axes begin at zero, and a line joins the points of a series in their order.
struct PlotPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotSeries> series;  // at most four
};

struct Plot {
  std::string title;
  std::string subtitle;
  std::vector<PlotPanel> panels;  // side by side
};

std::string plot_svg(const Plot& plot);

// Returns an error (kInvalidArgument) if the file's name does not end in .svg. `source` names the path in it.
Result<void> check_plot_path(const std::string& path, std::string_view source);

// Writes to `path`, which has been checked. The error is kResourceExhausted if the file cannot be written.
Result<void> write_plot(const Plot& plot, const std::string& path);

// Returns about `wanted` round values in ascending order, from zero to the first one that is not below `max`.
// Their distance is 1, 2 or 5 times a power of ten. A `max` that is not positive counts as 1.
std::vector<double> axis_ticks(double max, int wanted);

}  // namespace hadal::client
