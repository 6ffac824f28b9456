// Charts of a sweep, as SVG text or PNG bytes, drawn by nothing but this program. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::cli {

struct PlotPoint {
  double x = 0.0;
  double y = 0.0;
  std::string label;  // beside the point; empty: none
};

struct PlotSeries {
  std::string name;  // in the legend
  std::vector<PlotPoint> points;
};

// Axes begin at zero; points in the order in which a line joins them.
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

// At twice the size of the SVG's unit.
std::string plot_png(const Plot& plot);

// By the file name's end, .svg or .png. Errors: kInvalidArgument (another end), kResourceExhausted.
Result<void> check_plot_path(const std::string& path);
Result<void> write_plot(const Plot& plot, const std::string& path);

// Ascending round values (1, 2 or 5 times a power of ten apart) from zero to the first at or above `max`,
// about `wanted` of them. A max that is not positive counts as 1.
std::vector<double> axis_ticks(double max, int wanted);

}  // namespace hadal::cli
