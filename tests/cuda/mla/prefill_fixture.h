// Holds inputs and results for tests of un-absorbed prefill, and a loop in double precision with which
// results are compared. Memory that no run names (rows between the runs, padding of the strides) is NaN and
// must neither be read into a result nor written.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/mla/mla.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/test_launch.h"

namespace hadal::testing::prefill {

inline constexpr int kQk = 192;
inline constexpr int kNope = 128;
inline constexpr int kValue = 128;
inline constexpr float kScale = 0.1147F;  // the model's, with its long-context factor: not a power of two
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Shape {
  int heads = 16;
  int64_t q_padding = 8;       // elements past the heads of a row of q
  int64_t q_head_padding = 0;  // past the 192 of a head
  int64_t out_padding = 8;
  float q_sigma = 1.0F;
  bool is_f16 = false;
};

// Holds the inputs on host and device. Queries and keys are rows of one pool; every run names rows of it.
class Problem {
 public:
  Problem(const Shape& of, int64_t rows, int64_t key_rows, uint64_t seed)
      : shape(of),
        m(rows),
        num_keys(key_rows),
        q_head_stride(kQk + of.q_head_padding),
        q_row_stride(of.heads * q_head_stride + of.q_padding),
        out_stride(of.heads * kValue + of.out_padding),
        q(m * q_row_stride, to_16_bit(kNaN, of.is_f16)),
        kv(num_keys * of.heads * 256, to_16_bit(kNaN, of.is_f16)),
        rope(num_keys * 64, to_16_bit(kNaN, of.is_f16)),
        seed_(seed) {}

  void fill_queries(int64_t begin, int64_t count) {
    const std::vector<uint16_t> values = random(count * shape.heads * kQk, shape.q_sigma);
    for (int64_t i = 0; i < count; ++i) {
      for (int h = 0; h < shape.heads; ++h) {
        std::copy_n(&values[(i * shape.heads + h) * kQk], kQk,
                    &q[(begin + i) * q_row_stride + h * q_head_stride]);
      }
    }
  }
  void fill_keys(int64_t begin, int64_t count) {
    const int64_t row = shape.heads * 256;
    const std::vector<uint16_t> values = random(count * row);
    std::copy(values.begin(), values.end(), kv.begin() + begin * row);
    const std::vector<uint16_t> ropes = random(count * 64);
    std::copy(ropes.begin(), ropes.end(), rope.begin() + begin * 64);
  }

  // Lets queries attend only to selected keys, of runs of up to max_keys keys: about a third of all, but none
  // of the first `none_before` ones. Rows that no run names select all.
  void select_keys(int64_t max_keys, int64_t none_before) {
    bits_stride = (max_keys + 63) / 64;
    bits.assign(m * bits_stride, ~uint64_t{0});
    std::mt19937_64 generator(seed_++);
    for (int64_t row = 0; row < m; ++row) {
      for (int64_t key = 0; key < bits_stride * 64; ++key) {
        if (key < none_before || generator() % 3 != 0)
          bits[row * bits_stride + key / 64] &= ~(uint64_t{1} << (key % 64));
      }
    }
  }
  // `key` is counted from the first key of the row's run.
  bool counts(int64_t row, int64_t key) const {
    return bits.empty() || (bits[row * bits_stride + key / 64] >> (key % 64) & 1) != 0;
  }

  float value(uint16_t bits_of_value) const { return from_16_bit(bits_of_value, shape.is_f16); }

  Shape shape;
  int64_t m, num_keys, q_head_stride, q_row_stride, out_stride;
  int64_t bits_stride = 0;
  std::vector<uint16_t> q, kv, rope;
  std::vector<uint64_t> bits;  // empty: all keys count

 private:
  std::vector<uint16_t> random(size_t count, float sigma = 1.0F) {
    return random_bits(count, seed_++, sigma, shape.is_f16);
  }

  uint64_t seed_;
};

struct Output {
  std::vector<uint16_t> out;
  std::vector<float> lse;
};

struct Device {
  explicit Device(const Problem& p)
      : problem(p),
        q(p.q),
        kv(p.kv),
        rope(p.rope),
        bits(p.bits),
        out(p.m * p.out_stride),
        lse(p.m * p.shape.heads) {}

  void run(const std::vector<cuda::PrefillSegmentRun>& runs, bool accumulate, const cuda::Launch& launch,
           bool with_lse = true) {
    // With selected keys, all runs of a call begin at the same position, a multiple of 64.
    const int32_t first_key = problem.bits.empty() || runs.empty() ? 0 : runs.front().k_pos;
    const DeviceArray<cuda::PrefillSegmentRun> device_runs(runs);
    cuda::mla_prefill({.f16 = problem.shape.is_f16,
                       .q = q.data(),
                       .q_row_stride = problem.q_row_stride,
                       .q_head_stride = problem.q_head_stride,
                       .kv = kv.data(),
                       .k_rope = rope.data(),
                       .runs = device_runs.data(),
                       .host_runs = runs.data(),
                       .num_runs = static_cast<int>(runs.size()),
                       .num_keys = problem.num_keys,
                       .m = problem.m,
                       .num_heads = problem.shape.heads,
                       .softmax_scale = kScale,
                       .out = out.data(),
                       .out_stride = problem.out_stride,
                       .lse = with_lse ? lse.data() : nullptr,
                       .accumulate = accumulate,
                       .bits = problem.bits.empty() ? nullptr : bits.data() + first_key / 64,
                       .bits_stride = problem.bits_stride},
                      launch);
    test_stream().synchronize();
  }
  Output download() const { return {out.download(), lse.download()}; }
  void poison() {
    out.poison();
    lse.poison();
  }

  const Problem& problem;
  DeviceArray<uint16_t> q, kv, rope;
  DeviceArray<uint64_t> bits;
  DeviceArray<uint16_t> out;
  DeviceArray<float> lse;
};

// Computes the exact result of one (row of q, head) over those of the keys [k_begin, k_begin + visible) of
// the pool that count.
inline void attend(const Problem& p, int64_t row, int head, int64_t k_begin, int64_t visible,
                   double (&out)[kValue], double& lse) {
  std::fill_n(out, kValue, 0.0);
  lse = -kInfinity;
  if (visible <= 0) return;
  float query[kQk];
  for (int d = 0; d < kQk; ++d) query[d] = p.value(p.q[row * p.q_row_stride + head * p.q_head_stride + d]);
  std::vector<double> scores(visible, -kInfinity);
  for (int64_t k = 0; k < visible; ++k) {
    if (!p.counts(row, k)) continue;
    const uint16_t* nope = &p.kv[((k_begin + k) * p.shape.heads + head) * 256];
    const uint16_t* rope = &p.rope[(k_begin + k) * 64];
    double dot = 0.0;
    for (int d = 0; d < kNope; ++d) dot += static_cast<double>(query[d]) * p.value(nope[d]);
    for (int d = 0; d < 64; ++d) dot += static_cast<double>(query[kNope + d]) * p.value(rope[d]);
    scores[k] = dot * kScale;
  }
  const double maximum = *std::max_element(scores.begin(), scores.end());
  if (maximum == -kInfinity) return;
  double sum = 0.0;
  for (int64_t k = 0; k < visible; ++k) {
    if (!p.counts(row, k)) continue;
    const double weight = std::exp(scores[k] - maximum);
    sum += weight;
    const uint16_t* value = &p.kv[((k_begin + k) * p.shape.heads + head) * 256 + kNope];
    for (int d = 0; d < kValue; ++d) out[d] += weight * p.value(value[d]);
  }
  for (double& value : out) value /= sum;
  lse = maximum + std::log(sum);
}

inline bool is_poison(uint16_t bits) {
  return bits == 0xffff;
}
inline bool is_poison(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits == 0xffffffffU;
}

// Returns the rows of a run that are compared with the loop: its borders, those of tiles, and a sample.
inline std::vector<int32_t> rows_to_check(const cuda::PrefillSegmentRun& run, int heads,
                                          std::mt19937_64& random) {
  std::vector<int32_t> rows;
  const int64_t affordable = int64_t{400'000} / (std::max(1, run.k_len) * int64_t{heads} + 1);
  if (run.q_len <= std::max<int64_t>(affordable, 1)) {
    for (int32_t i = 0; i < run.q_len; ++i) rows.push_back(i);
    return rows;
  }
  for (int32_t i : {0, 1, 63, 64, 65, 127, 128, 129, run.q_len - 65, run.q_len - 2, run.q_len - 1}) {
    if (i >= 0 && i < run.q_len) rows.push_back(i);
  }
  for (int i = 0; i < std::min<int64_t>(affordable, 24); ++i) {
    rows.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(run.q_len)));
  }
  return rows;
}

// Compares every (query, head) of the runs with a plain loop, and expects all other memory untouched. In
// `whole`, all keys of a query are one run.
inline void expect_attention(const Problem& p, const std::vector<cuda::PrefillSegmentRun>& whole,
                             const Output& result, double tolerance, bool with_lse = true) {
  std::mt19937_64 random(p.m);
  std::vector<bool> written(p.m);
  double difference = 0.0;
  double norm = 0.0;
  int wrong = 0;
  for (size_t r = 0; r < whole.size(); ++r) {
    const cuda::PrefillSegmentRun& run = whole[r];
    std::fill_n(written.begin() + run.q_begin, run.q_len, true);
    for (const int32_t i : rows_to_check(run, p.shape.heads, random)) {
      const int64_t row = run.q_begin + i;
      const int64_t visible = std::clamp(run.q_pos + i + 1 - run.k_pos, 0, run.k_len);
      for (int head = 0; head < p.shape.heads; ++head) {
        double expected[kValue];
        double lse;
        attend(p, row, head, run.k_begin, visible, expected, lse);
        double row_difference = 0.0;
        double row_norm = 0.0;
        for (int d = 0; d < kValue; ++d) {
          const double got = p.value(result.out[row * p.out_stride + head * kValue + d]);
          row_difference += (got - expected[d]) * (got - expected[d]);
          row_norm += expected[d] * expected[d];
        }
        difference += row_difference;
        norm += row_norm;
        const double got_lse = with_lse ? result.lse[row * p.shape.heads + head] : lse;
        const bool lse_right = lse == got_lse || std::abs(lse - got_lse) <= 2e-3 + 1e-5 * std::abs(lse);
        const double error = std::sqrt(row_difference / std::max(row_norm, 1e-30));
        const bool right = lse_right && (visible == 0 ? row_difference == 0.0 : error <= 4 * tolerance);
        if (!right && ++wrong <= 4) {
          ADD_FAILURE() << "run " << r << " of " << whole.size() << " (q_len " << run.q_len << ", q_pos "
                        << run.q_pos << ", k_len " << run.k_len << ", k_pos " << run.k_pos << "), query " << i
                        << ", head " << head << " of " << p.shape.heads << ": error " << error << ", lse "
                        << got_lse << " for " << lse << ", out "
                        << p.value(result.out[row * p.out_stride + head * kValue]) << " "
                        << p.value(result.out[row * p.out_stride + head * kValue + 1]) << " for "
                        << expected[0] << " " << expected[1];
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0) << "wrong (query, head) pairs";
  EXPECT_LE(std::sqrt(difference / std::max(norm, 1e-30)), tolerance);
  int stray = 0;
  int unwritten = 0;
  for (int64_t row = 0; row < p.m; ++row) {
    for (int64_t c = 0; c < p.out_stride; ++c) {
      const bool result_element = written[row] && c < int64_t{p.shape.heads} * kValue;
      const bool poison = is_poison(result.out[row * p.out_stride + c]);
      if (!result_element && !poison && ++stray == 1)
        ADD_FAILURE() << "written: row " << row << ", column " << c;
      if (result_element && poison && ++unwritten == 1)
        ADD_FAILURE() << "not written: row " << row << ", column " << c;
    }
    if (written[row]) continue;
    for (int head = 0; head < p.shape.heads; ++head) {
      if (!is_poison(result.lse[row * p.shape.heads + head]) && ++stray == 1)
        ADD_FAILURE() << "lse of row " << row;
    }
  }
  EXPECT_EQ(stray, 0);
  EXPECT_EQ(unwritten, 0);
}

inline constexpr double kTolerance = 5e-3;     // for bf16
inline constexpr double kToleranceF16 = 7e-4;  // for float16

// Compares all rows of two kernels' results.
inline void expect_same_attention(const Problem& p, const std::vector<cuda::PrefillSegmentRun>& runs,
                                  const Output& a, const Output& b) {
  int wrong = 0;
  for (const cuda::PrefillSegmentRun& run : runs) {
    for (int64_t row = run.q_begin; row < run.q_begin + run.q_len; ++row) {
      for (int head = 0; head < p.shape.heads; ++head) {
        const uint16_t* left = &a.out[row * p.out_stride + head * kValue];
        const uint16_t* right = &b.out[row * p.out_stride + head * kValue];
        double difference = 0.0;
        double norm = 0.0;
        for (int d = 0; d < kValue; ++d) {
          difference += std::pow(p.value(left[d]) - p.value(right[d]), 2);
          norm += std::pow(p.value(left[d]), 2);
        }
        const float left_lse = a.lse[row * p.shape.heads + head];
        const float right_lse = b.lse[row * p.shape.heads + head];
        const bool same_lse =
            left_lse == right_lse || std::abs(left_lse - right_lse) <= 2e-3 + 1e-5 * std::abs(left_lse);
        if (!(std::sqrt(difference) <= 4 * kTolerance * std::sqrt(norm)) || !same_lse) {
          if (++wrong > 4) continue;
          ADD_FAILURE() << "query " << row - run.q_begin << " of " << run.q_len << ", head " << head << ": "
                        << std::sqrt(difference) << " of " << std::sqrt(norm) << ", lse " << left_lse
                        << " and " << right_lse;
        }
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

}  // namespace hadal::testing::prefill
