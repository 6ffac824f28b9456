// Holds the caches, bounds and comparisons that tests of decode kernels share.
//
// These are the tolerances. For 16-bit caches, the cosine difference of a sequence's rows is at most 5e-6,
// each output is within 2.01/128 of its own size (or 8e-4 for latents of standard deviation 0.1), and LSE is
// within 1.2e-4 of its size (or 2e-5). Weights and outputs are rounded to the cache's 16-bit type. In bf16 a
// rounding is up to 2⁻⁹ = 0.25/128 of a value, which the relative bound covers, and adds about 7e-7 to the
// cosine difference. FP8 caches are compared with the same math on the dequantised record with unquantised
// queries. Where weights are alike, the cosine is at least 0.9995 and LSE within 1e-3. 64-row FP8 products
// (kTilesFp8) quantise queries to one e4m3 per value, which is an error of the scores themselves, so their
// LSE bound is 4e-3 instead. Tests whose weights differ widely set bounds of their own, down to a cosine of
// 0.98 and an LSE that is off by 0.5. decode_fp8_test.cpp compares 64-row FP8 products with the same math on
// the quantised queries.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "tests/cuda/mla/decode_fixture.h"

namespace hadal::testing {

inline constexpr uint64_t kDecodeSeed = 20261121;

inline const std::vector<std::pair<std::string, KvLayout>> kLayouts = {
    {"Bf16", {KvFormat::kBF16, KvScales::kPerToken}},
    {"F16", {KvFormat::kF16, KvScales::kPerToken}},
    {"E4m3PerToken", {KvFormat::kFp8E4M3, KvScales::kPerToken}},
    {"E4m3Per128", {KvFormat::kFp8E4M3, KvScales::kPer128}},
    {"E5m2", {KvFormat::kFp8E5M2, KvScales::kPerToken}},
};
inline bool is_fp8(const KvLayout& layout) {
  return layout.format == KvFormat::kFp8E4M3 || layout.format == KvFormat::kFp8E5M2;
}

// Caches are made once, because random numbers and rounding on the host are the slow part.
inline const DecodeCache& cache_of(int layout_idx, const std::vector<int>& lengths,
                                   CacheOptions options = {}) {
  static std::map<std::tuple<int, std::vector<int>, bool, float, int>, std::unique_ptr<DecodeCache>> caches;
  auto& cache = caches[{layout_idx, lengths, options.flat, options.flat_size, options.heads_kv}];
  if (cache == nullptr)
    cache = std::make_unique<DecodeCache>(lengths, kLayouts[layout_idx].second, kDecodeSeed + layout_idx,
                                          options);
  return *cache;
}
// Returns all rows of the cache and one row of padding.
inline std::vector<int> all_rows(const DecodeCache& cache) {
  std::vector<int> rows(cache.lengths.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int>(rows.size() - 1 - i);
  if (rows.size() > 2) rows.insert(rows.begin() + 2, -1);
  return rows;
}

inline std::string where(const DecodeBatch& batch, int64_t row) {
  const int64_t per_sequence = int64_t{batch.q_len} * batch.heads;
  const int64_t seq = row / per_sequence;
  return "row " + std::to_string(row) + ": sequence " + std::to_string(seq) + " of " +
         std::to_string(batch.seq_idx.size()) + ", length " + std::to_string(batch.kv_len[seq]) + ", query " +
         std::to_string(row % per_sequence / batch.heads) + ", head " + std::to_string(row % batch.heads) +
         ", seed " + std::to_string(kDecodeSeed);
}

struct Bounds {
  double cosine_difference = 5e-6;
  bool outputs = true;  // each within a bound of its own
  double lse = 2e-5;
  double lse_relative = 1.2e-4;
};
// Returns the bounds for weights that are alike (CacheOptions::flat).
inline Bounds bounds_of(const KvLayout& layout, cuda::DecodeKernel kernel) {
  if (!is_fp8(layout)) return {};
  return {5e-4, false, kernel == cuda::DecodeKernel::kTilesFp8 ? 4e-3 : 1e-3, 0.0};
}

// Shows at most three failures of each kind.
inline void expect_close(const DecodeBatch& batch, const DecodeResult& result, const DecodeDoubles& expected,
                         const Bounds& bounds) {
  const KvLayout& layout = batch.cache().layout;
  const int64_t per_sequence = int64_t{batch.q_len} * batch.heads;
  int shown[3] = {};
  for (int64_t seq = 0; seq < static_cast<int64_t>(batch.seq_idx.size()); ++seq) {
    double product = 0.0, own = 0.0, others = 0.0, worst = 0.0;
    int64_t worst_row = seq * per_sequence;
    for (int64_t row = seq * per_sequence; row < (seq + 1) * per_sequence; ++row) {
      double row_error = 0.0, row_norm = 0.0;
      for (int64_t column = 0; column < kKvLatentDim; ++column) {
        const int64_t i = row * kKvLatentDim + column;
        const double a = decode_value(layout, result.out[i]);
        const double b = expected.out[i];
        product += a * b;
        own += a * a;
        others += b * b;
        row_error += (a - b) * (a - b);
        row_norm += b * b;
        if (!bounds.outputs) continue;
        const double error = std::fabs(a - b);
        const double allowed = std::max(8e-3 * batch.cache().deviation(column), 2.01 / 128 * std::fabs(b));
        if (!(error <= allowed) && shown[0]++ < 3) {
          ADD_FAILURE() << "output " << a << ", expected " << b << ", column " << column << " of "
                        << where(batch, row);
        }
      }
      const double error = row_norm > 0.0 ? row_error / row_norm : row_error;
      if (!(error <= worst)) worst = error, worst_row = row;
      const double lse = result.lse[row], lse_expected = expected.lse[row];
      const double lse_allowed = std::max(bounds.lse, bounds.lse_relative * std::fabs(lse_expected));
      if (lse != lse_expected && !(std::fabs(lse - lse_expected) <= lse_allowed) && shown[1]++ < 3)
        ADD_FAILURE() << "lse " << lse << ", expected " << lse_expected << " at " << where(batch, row);
    }
    // For 16-bit caches a difference in size counts, too.
    const double norm = is_fp8(layout) ? std::sqrt(own * others) : (own + others) / 2;
    const double difference = norm > 0.0 ? 1.0 - product / norm : own + others;
    if (!(difference <= bounds.cosine_difference) && shown[2]++ < 3) {
      ADD_FAILURE() << "cosine difference " << difference << " of a sequence; its worst, "
                    << where(batch, worst_row) << ": relative error " << std::sqrt(worst);
    }
  }
}
inline void expect_close(const DecodeBatch& batch, const DecodeResult& result,
                         const DecodeDoubles& expected) {
  expect_close(batch, result, expected,
               bounds_of(batch.cache().layout, cuda::decode_geometry(batch.shape()).kernel));
}

inline bool same_bits(const DecodeResult& a, const DecodeResult& b) {
  return std::memcmp(a.out.data(), b.out.data(), a.out.size() * sizeof(bf16)) == 0 &&
         std::memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float)) == 0;
}

}  // namespace hadal::testing
