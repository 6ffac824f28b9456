#include "client/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace hadal::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Plot sample() {
  Plot plot{.title = "Throughput <&> \"latency\"", .subtitle = "a model", .panels = {}};
  PlotSeries series{.name = "median", .points = {}};
  for (const int concurrency : {1, 4, 16, 64}) {
    series.points.push_back({.x = 3.0 * concurrency,
                             .y = 100.0 * std::sqrt(concurrency),
                             .label = fmt::format("{}", concurrency)});
  }
  plot.panels.push_back({.title = "", .x_label = "ms", .y_label = "tokens/s", .series = {series, series}});
  plot.panels.push_back({.title = "one point",
                         .x_label = "ms",
                         .y_label = "y",
                         .series = {{"zero", {{0.0, 0.0, "no limit"}}}}});
  return plot;
}

TEST(Ticks, AreRoundAndCoverTheValues) {
  EXPECT_THAT(axis_ticks(10.0, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(axis_ticks(0.0, 2), ElementsAre(0, 0.5, 1));
  for (double max = 1e-4; max < 1e9; max *= 1.37) {
    const std::vector<double> ticks = axis_ticks(max, 6);
    EXPECT_EQ(ticks.front(), 0.0);
    EXPECT_GE(ticks.back(), max * (1 - 1e-9));
    EXPECT_LT(ticks[ticks.size() - 2], max);
    EXPECT_LE(ticks.size(), 9U) << max;
    const double step = ticks[1] / std::pow(10.0, std::floor(std::log10(ticks[1]) + 1e-9));
    EXPECT_TRUE(std::abs(step - 1) < 1e-6 || std::abs(step - 2) < 1e-6 || std::abs(step - 5) < 1e-6) << step;
  }
}

// Checks that tags are nested and closed and that attributes are quoted; returns the names in order.
std::vector<std::string> tags_of(const std::string& xml) {
  std::vector<std::string> names;
  std::vector<std::string> open;
  for (size_t at = 0; (at = xml.find('<', at)) != std::string::npos;) {
    size_t end = at + 1;
    for (bool quoted = false; end < xml.size() && (quoted || xml[end] != '>'); ++end) {
      EXPECT_NE(xml[end], '<') << "inside a tag";
      if (xml[end] == '"') quoted = !quoted;
    }
    const std::string tag = xml.substr(at + 1, end - at - 1);
    at = end;
    if (tag.starts_with("/")) {
      EXPECT_FALSE(open.empty());
      if (open.empty()) return names;
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
      continue;
    }
    names.push_back(tag.substr(0, tag.find_first_of(" /")));
    if (!tag.ends_with("/")) open.push_back(names.back());
  }
  EXPECT_TRUE(open.empty());
  return names;
}

TEST(PlotSvg, IsWellFormedAndShowsEveryPointInsideThePicture) {
  const std::string svg = plot_svg(sample());
  const std::vector<std::string> tags = tags_of(svg);
  ASSERT_FALSE(tags.empty());
  EXPECT_EQ(tags[0], "svg");
  EXPECT_THAT(svg, HasSubstr("Throughput &lt;&amp;&gt; &quot;latency&quot;"));
  for (const char* label : {">1<", ">4<", ">16<", ">64<", ">tokens/s<", ">no limit<"})
    EXPECT_THAT(svg, HasSubstr(label));
  // Each point has a rim and a dot, and each legend entry a dot: (4 + 4 + 1) · 2 + 3.
  EXPECT_EQ(std::count(tags.begin(), tags.end(), "circle"), 21);
  double width = 0.0;
  double height = 0.0;
  ASSERT_EQ(std::sscanf(svg.c_str() + svg.find("width="), "width=\"%lf\" height=\"%lf\"", &width, &height),
            2);
  for (size_t at = 0; (at = svg.find("<circle", at + 1)) != std::string::npos;) {
    double x = 0.0;
    double y = 0.0;
    ASSERT_EQ(std::sscanf(svg.c_str() + at, "<circle cx=\"%lf\" cy=\"%lf\"", &x, &y), 2);
    EXPECT_TRUE(x > 0 && x < width && y > 0 && y < height) << x << " " << y;
  }
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf\""), std::string::npos);
}

TEST(PlotFiles, AreSvgAlone) {
  EXPECT_TRUE(check_plot_path("a.svg", "--plot").ok());
  for (const char* name : {"a.png", "a.pdf", "a.svg.gz", ""}) {
    EXPECT_THAT(check_plot_path(name, "--plot").status().message,
                HasSubstr(fmt::format("--plot {}: the name must end in .svg", name)));
  }
  EXPECT_THAT(write_plot(sample(), "/nonexistent/a.svg").status().message, HasSubstr("cannot write"));
}

}  // namespace
}  // namespace hadal::client
