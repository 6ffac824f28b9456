// Lays out a chart.
#include "client/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "client/plot_drawing.h"

namespace hadal::client {
namespace {

constexpr double kPanelWidth = 500.0;
constexpr double kPlotHeight = 300.0;
constexpr double kLeft = 74.0;  // distances of the axes from the edges of their panel
constexpr double kRight = 30.0;
constexpr double kTop = 96.0;
constexpr double kBottom = 62.0;
constexpr PlotColor kInk{32, 36, 44};
constexpr PlotColor kMuted{104, 112, 124};
constexpr PlotColor kGrid{226, 230, 236};
constexpr PlotColor kAxis{150, 158, 170};
constexpr PlotColor kPaper{255, 255, 255};
constexpr PlotColor kSeries[] = {{31, 96, 196}, {222, 116, 24}, {20, 140, 110}, {150, 70, 170}};

std::string tick_text(double value, double step) {
  if (value >= 10000.0) {
    const int digits = step >= 1000.0 ? 0 : 1;
    return fmt::format("{:.{}f}k", value / 1000.0, digits);
  }
  const int digits = step >= 1.0 ? 0 : static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
  return fmt::format("{:.{}f}", value, digits);
}

struct Scale {
  double max = 1.0;
  double begin = 0.0;  // pixels
  double end = 0.0;
  double at(double value) const { return begin + (end - begin) * value / max; }
};

void add_axes(Drawing& out, const PlotPanel& panel, const Scale& x, const Scale& y,
              const std::vector<double>& x_ticks, const std::vector<double>& y_ticks) {
  constexpr double kTickSize = 12.0;
  for (const double tick : x_ticks) {
    out.strokes.push_back({{{x.at(tick), y.begin}, {x.at(tick), y.end}}, 1.0, kGrid});
    out.texts.push_back({.at = {x.at(tick), y.begin + 18.0},
                         .text = tick_text(tick, x_ticks[1]),
                         .size = kTickSize,
                         .anchor = PlotAnchor::kMiddle,
                         .color = kMuted});
  }
  for (const double tick : y_ticks) {
    out.strokes.push_back({{{x.begin, y.at(tick)}, {x.end, y.at(tick)}}, 1.0, kGrid});
    out.texts.push_back({.at = {x.begin - 8.0, y.at(tick) + 4.0},
                         .text = tick_text(tick, y_ticks[1]),
                         .size = kTickSize,
                         .anchor = PlotAnchor::kEnd,
                         .color = kMuted});
  }
  out.strokes.push_back({{{x.begin, y.end}, {x.begin, y.begin}, {x.end, y.begin}}, 1.4, kAxis});
  out.texts.push_back({.at = {(x.begin + x.end) / 2, y.begin + 44.0},
                       .text = panel.x_label,
                       .size = 13.0,
                       .anchor = PlotAnchor::kMiddle,
                       .color = kInk});
  out.texts.push_back({.at = {x.begin - 56.0, (y.begin + y.end) / 2},
                       .text = panel.y_label,
                       .size = 13.0,
                       .anchor = PlotAnchor::kMiddle,
                       .upwards = true,
                       .color = kInk});
}

void add_series(Drawing& out, const PlotSeries& series, const PlotColor& color, const Scale& x,
                const Scale& y) {
  PlotStroke joined{.points = {}, .width = 2.2, .color = color};
  for (const PlotPoint& point : series.points) joined.points.emplace_back(x.at(point.x), y.at(point.y));
  if (joined.points.size() > 1) out.strokes.push_back(joined);
  for (const PlotPosition& at : joined.points) {
    out.strokes.push_back({{at}, 10.0, kPaper});  // a white rim separates points from lines
    out.strokes.push_back({{at}, 7.0, color});
  }
}

// Adds the labels of the points. A label stands to the upper left of its point, or to the right if the axis
// is too near. A label that would touch an earlier one is left out.
void add_labels(Drawing& out, const PlotSeries& series, const Scale& x, const Scale& y) {
  std::vector<PlotPosition> taken;
  for (const PlotPoint& point : series.points) {
    if (point.label.empty()) continue;
    const bool to_left = x.at(point.x) - x.begin > 12.0 + 7.0 * static_cast<double>(point.label.size());
    const PlotPosition at{x.at(point.x) + (to_left ? -7.0 : 8.0), y.at(point.y) - 7.0};
    const bool is_free = std::all_of(taken.begin(), taken.end(), [&at](const PlotPosition& other) {
      return std::abs(other.first - at.first) > 22.0 || std::abs(other.second - at.second) > 12.0;
    });
    if (!is_free) continue;
    taken.push_back(at);
    out.texts.push_back({.at = at,
                         .text = point.label,
                         .size = 11.5,
                         .anchor = to_left ? PlotAnchor::kEnd : PlotAnchor::kStart,
                         .bold = true,
                         .color = kInk});
  }
}

void add_panel(Drawing& out, const PlotPanel& panel, double left) {
  double x_max = 0.0;
  double y_max = 0.0;
  for (const PlotSeries& series : panel.series) {
    for (const PlotPoint& point : series.points) {
      x_max = std::max(x_max, point.x);
      y_max = std::max(y_max, point.y);
    }
  }
  const std::vector<double> x_ticks = axis_ticks(x_max, 6);
  const std::vector<double> y_ticks = axis_ticks(y_max, 6);
  const Scale x{.max = x_ticks.back(), .begin = left + kLeft, .end = left + kPanelWidth - kRight};
  const Scale y{.max = y_ticks.back(), .begin = kTop + kPlotHeight, .end = kTop};
  add_axes(out, panel, x, y, x_ticks, y_ticks);
  for (size_t i = panel.series.size(); i-- > 0;) {
    add_series(out, panel.series[i], kSeries[i % std::size(kSeries)], x, y);
  }
  if (!panel.series.empty()) add_labels(out, panel.series[0], x, y);
  double legend = x.begin;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    const double middle = kTop - 16.0;
    out.strokes.push_back(
        {{{legend + 2.0, middle}, {legend + 18.0, middle}}, 2.2, kSeries[i % std::size(kSeries)]});
    out.strokes.push_back({{{legend + 10.0, middle}}, 7.0, kSeries[i % std::size(kSeries)]});
    out.texts.push_back(
        {.at = {legend + 25.0, middle + 4.0}, .text = panel.series[i].name, .size = 12.0, .color = kMuted});
    legend += 46.0 + 7.0 * static_cast<double>(panel.series[i].name.size());
  }
  if (!panel.title.empty()) {
    out.texts.push_back({.at = {x.end, kTop - 12.0},
                         .text = panel.title,
                         .size = 13.0,
                         .anchor = PlotAnchor::kEnd,
                         .color = kInk});
  }
}

Drawing lay_out(const Plot& plot) {
  Drawing out{.width = kPanelWidth * static_cast<double>(std::max<size_t>(plot.panels.size(), 1)),
              .height = kTop + kPlotHeight + kBottom,
              .strokes = {},
              .texts = {}};
  out.texts.push_back({.at = {22.0, 34.0}, .text = plot.title, .size = 19.0, .bold = true, .color = kInk});
  out.texts.push_back({.at = {22.0, 56.0}, .text = plot.subtitle, .size = 12.5, .color = kMuted});
  for (size_t i = 0; i < plot.panels.size(); ++i) {
    add_panel(out, plot.panels[i], kPanelWidth * static_cast<double>(i));
  }
  return out;
}

}  // namespace

std::vector<double> axis_ticks(double max, int wanted) {
  if (!(max > 0.0) || !std::isfinite(max)) max = 1.0;
  const double rough = max / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10.0 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1.0 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (int i = 0; ticks.size() < 2 || ticks.back() < max * (1.0 - 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

std::string plot_svg(const Plot& plot) {
  return drawing_svg(lay_out(plot), plot.title);
}

Result<void> check_plot_path(const std::string& path, std::string_view source) {
  if (path.ends_with(".svg")) return {};
  return invalid_argument("{} {}: the name must end in .svg, because charts are written as SVG alone", source,
                          path);
}

Result<void> write_plot(const Plot& plot, const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  file << plot_svg(plot);
  if (!file.flush()) return make_status(StatusCode::kResourceExhausted, "cannot write {}", path);
  return {};
}

}  // namespace hadal::client
