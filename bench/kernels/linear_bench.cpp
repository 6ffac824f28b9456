// Measures linear, batched_linear and mlp at the shapes of DeepSeek-V2-Lite and of a small model; weights
// rotate through a region larger than the caches. Names are op/what/type/m.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "bench/kernels/ceilings.h"

namespace hadal::bench {
namespace {

struct Shape {
  const char* name;
  int64_t n, k;
};

constexpr Shape kShapes[] = {{"q", 3072, 2048},  {"kv_a", 576, 2048},       {"o", 2048, 2048},
                             {"gate", 64, 2048}, {"dense_up", 10944, 2048}, {"head", 102400, 2048},
                             {"small", 512, 512}};
constexpr size_t kRingBytes = size_t{768} << 20;

WeightRing& ring(WeightType type) {
  static WeightRing bf16_ring(kRingBytes, false);
  static WeightRing code_ring(kRingBytes, true);
  return weight_element_bytes(type) == 1 ? code_ring : bf16_ring;
}

MatrixWeight next_weight(WeightType type, int64_t n, int64_t k) {
  static const std::vector<float> scales(1 << 20, 0.01F);
  return {.data = ring(type).next(n * k * weight_element_bytes(type)),
          .type = type,
          .n = n,
          .k = k,
          .row_stride = k,
          .scales = weight_element_bytes(type) == 1 ? scales.data() : nullptr,
          .scale_stride = (k + 127) / 128};
}

ThreadPool& pool() {
  static ThreadPool shared(num_bench_threads());
  return shared;
}

void run_linear(benchmark::State& state, Shape shape, WeightType type, int64_t m) {
  ArenaScratch scratch(size_t{256} << 20);
  cpu::Context context{pool(), scratch};
  ring(type);  // made before the clock starts
  const std::vector<float> x(m * shape.k, 0.5F);
  std::vector<float> y(m * shape.n);
  for (auto _ : state) {
    scratch.reset();
    cpu::simd::linear({.x = x.data(),
                       .y = y.data(),
                       .m = m,
                       .x_stride = shape.k,
                       .y_stride = shape.n,
                       .w = next_weight(type, shape.n, shape.k)},
                      context);
  }
  const double weights = static_cast<double>(shape.n) * static_cast<double>(shape.k);
  report(state, weights * static_cast<double>(weight_element_bytes(type)),
         2 * weights * static_cast<double>(m));
}

void run_mlp(benchmark::State& state, int64_t hidden, int64_t intermediate, WeightType type, int64_t m) {
  ArenaScratch scratch(size_t{256} << 20);
  cpu::Context context{pool(), scratch};
  ring(type);  // made before the clock starts
  const std::vector<float> x(m * hidden, 0.01F);
  std::vector<float> y(m * hidden);
  for (auto _ : state) {
    scratch.reset();
    const MlpWeights weights{next_weight(type, intermediate, hidden), next_weight(type, intermediate, hidden),
                             next_weight(type, hidden, intermediate)};
    cpu::simd::mlp({.x = x.data(), .y = y.data(), .m = m, .weights = weights}, context);
  }
  const double weights = 3.0 * static_cast<double>(hidden) * static_cast<double>(intermediate);
  report(state, weights * static_cast<double>(weight_element_bytes(type)),
         2 * weights * static_cast<double>(m));
}

// Measures the absorbed matrices of V2-Lite: 16 heads, W_UK [128, 512] used transposed, W_UV [128, 512] as
// stored.
void run_absorbed(benchmark::State& state, bool transposed, WeightType type, int64_t m) {
  constexpr int64_t kHeads = 16;
  ArenaScratch scratch(size_t{64} << 20);
  cpu::Context context{pool(), scratch};
  ring(type);  // made before the clock starts
  const int64_t n = transposed ? 512 : 128;
  const int64_t k = transposed ? 128 : 512;
  const std::vector<float> x(m * kHeads * k, 0.5F);
  std::vector<float> y(m * kHeads * n);
  for (auto _ : state) {
    scratch.reset();
    MatrixWeight w = next_weight(type, kHeads * 256, 512);
    w.n = n;
    w.k = k;
    cpu::simd::batched_linear({.x = x.data(),
                               .y = y.data(),
                               .m = m,
                               .num_heads = kHeads,
                               .x_stride = kHeads * k,
                               .x_head_stride = k,
                               .y_stride = kHeads * n,
                               .y_head_stride = n,
                               .w = w,
                               .head_stride = 256 * 512,
                               .scale_head_stride = 8,
                               .transposed = transposed},
                              context);
  }
  const double weights = static_cast<double>(kHeads * n * k);
  report(state, weights * static_cast<double>(weight_element_bytes(type)),
         2 * weights * static_cast<double>(m));
}

const bool kRegistered = [] {
  const auto name = [](const std::string& what, WeightType type, int64_t m) {
    return what + "/" + type_name(type) + "/m" + std::to_string(m);
  };
  for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Block, WeightType::kInt8Block,
                                WeightType::kFp8Channel, WeightType::kInt8Channel, WeightType::kF32}) {
    for (const Shape& s : kShapes) {
      for (const int64_t m : {1, 2, 4, 8, 16, 48, 64, 128, 512}) {
        if (s.n * m > 102400 * 16) continue;
        benchmark::RegisterBenchmark(name(std::string("linear/") + s.name, type, m).c_str(), run_linear, s,
                                     type, m)
            ->UseRealTime();
      }
    }
    for (const int64_t m : {1, 4, 16, 64, 512}) {
      benchmark::RegisterBenchmark(name("mlp/shared", type, m).c_str(), run_mlp, 2048, 2816, type, m)
          ->UseRealTime();
      benchmark::RegisterBenchmark(name("mlp/small", type, m).c_str(), run_mlp, 512, 1024, type, m)
          ->UseRealTime();
    }
    if (is_channel_scaled(type)) continue;
    for (const int64_t m : {1, 4, 16}) {
      benchmark::RegisterBenchmark(name("absorbed/w_uk", type, m).c_str(), run_absorbed, true, type, m)
          ->UseRealTime();
      benchmark::RegisterBenchmark(name("absorbed/w_uv", type, m).c_str(), run_absorbed, false, type, m)
          ->UseRealTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace hadal::bench
