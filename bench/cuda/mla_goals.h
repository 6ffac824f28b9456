// Holds the references for MLA decode: FlashMLA's dense decode on the same card, and the goal of each shape.
#pragma once

#include <string>

#include "kernels/params/kv_layout.h"

namespace hadal::bench {

struct MlaShape {
  int batch = 0, q_len = 0, keys = 0, heads = 0;
  bool operator==(const MlaShape&) const = default;
};

struct FlashMlaTime {
  MlaShape shape;
  double us;
};
// These are times of FlashMLA @9241ae3 in bf16 on one H200 (driver 580.159, CUDA 13.0): one call inside a
// CUDA graph of 12 to 20 calls, as the median of 5 replays, with inputs rotated past the L2. They include
// splits and combine.
inline constexpr FlashMlaTime kFlashMla[] = {
    {{1, 1, 1024, 128}, 13.4},    {{1, 1, 4096, 128}, 19.7},     {{1, 1, 16384, 128}, 38.0},
    {{1, 1, 65536, 128}, 51.4},   {{8, 1, 1024, 128}, 18.8},     {{8, 1, 4096, 128}, 33.0},
    {{8, 1, 16384, 128}, 70.2},   {{8, 1, 65536, 128}, 222.7},   {{32, 1, 1024, 128}, 33.9},
    {{32, 1, 4096, 128}, 68.6},   {{32, 1, 16384, 128}, 229.7},  {{32, 1, 65536, 128}, 976.4},
    {{128, 1, 1024, 128}, 83.6},  {{128, 1, 4096, 128}, 252.9},  {{128, 1, 16384, 128}, 1027.3},
    {{1, 2, 1024, 128}, 18.1},    {{1, 2, 4096, 128}, 25.8},     {{1, 2, 16384, 128}, 55.9},
    {{1, 2, 65536, 128}, 103.3},  {{8, 2, 1024, 128}, 23.7},     {{8, 2, 4096, 128}, 43.8},
    {{8, 2, 16384, 128}, 119.2},  {{8, 2, 65536, 128}, 410.6},   {{32, 2, 1024, 128}, 36.9},
    {{32, 2, 4096, 128}, 117.1},  {{32, 2, 16384, 128}, 449.8},  {{32, 2, 65536, 128}, 1886.1},
    {{128, 2, 1024, 128}, 151.6}, {{128, 2, 4096, 128}, 473.1},  {{128, 2, 16384, 128}, 2126.3},
    {{1, 1, 1024, 64}, 18.0},     {{1, 1, 4096, 64}, 32.5},      {{1, 1, 16384, 64}, 55.5},
    {{1, 1, 65536, 64}, 60.1},    {{128, 1, 1024, 64}, 45.8},    {{128, 1, 4096, 64}, 149.4},
    {{128, 1, 16384, 64}, 625.3}, {{1, 2, 1024, 64}, 17.9},      {{1, 2, 4096, 64}, 24.9},
    {{1, 2, 16384, 64}, 43.0},    {{1, 2, 65536, 64}, 58.9},     {{128, 2, 1024, 64}, 73.5},
    {{128, 2, 4096, 64}, 226.6},  {{128, 2, 16384, 64}, 1023.1}, {{1, 1, 1024, 16}, 15.1},
    {{1, 1, 4096, 16}, 28.5},     {{1, 1, 16384, 16}, 47.8},     {{1, 1, 65536, 16}, 61.8},
    {{8, 1, 1024, 16}, 16.0},     {{8, 1, 4096, 16}, 24.4},      {{8, 1, 16384, 16}, 48.7},
    {{8, 1, 65536, 16}, 154.4},   {{32, 1, 1024, 16}, 22.8},     {{32, 1, 4096, 16}, 47.9},
    {{32, 1, 16384, 16}, 148.6},  {{32, 1, 65536, 16}, 562.1},   {{128, 1, 1024, 16}, 44.8},
    {{128, 1, 4096, 16}, 148.9},  {{128, 1, 16384, 16}, 574.5},  {{1, 2, 1024, 16}, 14.2},
    {{1, 2, 4096, 16}, 27.5},     {{1, 2, 16384, 16}, 46.2},     {{1, 2, 65536, 16}, 61.1},
    {{8, 2, 1024, 16}, 14.9},     {{8, 2, 4096, 16}, 24.7},      {{8, 2, 16384, 16}, 49.9},
    {{8, 2, 65536, 16}, 154.8},   {{32, 2, 1024, 16}, 22.2},     {{32, 2, 4096, 16}, 47.9},
    {{32, 2, 16384, 16}, 151.4},  {{32, 2, 65536, 16}, 574.3},   {{128, 2, 1024, 16}, 50.1},
    {{128, 2, 4096, 16}, 149.8},  {{128, 2, 16384, 16}, 601.2},
};

inline double flash_mla_us(const MlaShape& shape) {
  for (const FlashMlaTime& row : kFlashMla) {
    if (row.shape == shape) return row.us;
  }
  return 0.0;
}

enum class Measure {
  kNone,
  kMicroseconds,
  kTerabytes,
  kTeraflops,
  kTimesFlashMla,
  kTimesBf16,
  kTimesUniform
};

// Holds the required and the desired value of a row (0: none). Lower is better for microseconds, higher for
// all other measures.
struct Goal {
  Measure measure = Measure::kNone;
  double reach = 0.0;
  double aim = 0.0;

  bool met(double value, double bound) const {
    return measure == Measure::kMicroseconds ? value <= bound : value >= bound;
  }
};

inline const char* unit(Measure measure) {
  switch (measure) {
    case Measure::kNone:
      return "";
    case Measure::kMicroseconds:
      return " us";
    case Measure::kTerabytes:
      return " TB/s";
    case Measure::kTeraflops:
      return " TFLOP/s";
    case Measure::kTimesFlashMla:
      return "x FlashMLA";
    case Measure::kTimesBf16:
      return "x bf16";
    case Measure::kTimesUniform:
      return "x uniform";
  }
  return "";
}

inline Goal mla_goal(const KvLayout& layout, const MlaShape& s) {
  using enum Measure;
  if (layout.format == KvFormat::kFp8E4M3 && layout.scales == KvScales::kPerToken) {
    if (s == MlaShape{128, 1, 4096, 16}) return {kTimesBf16, 1.35, 1.65};
    if (s == MlaShape{128, 2, 4096, 128}) return {kTeraflops, 950, 1150};
  }
  if (layout.format != KvFormat::kBF16) return {};
  struct Named {
    MlaShape shape;
    Goal goal;
  };
  static constexpr Named kNamed[] = {
      {{1, 1, 1024, 128}, {kMicroseconds, 6, 4}},    {{1, 1, 1024, 16}, {kMicroseconds, 5, 4}},
      {{1, 1, 4096, 128}, {kMicroseconds, 9, 5}},    {{1, 1, 4096, 64}, {kMicroseconds, 8, 5}},
      {{1, 1, 4096, 16}, {kMicroseconds, 7, 5}},     {{1, 1, 16384, 128}, {kMicroseconds, 19, 12}},
      {{1, 1, 16384, 16}, {kMicroseconds, 14, 9}},   {{8, 1, 4096, 128}, {kMicroseconds, 22, 18}},
      {{8, 1, 4096, 16}, {kMicroseconds, 14, 11}},   {{128, 1, 4096, 128}, {kTeraflops, 620, 700}},
      {{128, 2, 4096, 128}, {kTeraflops, 660, 700}},
  };
  for (const Named& named : kNamed) {
    if (named.shape == s) return named.goal;
  }
  if (s.heads == 16 && s.q_len <= 4) {
    if (int64_t{s.batch} * s.keys >= 512 * 1024) return {kTerabytes, 4.1, 4.25};
    if (s.batch == 32 && s.keys == 4096) return {kTerabytes, 3.7, 3.9};
  }
  if (flash_mla_us(s) > 0.0) return {kTimesFlashMla, 1.0, 1.6};
  return {};
}

}  // namespace hadal::bench
