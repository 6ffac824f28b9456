#include "cli/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cli/plot_drawing.h"

namespace hadal::cli {
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

// Checks that tags nest and close, and that attributes are quoted; returns the names in order.
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
  // Each point is a rim and a dot, each legend entry a dot: (4 + 4 + 1) · 2 + 3.
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

uint32_t number_at(const std::string& bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

// Undoes what encode_png does, by the specifications: deflate's fixed code, then the filter.
class Inflater {
 public:
  explicit Inflater(std::string_view data) : data_(data) {}
  std::string run() {
    EXPECT_EQ(take(1), 1U);
    EXPECT_EQ(take(2), 1U);
    std::string out;
    while (true) {
      const int symbol = next_symbol();
      if (symbol == 256) return out;
      if (symbol < 256) {
        out += static_cast<char>(symbol);
        continue;
      }
      static constexpr int kExtra[] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                       2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
      int base = 3;
      for (int i = 257; i < symbol; ++i) base += 1 << kExtra[i - 257];
      if (symbol == 285) base = 258;
      const int length = base + static_cast<int>(take(kExtra[symbol - 257]));
      EXPECT_EQ(take(5), 0U);  // distance 1
      EXPECT_FALSE(out.empty());
      out.append(static_cast<size_t>(length), out.back());
    }
  }

 private:
  uint32_t take(int count) {
    uint32_t value = 0;
    for (int i = 0; i < count; ++i, ++bit_) {
      value |= static_cast<uint32_t>((static_cast<unsigned char>(data_.at(bit_ / 8)) >> (bit_ % 8)) & 1) << i;
    }
    return value;
  }
  int next_symbol() {
    uint32_t code = 0;
    for (int length = 1; length <= 9; ++length) {
      code = code << 1 | take(1);
      if (length == 7 && code <= 0x17) return static_cast<int>(256 + code);
      if (length == 8 && code >= 0x30 && code <= 0xBF) return static_cast<int>(code - 0x30);
      if (length == 8 && code >= 0xC0 && code <= 0xC7) return static_cast<int>(280 + code - 0xC0);
      if (length == 9) return static_cast<int>(144 + code - 0x190);
    }
    return 256;
  }
  std::string_view data_;
  size_t bit_ = 0;
};

TEST(Png, GivesBackThePixels) {
  constexpr int kWidth = 37;
  constexpr int kHeight = 300;
  std::vector<uint8_t> rgb(3 * kWidth * kHeight, 255);
  for (size_t i = 0; i < rgb.size(); ++i) {
    if (i % 7 == 0 || (i > 9000 && i < 12000)) rgb[i] = static_cast<uint8_t>(i * 31);
  }
  const std::string png = encode_png(rgb, kWidth, kHeight);
  ASSERT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(number_at(png, 16), static_cast<uint32_t>(kWidth));
  EXPECT_EQ(number_at(png, 20), static_cast<uint32_t>(kHeight));
  const size_t data = 8 + 25 + 8;
  ASSERT_EQ(png.substr(data - 4, 4), "IDAT");
  const size_t size = number_at(png, data - 8);
  const std::string rows = Inflater(std::string_view(png).substr(data + 2, size - 6)).run();
  ASSERT_EQ(rows.size(), static_cast<size_t>((3 * kWidth + 1) * kHeight));
  for (size_t y = 0; y < kHeight; ++y) {
    const size_t row = y * (3 * kWidth + 1);
    ASSERT_EQ(rows[row], 2);
    for (size_t i = 0; i < 3 * kWidth; ++i) {
      const uint8_t above = y == 0 ? 0 : rgb[(y - 1) * 3 * kWidth + i];
      ASSERT_EQ(static_cast<uint8_t>(rows[row + 1 + i] + above), rgb[y * 3 * kWidth + i]) << y << " " << i;
    }
  }
  EXPECT_EQ(number_at(png, png.size() - 4), 0xAE426082U);  // the check sum of every PNG's last chunk
}

TEST(Png, OfAChartIsSmallAndNotEmpty) {
  const std::string png = plot_png(sample());
  EXPECT_GT(png.size(), 10000U);
  EXPECT_LT(png.size(), 400000U);
}

TEST(Glyphs, OfEveryPrintableCharacterStayInTheirLine) {
  for (char letter = ' '; letter < '\x7f'; ++letter) {
    std::vector<std::vector<PlotPosition>> strokes;
    const double width = append_glyphs(std::string(1, letter), strokes);
    EXPECT_GE(width, 0.0);
    EXPECT_LT(width, 0.9) << letter;
    EXPECT_EQ(strokes.empty(), letter == ' ') << letter;
    for (const auto& stroke : strokes) {
      for (const auto& [x, y] : stroke) {
        EXPECT_TRUE(x > -0.1 && x < width + 0.1 && y > -0.35 && y < 0.9) << letter << " " << x << " " << y;
      }
    }
  }
}

TEST(PlotFiles, AreChosenByTheirEnd) {
  EXPECT_TRUE(check_plot_path("a.svg").ok());
  EXPECT_TRUE(check_plot_path("a.png").ok());
  EXPECT_THAT(check_plot_path("a.pdf").status().message, HasSubstr(".svg or .png"));
  EXPECT_THAT(write_plot(sample(), "/nonexistent/a.svg").status().message, HasSubstr("cannot write"));
}

}  // namespace
}  // namespace hadal::cli
