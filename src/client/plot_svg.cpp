#include <fmt/format.h>

#include "client/plot_drawing.h"

namespace hadal::client {
namespace {

// Makes text safe between tags and in attributes; control characters, which XML does not allow, are dropped.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        if (static_cast<unsigned char>(c) >= 0x20) out += c;
    }
  }
  return out;
}

std::string hex(const PlotColor& color) {
  return fmt::format("#{:02x}{:02x}{:02x}", color.r, color.g, color.b);
}

}  // namespace

std::string drawing_svg(const Drawing& drawing, std::string_view title) {
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} "
      "{1:g}\" "
      "font-family=\"system-ui, 'Segoe UI', Helvetica, Arial, sans-serif\">\n<title>{2}</title>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      drawing.width, drawing.height, escaped(title));
  for (const PlotStroke& stroke : drawing.strokes) {
    if (stroke.points.size() == 1) {
      out +=
          fmt::format("<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"{:g}\" fill=\"{}\"/>\n",
                      stroke.points[0].first, stroke.points[0].second, stroke.width / 2, hex(stroke.color));
      continue;
    }
    out += "<polyline points=\"";
    for (const auto& [x, y] : stroke.points) out += fmt::format("{:.2f},{:.2f} ", x, y);
    out += fmt::format(
        "\" fill=\"none\" stroke=\"{}\" stroke-width=\"{:g}\" stroke-linejoin=\"round\" "
        "stroke-linecap=\"round\"/>\n",
        hex(stroke.color), stroke.width);
  }
  constexpr std::string_view kAnchors[] = {"start", "middle", "end"};
  for (const PlotText& text : drawing.texts) {
    const auto& [x, y] = text.at;
    out += fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" font-size=\"{:g}\" text-anchor=\"{}\" fill=\"{}\"", x,
                       y, text.size, kAnchors[static_cast<int>(text.anchor)], hex(text.color));
    if (text.bold) out += " font-weight=\"600\"";
    if (text.upwards) out += fmt::format(" transform=\"rotate(-90 {:.2f} {:.2f})\"", x, y);
    out += fmt::format(">{}</text>\n", escaped(text.text));
  }
  return out + "</svg>\n";
}

}  // namespace hadal::client
