// Holds the references for matrix products and experts: DeepGEMM on the same card, and the goal of each row.
#pragma once

#include <cstdint>

namespace hadal::bench {

// These are the best rates measured on one H200: reads of memory, and a library's matrix products.
inline constexpr double kReadTerabytes = 4.39;
inline constexpr double kBf16Teraflops = 805.0;
inline constexpr double kFp8Teraflops = 1529.0;
inline constexpr double kInt8Teraops = 1633.0;

// Describes a product. groups is 1 if it is dense; otherwise it is the number of experts, each of which has m
// rows.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int groups = 1;
  bool operator==(const ProductShape&) const = default;
};

struct DeepGemmTime {
  ProductShape shape;
  double us;
};
// These are times of DeepGEMM @54e2261 on one H200 (driver 580.159, CUDA 13.0): one call inside a CUDA graph
// of 12 to 20 calls, as the median of 5 replays, with inputs rotated past the L2. They include its transpose
// of the activations' scales. Groups are masked.
inline constexpr DeepGemmTime kDeepGemm[] = {
    {{1, 2112, 7168}, 15.7},      {{64, 2112, 7168}, 12.2},      {{128, 2112, 7168}, 13.0},
    {{4096, 2112, 7168}, 97.0},   {{1, 24576, 1536}, 16.5},      {{64, 24576, 1536}, 16.1},
    {{128, 24576, 1536}, 17.2},   {{4096, 24576, 1536}, 238.2},  {{1, 7168, 16384}, 39.5},
    {{64, 7168, 16384}, 38.9},    {{128, 7168, 16384}, 46.8},    {{4096, 7168, 16384}, 670.1},
    {{1, 4096, 7168}, 17.9},      {{64, 4096, 7168}, 13.7},      {{128, 4096, 7168}, 14.6},
    {{4096, 4096, 7168}, 171.2},  {{1, 7168, 2048}, 9.1},        {{64, 7168, 2048}, 8.6},
    {{128, 7168, 2048}, 11.1},    {{4096, 7168, 2048}, 93.3},    {{1, 4096, 7168, 32}, 238.9},
    {{8, 4096, 7168, 32}, 239.2}, {{32, 4096, 7168, 32}, 240.3}, {{128, 4096, 7168, 32}, 271.1},
    {{8, 7168, 2048, 32}, 132.8}, {{32, 7168, 2048, 32}, 132.1}, {{128, 7168, 2048, 32}, 149.7},
};

inline double deep_gemm_us(const ProductShape& shape) {
  for (const DeepGemmTime& row : kDeepGemm) {
    if (row.shape == shape) return row.us;
  }
  return 0.0;
}

enum class Measure { kNone, kMicroseconds, kTeraflops, kTimesDeepGemm, kTimesLibrary, kTimesFloor };

// Holds the required and the desired value of a row. Lower is better for microseconds and multiples of the
// floor, higher for all other measures.
struct Goal {
  Measure measure = Measure::kNone;
  double reach = 0.0;
  double aim = 0.0;

  bool met(double value, double bound) const {
    const bool less = measure == Measure::kMicroseconds || measure == Measure::kTimesFloor;
    return less ? value <= bound : value >= bound;
  }
};

inline const char* unit(Measure measure) {
  switch (measure) {
    case Measure::kNone:
      return "";
    case Measure::kMicroseconds:
      return " us";
    case Measure::kTeraflops:
      return " TFLOP/s";
    case Measure::kTimesDeepGemm:
      return "x DeepGEMM";
    case Measure::kTimesLibrary:
      return "x the library";
    case Measure::kTimesFloor:
      return "x the floor";
  }
  return "";
}

inline Goal fp8_goal(const ProductShape& s) {
  using enum Measure;
  struct Named {
    ProductShape shape;
    Goal goal;
  };
  static constexpr Named kNamed[] = {
      {{1, 2112, 7168}, {kMicroseconds, 6.0, 4.8}},
      {{1, 24576, 1536}, {kMicroseconds, 11.0, 9.8}},
      {{1, 7168, 16384}, {kMicroseconds, 31.0, 29.0}},
      {{1, 4096, 7168}, {kMicroseconds, 9.5, 8.2}},
      {{1, 7168, 2048}, {kMicroseconds, 5.5, 4.6}},
      {{64, 2112, 7168}, {kMicroseconds, 7.5, 6.0}},
      {{64, 24576, 1536}, {kMicroseconds, 12.5, 11.0}},
      {{64, 7168, 16384}, {kMicroseconds, 33.0, 31.0}},
      {{64, 4096, 7168}, {kMicroseconds, 11.0, 9.0}},
      {{64, 7168, 2048}, {kMicroseconds, 6.5, 5.5}},
      {{4096, 2112, 7168}, {kTimesDeepGemm, 1.0, 1.05}},
      {{4096, 24576, 1536}, {kTimesDeepGemm, 1.0, 1.05}},
      {{4096, 7168, 16384}, {kTimesDeepGemm, 1.0, 1.05}},
      {{4096, 4096, 7168}, {kTimesDeepGemm, 1.0, 1.05}},
      {{1, 4096, 7168, 32}, {kMicroseconds, 230.0, 223.0}},
      {{8, 4096, 7168, 32}, {kMicroseconds, 230.0, 223.0}},
      {{32, 4096, 7168, 32}, {kMicroseconds, 230.0, 223.0}},
      {{128, 4096, 7168, 32}, {kTeraflops, 930.0, 1000.0}},
      {{128, 7168, 2048, 32}, {kTeraflops, 860.0, 930.0}},
  };
  for (const Named& named : kNamed) {
    if (named.shape == s) return named.goal;
  }
  return {};
}

// Returns the goal for V2-Lite's small matrices with few rows.
inline Goal bf16_goal(const ProductShape& s) {
  const bool is_small = s.k == 2048 && (s.n == 2048 || s.n == 2816) && s.m <= 16;
  return is_small ? Goal{Measure::kMicroseconds, 4.0, 3.0} : Goal{};
}

// This goal of INT8 products compares them with the library's product in the same run, which computes int32
// sums without scales.
inline constexpr Goal kInt8Goal = {Measure::kTimesLibrary, 1.2, 1.5};

// Returns the goal for router, routed and shared experts and their sum, with m tokens.
inline Goal moe_goal(bool is_fp8, int64_t m) {
  if (is_fp8) return {Measure::kTimesFloor, 1.6, 1.25};
  if (m == 4096) return {Measure::kTeraflops, 550.0, 650.0};
  return {Measure::kTimesFloor, 1.4, 1.2};
}

}  // namespace hadal::bench
