// Measures MLA's absorbed products, all heads in one call, by the formats of their operands: the time on this
// machine, and the cosine between the result and float64 sums over operands that were never rounded. Weights
// have one scale per block of 128 × 128, activations one per 128 values of a row (bf16: none). For the
// formats that have GPU kernels, the times on a GPU are in cuda_gemm_table_bench's rows absorb_query and
// expand_value. --benchmark_filter=bmm/ selects these benches, whose names are bmm/product/format of x/format
// of the weights/m. No kernel reads e5m2 weights, so those rows (`e5m2_in_f32`) use the values in float32 and
// only show the cosine. Activations are float32 here, whatever format they were rounded to.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/kernels/ceilings.h"

namespace hadal::bench {
namespace {

constexpr int64_t kHeads = 16, kNope = 128, kLatent = 512, kHeadRows = 256, kBlock = 128;
constexpr int kSets = 24;         // sets of weights: 50 MB in e4m3
constexpr int64_t kCompared = 4;  // rows

enum class Format { kBf16, kE4m3, kE5m2 };
constexpr Format kFormats[] = {Format::kBf16, Format::kE4m3, Format::kE5m2};
const char* format_name(Format format) {
  return format == Format::kBf16 ? "bf16" : format == Format::kE4m3 ? "e4m3" : "e5m2";
}

// Returns the scale by which a group is divided before rounding, given the group's largest value, `most`.
float scale_of(Format format, float most) {
  if (format == Format::kBf16 || most == 0.0F) return 1.0F;
  return most / (format == Format::kE4m3 ? 448.0F : 57344.0F);
}
float rounded(Format format, float value) {
  if (format == Format::kBf16) return to_float(to_bf16(value));
  return format == Format::kE4m3 ? to_float(to_fp8_e4m3(value)) : to_float(to_fp8_e5m2(value));
}

// Makes kv_b in a checkpoint's layout, rows [256·h, 256·h + 128) W_UK and the next 128 W_UV, N(0, 0.05).
const std::vector<float>& original_weights() {
  static const std::vector<float> values = [] {
    std::mt19937 random(11);
    std::normal_distribution<float> normal(0.0F, 0.05F);
    std::vector<float> v(kHeads * kHeadRows * kLatent);
    for (float& value : v) value = normal(random);
    return v;
  }();
  return values;
}

struct Weights {
  WeightType type;
  std::vector<std::byte> data;  // [kSets, heads · 256, 512]
  std::vector<float> scales;    // [heads · 2, 4]

  explicit Weights(Format format)
      : type(format == Format::kBf16   ? WeightType::kBF16
             : format == Format::kE4m3 ? WeightType::kFp8Block
                                       : WeightType::kF32) {
    const std::vector<float>& values = original_weights();
    const auto element = static_cast<size_t>(weight_element_bytes(type));
    data.resize(kSets * values.size() * element);
    for (int64_t row = 0; row < kHeads * kHeadRows; row += kBlock) {
      for (int64_t column = 0; column < kLatent; column += kBlock) {
        float most = 0.0F;
        const auto each = [&](const auto& visit) {
          for (int64_t i = 0; i < kBlock * kBlock; ++i)
            visit((row + i / kBlock) * kLatent + column + i % kBlock);
        };
        each([&](int64_t at) { most = std::max(most, std::abs(values[at])); });
        const float scale = scale_of(format, most);
        scales.push_back(scale);
        each([&](int64_t at) { store(format, data.data() + at * element, values[at], scale); });
      }
    }
    for (int set = 1; set < kSets; ++set)
      std::memcpy(data.data() + set * values.size() * element, data.data(), values.size() * element);
  }

  static void store(Format format, std::byte* target, float value, float scale) {
    if (format == Format::kBf16) {
      const bf16 stored = to_bf16(value);
      std::memcpy(target, &stored, sizeof(stored));
    } else if (format == Format::kE4m3) {
      const fp8_e4m3 stored = to_fp8_e4m3(value / scale);
      std::memcpy(target, &stored, sizeof(stored));
    } else {
      const float stored = rounded(format, value / scale) * scale;
      std::memcpy(target, &stored, sizeof(stored));
    }
  }

  // Returns the matrix of head 0; set: 0 … kSets − 1.
  MatrixWeight matrix(bool is_query, int set) const {
    const size_t element = static_cast<size_t>(weight_element_bytes(type));
    const size_t begin = set * original_weights().size() + (is_query ? 0 : kNope * kLatent);
    return {
        .data = data.data() + begin * element,
        .type = type,
        .n = is_query ? kLatent : kNope,
        .k = is_query ? kNope : kLatent,
        .row_stride = kLatent,
        .scales = type == WeightType::kFp8Block ? scales.data() + (is_query ? 0 : kLatent / kBlock) : nullptr,
        .scale_stride = kLatent / kBlock};
  }
};

// Returns values of N(0, 1), rounded in groups of 128.
std::vector<float> activations(Format format, int64_t count) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(random);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    float most = 0.0F;
    for (int64_t i = begin; i < begin + kBlock; ++i) most = std::max(most, std::abs(x[i]));
    const float scale = scale_of(format, most);
    for (int64_t i = begin; i < begin + kBlock; ++i) x[i] = rounded(format, x[i] / scale) * scale;
  }
  return x;
}

// Compares the first rows of y [m, heads, n].
double cosine(const std::vector<float>& y, int64_t m, bool is_query) {
  const int64_t n = is_query ? kLatent : kNope;
  const int64_t k = is_query ? kNope : kLatent;
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  std::vector<float> x(m * kHeads * k);  // activations() before rounding
  for (float& value : x) value = normal(random);
  double yy = 0.0;
  double yr = 0.0;
  double rr = 0.0;
  for (int64_t pair = 0; pair < std::min(m, kCompared) * kHeads; ++pair) {
    const float* head =
        original_weights().data() + (pair % kHeads * kHeadRows + (is_query ? 0 : kNope)) * kLatent;
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0.0;
      for (int64_t i = 0; i < k; ++i)
        sum += static_cast<double>(x[pair * k + i]) *
               head[is_query ? i * kLatent + column : column * kLatent + i];
      const double result = y[pair * n + column];
      yy += result * result;
      yr += result * sum;
      rr += sum * sum;
    }
  }
  return yr / std::sqrt(yy * rr);
}

void run(benchmark::State& state, bool is_query, Format x_format, Format w_format, int64_t m) {
  static ThreadPool pool(num_bench_threads());
  const Weights weights(w_format);
  ArenaScratch scratch(size_t{64} << 20);
  cpu::Context context{pool, scratch};
  const int64_t n = is_query ? kLatent : kNope;
  const int64_t k = is_query ? kNope : kLatent;
  const std::vector<float> x = activations(x_format, m * kHeads * k);
  std::vector<float> y(m * kHeads * n, std::nanf(""));
  int set = 0;
  for (auto _ : state) {
    scratch.reset();
    cpu::simd::batched_linear({.x = x.data(),
                               .y = y.data(),
                               .m = m,
                               .num_heads = kHeads,
                               .x_stride = kHeads * k,
                               .x_head_stride = k,
                               .y_stride = kHeads * n,
                               .y_head_stride = n,
                               .w = weights.matrix(is_query, set),
                               .head_stride = kHeadRows * kLatent,
                               .scale_head_stride = kHeadRows / kBlock * (kLatent / kBlock),
                               .transposed = is_query},
                              context);
    set = (set + 1) % kSets;
  }
  const auto elements = static_cast<double>(kHeads * n * k);
  report(state, elements * static_cast<double>(weight_element_bytes(weights.type)),
         2.0 * elements * static_cast<double>(m));
  state.counters["cosine"] = cosine(y, m, is_query);
}

const bool kRegistered = [] {
  for (const bool is_query : {true, false}) {
    for (const Format x : kFormats) {
      for (const Format w : kFormats) {
        for (const int64_t m : {1, 64}) {
          const std::string name = std::string("bmm/") + (is_query ? "absorb_query" : "expand_value") + "/" +
                                   format_name(x) + "/" + format_name(w) +
                                   (w == Format::kE5m2 ? "_in_f32" : "") + "/m" + std::to_string(m);
          benchmark::RegisterBenchmark(name.c_str(), run, is_query, x, w, m)->UseRealTime();
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace hadal::bench
