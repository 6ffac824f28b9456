// Letters as strokes, on a grid of half units: capitals are 12 high, small letters 8. A point is two
// characters: x from '0' on, y from 'e' on (the baseline; 'a' is the lowest descender, 'q' a capital's top).
// Strokes are separated by spaces; one that begins with '~' is a smooth curve through its points (a
// Catmull-Rom spline, closed when it ends where it began).
#include <array>
#include <cmath>

#include "cli/plot_drawing.h"

namespace hadal::cli {
namespace {

struct Glyph {
  char letter;
  int width;
  std::string_view strokes;
};

constexpr Glyph kGlyphs[] = {
    {' ', 3, ""},
    {'0', 8, "~4e7g8k7o4q1o0k1g4e"},
    {'1', 8, "1o4q4e 1e7e"},
    {'2', 8, "~0n1p4q7p8n7l5j 5j0e8e"},
    {'3', 8, "~0o2q5q8o7l4k ~4k7j8h7f4e2e0g"},
    {'4', 8, "6e6q0h8h"},
    {'5', 8, "7q1q0k ~0k3m6l8i7f4e1e0g"},
    {'6', 8, "~7p4q1n0i1f4e7f8i7k4l1k0i"},
    {'7', 8, "0q8q3e"},
    {'8', 8, "~4k1l0n1p4q7p8n7l4k1j0h1f4e7f8h7j4k"},
    {'9', 8, "~1f4e7h8m7p4q1p0m1k4j7k8m"},
    {'A', 8, "0e4q8e 1i7i"},
    {'B', 8, "5q0q0e5e 0k5k ~5q7p8n7l5k ~5k7j8h7f5e"},
    {'C', 8, "~8o6q3q1o0k1g3e6e8g"},
    {'D', 8, "4q0q0e4e ~4q7o8k7g4e"},
    {'E', 7, "7q0q0e7e 0k6k"},
    {'F', 7, "7q0q0e 0k6k"},
    {'G', 8, "~8o6q3q1o0k1g3e6e8g 8g8j5j"},
    {'H', 8, "0e0q 8e8q 0k8k"},
    {'I', 0, "0e0q"},
    {'J', 6, "6q6h ~6h5f3e1f0h"},
    {'K', 8, "0e0q 8q0i 2k8e"},
    {'L', 7, "0q0e7e"},
    {'M', 10, "0e0q5g:q:e"},
    {'N', 8, "0e0q8e8q"},
    {'O', 8, "~4e7f8i8m7p4q1p0m0i1f4e"},
    {'P', 8, "0e0q5q ~5q7p8n7l5k 5k0k"},
    {'Q', 8, "~4e7f8i8m7p4q1p0m0i1f4e 5h8d"},
    {'R', 8, "0e0q5q ~5q7p8n7l5k 5k0k 4k8e"},
    {'S', 8, "~8o6q2q0o1l4k7j8g6e2e0g"},
    {'T', 8, "0q8q 4q4e"},
    {'U', 8, "0q0h ~0h1f4e7f8h 8h8q"},
    {'V', 8, "0q4e8q"},
    {'W', 12, "0q3e6q9e<q"},
    {'X', 8, "0q8e 8q0e"},
    {'Y', 8, "0q4k8q 4k4e"},
    {'Z', 8, "0q8q0e8e"},
    {'a', 7, "~7i6l4m1l0i1f4e6f7i 7m7e"},
    {'b', 7, "0q0e ~0i1l4m6l7i6f4e1f0i"},
    {'c', 6, "~6l4m1l0i1f4e6f"},
    {'d', 7, "7q7e ~7i6l4m1l0i1f4e6f7i"},
    {'e', 7, "0i7i ~7i6l4m1l0i1f4e6f"},
    {'f', 4, "1e1n ~1n2p4q 0m4m"},
    {'g', 7, "7m7d ~7d6b4a1b ~7i6l4m1l0i1f4e6f7i"},
    {'h', 7, "0q0e ~0j2l4m6l7j 7j7e"},
    {'i', 0, "0m0e 0p0p"},
    {'j', 2, "2m2c ~2c1a0a 2p2p"},
    {'k', 6, "0q0e 6m0h 2j6e"},
    {'l', 0, "0q0e"},
    {'m', 10, "0m0e ~0j1l3m5l5j 5j5e ~5j6l8m:l:j :j:e"},
    {'n', 7, "0m0e ~0j2l4m6l7j 7j7e"},
    {'o', 7, "~3e6f7i6l3m1l0i1f3e"},
    {'p', 7, "0m0a ~0i1l4m6l7i6f4e1f0i"},
    {'q', 7, "7m7a ~7i6l4m1l0i1f4e6f7i"},
    {'r', 4, "0m0e ~0i1l4m"},
    {'s', 6, "~6l4m1m0k2j4i6g5e2e0f"},
    {'t', 4, "1p1g ~1g2e4e 0m4m"},
    {'u', 7, "0m0h ~0h1f3e5f7h 7m7e"},
    {'v', 6, "0m3e6m"},
    {'w', 10, "0m2e5m8e:m"},
    {'x', 6, "0m6e 6m0e"},
    {'y', 6, "0m3e 6m3e1a"},
    {'z', 6, "0m6m0e6e"},
    {'.', 0, "0e0e"},
    {',', 1, "1e0c"},
    {':', 0, "0e0e 0l0l"},
    {';', 1, "1e0c 1l1l"},
    {'(', 3, "~3r1o0k1g3d"},
    {')', 3, "~0r2o3k2g0d"},
    {'/', 5, "0d5q"},
    {'%', 8, "0e8q ~2q0o2m4o2q ~6i4g6e8g6i"},
    {'-', 5, "0j5j"},
    {'+', 6, "0j6j 3m3g"},
    {'=', 6, "0l6l 0h6h"},
    {'_', 7, "0d7d"},
    {'\'', 0, "0q0n"},
    {'"', 2, "0q0n 2q2n"},
    {'!', 0, "0q0h 0e0e"},
    {'?', 6, "~0o1q4q6o5l3j 3j3h 3e3e"},
    {'*', 6, "3o3i 0n6j 0j6n"},
    {'<', 6, "6m0j6g"},
    {'>', 6, "0m6j0g"},
};
constexpr Glyph kUnknown = {'\0', 6, "0e0m6m6e0e"};
constexpr double kGap = 3.2;    // between letters
constexpr double kEm = 16.6;    // grid units in a font size
constexpr int kCurveSteps = 6;  // between two points of a curve

const Glyph& glyph_of(char letter) {
  for (const Glyph& glyph : kGlyphs) {
    if (glyph.letter == letter) return glyph;
  }
  return kUnknown;
}

std::vector<PlotPosition> smooth(const std::vector<PlotPosition>& points) {
  const auto count = static_cast<int>(points.size());
  const bool closed = points.front() == points.back();
  const auto at = [&](int i) {
    if (closed) return points[static_cast<size_t>((i % (count - 1) + count - 1) % (count - 1))];
    return points[static_cast<size_t>(std::min(std::max(i, 0), count - 1))];
  };
  std::vector<PlotPosition> out;
  for (int i = 0; i + 1 < count; ++i) {
    const std::array<PlotPosition, 4> p = {at(i - 1), at(i), at(i + 1), at(i + 2)};
    const auto blend = [&](double t, double a, double b, double c, double d) {
      return 0.5 * (2 * b + (c - a) * t + (2 * a - 5 * b + 4 * c - d) * t * t +
                    (3 * b - a - 3 * c + d) * t * t * t);
    };
    for (int step = 0; step < kCurveSteps; ++step) {
      const double t = static_cast<double>(step) / kCurveSteps;
      out.emplace_back(blend(t, p[0].first, p[1].first, p[2].first, p[3].first),
                       blend(t, p[0].second, p[1].second, p[2].second, p[3].second));
    }
  }
  out.push_back(points.back());
  return out;
}

}  // namespace

double append_glyphs(std::string_view text, std::vector<std::vector<PlotPosition>>& strokes) {
  double left = 0.0;
  for (const char letter : text) {
    if ((static_cast<unsigned char>(letter) & 0xC0) == 0x80) continue;  // one box for a character
    const Glyph& glyph = glyph_of(letter);
    std::string_view rest = glyph.strokes;
    while (!rest.empty()) {
      const size_t space = rest.find(' ');
      std::string_view stroke = rest.substr(0, space);
      rest = space == std::string_view::npos ? std::string_view() : rest.substr(space + 1);
      const bool is_curve = stroke.starts_with('~');
      if (is_curve) stroke.remove_prefix(1);
      std::vector<PlotPosition> points;
      for (size_t i = 0; i + 1 < stroke.size(); i += 2) {
        points.emplace_back(stroke[i] - '0', stroke[i + 1] - 'e');
      }
      if (is_curve) points = smooth(points);
      for (auto& [x, y] : points) {
        x = (left + x) / kEm;
        y /= kEm;
      }
      strokes.push_back(std::move(points));
    }
    left += glyph.width + kGap;
  }
  return std::max(left - kGap, 0.0) / kEm;
}

}  // namespace hadal::cli
