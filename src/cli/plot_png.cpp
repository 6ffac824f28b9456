// Pixels: strokes are drawn by each pixel's distance to them, which smooths their edges. The PNG's deflate
// stream uses the fixed Huffman code and runs of one byte alone: after PNG's "up" filter nearly all bytes of
// a chart are zeros, so that is enough (PNG specification, section 9; RFC 1951, section 3.2.6).
#include <algorithm>
#include <array>
#include <cmath>

#include "cli/plot_drawing.h"

namespace hadal::cli {
namespace {

struct Canvas {
  int width;
  int height;
  std::vector<uint8_t> rgb;

  void blend(int x, int y, const PlotColor& color, double share) {
    uint8_t* pixel = &rgb[3 * (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x))];
    const std::array<uint8_t, 3> wanted = {color.r, color.g, color.b};
    for (int i = 0; i < 3; ++i) {
      pixel[i] = static_cast<uint8_t>(std::lround(pixel[i] + (wanted[i] - pixel[i]) * share));
    }
  }
};

double distance_to(const PlotPosition& a, const PlotPosition& b, double x, double y) {
  const double dx = b.first - a.first;
  const double dy = b.second - a.second;
  const double length = dx * dx + dy * dy;
  double t = length > 0.0 ? ((x - a.first) * dx + (y - a.second) * dy) / length : 0.0;
  t = std::clamp(t, 0.0, 1.0);
  return std::hypot(x - a.first - t * dx, y - a.second - t * dy);
}

// Points and width in pixels. Each stretch between two points is visited alone, and a pixel keeps the best
// coverage of all of them, so that joints are not drawn twice.
void draw(Canvas& canvas, const std::vector<PlotPosition>& points, double width, const PlotColor& color) {
  const double reach = width / 2 + 1.0;
  double left = points[0].first;
  double right = left;
  double top = points[0].second;
  double bottom = top;
  for (const auto& [x, y] : points) {
    left = std::min(left, x);
    right = std::max(right, x);
    top = std::min(top, y);
    bottom = std::max(bottom, y);
  }
  const int x_begin = std::max(0, static_cast<int>(std::floor(left - reach)));
  const int x_end = std::min(canvas.width - 1, static_cast<int>(std::ceil(right + reach)));
  const int y_begin = std::max(0, static_cast<int>(std::floor(top - reach)));
  const int y_end = std::min(canvas.height - 1, static_cast<int>(std::ceil(bottom + reach)));
  for (int y = y_begin; y <= y_end; ++y) {
    for (int x = x_begin; x <= x_end; ++x) {
      double distance = distance_to(points[0], points[0], x + 0.5, y + 0.5);
      for (size_t i = 1; i < points.size(); ++i) {
        distance = std::min(distance, distance_to(points[i - 1], points[i], x + 0.5, y + 0.5));
      }
      const double cover = std::clamp(width / 2 + 0.5 - distance, 0.0, 1.0);
      if (cover > 0.0) canvas.blend(x, y, color, cover);
    }
  }
}

void draw_text(Canvas& canvas, const PlotText& text, double scale) {
  std::vector<std::vector<PlotPosition>> strokes;
  const double width = append_glyphs(text.text, strokes) * text.size;
  const double shift = text.anchor == PlotAnchor::kStart ? 0.0 : text.anchor == PlotAnchor::kEnd ? 1.0 : 0.5;
  const double thickness = text.size * (text.bold ? 0.115 : 0.085);
  for (std::vector<PlotPosition>& stroke : strokes) {
    for (auto& [x, y] : stroke) {
      const double along = x * text.size - shift * width;
      const double above = y * text.size;
      x = scale * (text.at.first + (text.upwards ? -above : along));
      y = scale * (text.at.second - (text.upwards ? along : above));
    }
    draw(canvas, stroke, scale * thickness, text.color);
  }
}

class BitWriter {
 public:
  void bits(uint32_t value, int count) {  // the lowest first
    for (int i = 0; i < count; ++i) {
      hold_ |= ((value >> i) & 1U) << used_;
      if (++used_ == 8) flush();
    }
  }
  void code(uint32_t value, int count) {  // a Huffman code: the highest first
    for (int i = count - 1; i >= 0; --i) bits((value >> i) & 1U, 1);
  }
  void symbol(int symbol) {  // of literals and lengths
    if (symbol < 144) return code(static_cast<uint32_t>(0x30 + symbol), 8);
    if (symbol < 256) return code(static_cast<uint32_t>(0x190 + symbol - 144), 9);
    if (symbol < 280) return code(static_cast<uint32_t>(symbol - 256), 7);
    code(static_cast<uint32_t>(0xC0 + symbol - 280), 8);
  }
  // The last byte again, [3, 258] times.
  void repeat(int length) {
    constexpr std::array<int, 29> kBase = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                           31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
    constexpr std::array<int, 29> kExtra = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2,
                                            2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
    size_t i = kBase.size() - 1;
    while (kBase[i] > length) --i;
    symbol(257 + static_cast<int>(i));
    bits(static_cast<uint32_t>(length - kBase[i]), kExtra[i]);
    code(0, 5);  // distance 1
  }
  std::string take() {
    if (used_ > 0) flush();
    return std::move(out_);
  }

 private:
  void flush() {
    out_ += static_cast<char>(hold_);
    hold_ = 0;
    used_ = 0;
  }
  std::string out_;
  uint32_t hold_ = 0;
  int used_ = 0;
};

std::string big_endian(uint32_t value) {
  std::string out;
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift & 0xFF);
  return out;
}

std::string zlib_stream(const std::string& bytes) {
  BitWriter bits;
  bits.bits(1, 1);  // the last block
  bits.bits(1, 2);  // fixed codes
  for (size_t i = 0; i < bytes.size();) {
    bits.symbol(static_cast<unsigned char>(bytes[i]));
    const char byte = bytes[i++];
    size_t run = 0;
    while (i + run < bytes.size() && bytes[i + run] == byte) ++run;
    i += run;
    while (run >= 3) {
      const size_t length = std::min<size_t>(run, 258);
      bits.repeat(static_cast<int>(length));
      run -= length;
    }
    for (; run > 0; --run) bits.symbol(static_cast<unsigned char>(byte));
  }
  bits.symbol(256);
  uint32_t low = 1;
  uint32_t high = 0;
  for (const char c : bytes) {
    low = (low + static_cast<unsigned char>(c)) % 65521;
    high = (high + low) % 65521;
  }
  return "\x78\x01" + bits.take() + big_endian(high << 16 | low);
}

std::string png_chunk(const std::string& type, const std::string& data) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char c : type + data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1U) != 0 ? crc >> 1 ^ 0xEDB88320U : crc >> 1;
  }
  return big_endian(static_cast<uint32_t>(data.size())) + type + data + big_endian(~crc);
}

}  // namespace

std::string encode_png(const std::vector<uint8_t>& rgb, int width, int height) {
  const size_t stride = 3 * static_cast<size_t>(width);
  std::string rows;
  rows.reserve((stride + 1) * static_cast<size_t>(height));
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    rows += '\x02';  // each byte less the one above it
    for (size_t i = 0; i < stride; ++i) {
      const uint8_t above = y == 0 ? 0 : rgb[(y - 1) * stride + i];
      rows += static_cast<char>(rgb[y * stride + i] - above);
    }
  }
  const std::string header = big_endian(static_cast<uint32_t>(width)) +
                             big_endian(static_cast<uint32_t>(height)) +
                             std::string("\x08\x02\x00\x00\x00", 5);
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", zlib_stream(rows)) +
         png_chunk("IEND", "");
}

std::string drawing_png(const Drawing& drawing, int scale) {
  Canvas canvas{.width = static_cast<int>(drawing.width * scale),
                .height = static_cast<int>(drawing.height * scale),
                .rgb = {}};
  canvas.rgb.assign(3 * static_cast<size_t>(canvas.width) * static_cast<size_t>(canvas.height), 255);
  for (const PlotStroke& stroke : drawing.strokes) {
    std::vector<PlotPosition> points = stroke.points;
    for (auto& [x, y] : points) {
      x *= scale;
      y *= scale;
    }
    if (!points.empty()) draw(canvas, points, stroke.width * scale, stroke.color);
  }
  for (const PlotText& text : drawing.texts) draw_text(canvas, text, scale);
  return encode_png(canvas.rgb, canvas.width, canvas.height);
}

}  // namespace hadal::cli
