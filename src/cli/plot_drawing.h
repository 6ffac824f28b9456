// What a chart consists of, between its layout (plot.cpp) and the two ways to write it down (plot_svg.cpp,
// plot_png.cpp). Units: pixels of the SVG, y downwards.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hadal::cli {

struct PlotColor {
  uint8_t r = 0;
  uint8_t g = 0;
  uint8_t b = 0;
};

using PlotPosition = std::pair<double, double>;

// A polyline with round joins and ends; one point alone is a dot of that diameter.
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
  bool upwards = false;  // turned by a quarter, reading from below
  bool bold = false;
  PlotColor color;
};

struct Drawing {
  double width = 0.0;
  double height = 0.0;
  std::vector<PlotStroke> strokes;  // in the order in which they cover one another; texts come on top
  std::vector<PlotText> texts;
};

std::string drawing_svg(const Drawing& drawing, std::string_view title);
std::string drawing_png(const Drawing& drawing, int scale);

// The letters that a PNG needs: strokes in the units of the font size, from (0, 0) on the baseline, y
// upwards. Appends those of `text` and returns its width.
double append_glyphs(std::string_view text, std::vector<std::vector<PlotPosition>>& strokes);

// A PNG file of 8-bit RGB pixels, row by row.
std::string encode_png(const std::vector<uint8_t>& rgb, int width, int height);

}  // namespace hadal::cli
