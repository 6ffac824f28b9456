// Compares a sample of a grouped product's rows with sums that are computed on the host.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/device_array.h"

namespace hadal::testing {

// `out` has [offsets.back(), n] elements, then memory that must still be poisoned. Expert e has the rows
// offsets[e] up to offsets[e + 1]. reference(expert, row, column) is the sum in float64, is_right(value, sum)
// compares one element, and max_error bounds relative_error of the sample. T is bf16 or f16.
template <typename T, typename Reference, typename IsRight>
void expect_sampled_rows(const std::vector<T>& out, const std::vector<int32_t>& offsets, int64_t n,
                         std::mt19937_64& random, const Reference& reference, const IsRight& is_right,
                         double max_error) {
  std::vector<float> seen;
  std::vector<float> ref;
  size_t wrong = 0;
  size_t unwritten = 0;
  std::string first;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    for (int64_t i = offsets[e]; i < offsets[e + 1]; ++i) {
      // Checks rows at the borders of experts in every third column, and a sample of the other rows.
      const uint64_t share = i == offsets[e] || i + 1 == offsets[e + 1] ? 3 : 101;
      for (int64_t j = 0; j < n; ++j) {
        const float o = to_float(out[i * n + j]);
        unwritten += std::isnan(o) ? 1 : 0;
        if (random() % share != 0) continue;
        const double r = reference(static_cast<int64_t>(e), i, j);
        seen.push_back(o);
        ref.push_back(static_cast<float>(r));
        if (!is_right(o, r) && ++wrong <= 4)
          first += fmt::format(" expert {} row {} (of {}) column {}: {}, not {};", e, i - offsets[e],
                               offsets[e + 1] - offsets[e], j, o, r);
      }
    }
  }
  EXPECT_EQ(unwritten, 0U);
  EXPECT_EQ(wrong, 0U) << "of " << seen.size() << ":" << first;
  EXPECT_LT(relative_error(std::span<const float>(seen), std::span<const float>(ref)), max_error);
  size_t overwritten = 0;
  for (size_t i = offsets.back() * n; i < out.size(); ++i) overwritten += out[i].bits != 0xffff ? 1 : 0;
  EXPECT_EQ(overwritten, 0U) << "elements after the last row";
}

}  // namespace hadal::testing
