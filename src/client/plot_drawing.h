// Defines the parts of a chart, which plot.cpp lays out and plot_svg.cpp writes as SVG. Units are pixels; y
// points downwards.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hadal::client {

struct PlotColor {
  uint8_t r = 0;
  uint8_t g = 0;
  uint8_t b = 0;
};

using PlotPosition = std::pair<double, double>;

// PlotStroke is a polyline with round joins and ends; one point alone is a dot of that diameter.
struct PlotStroke {
  std::vector<PlotPosition> points;
  double width = 1.0;
  PlotColor color;
};

enum class PlotAnchor { kStart, kMiddle, kEnd };

struct PlotText {
  PlotPosition at;  // on the baseline
  std::string text;
  double size = 12.0;
  PlotAnchor anchor = PlotAnchor::kStart;
  bool upwards = false;  // turned by 90 degrees, to be read from below
  bool bold = false;
  PlotColor color;
};

struct Drawing {
  double width = 0.0;
  double height = 0.0;
  std::vector<PlotStroke> strokes;  // later ones cover earlier ones; texts cover all of them
  std::vector<PlotText> texts;
};

std::string drawing_svg(const Drawing& drawing, std::string_view title);

}  // namespace hadal::client
