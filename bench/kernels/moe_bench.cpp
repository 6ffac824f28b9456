// Measures a mixture-of-experts layer of DeepSeek-V2-Lite (64 experts of 1408, top 6, shared 2816) and of a
// small model (16 experts of 256, top 4, hidden 512) with random routing. The floor counts the bytes of the
// experts that were hit, once each.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "bench/kernels/ceilings.h"

namespace hadal::bench {
namespace {

struct Mixture {
  const char* name;
  int num_experts, top_k;
  int64_t hidden, intermediate, shared;
};

constexpr Mixture kMixtures[] = {{"v2_lite", 64, 6, 2048, 1408, 2816}, {"small", 16, 4, 512, 256, 0}};

void run_moe(benchmark::State& state, Mixture mix, WeightType type, int64_t m) {
  static ThreadPool pool(num_bench_threads());
  const int64_t bytes = weight_element_bytes(type);
  const int64_t expert_weights = 3 * mix.hidden * mix.intermediate;
  const int64_t shared_weights = 3 * mix.hidden * mix.shared;
  // There are several layers, so that a layer is never in a cache when it is used again.
  const size_t layer_bytes = (mix.num_experts * expert_weights + shared_weights) * bytes + (1 << 16);
  const int num_layers = static_cast<int>(std::max<size_t>(1, (size_t{600} << 20) / layer_bytes));
  WeightRing ring(layer_bytes * num_layers + (1 << 20), bytes == 1);
  static const std::vector<float> scales(1 << 16, 0.01F);
  const auto weight = [&](int64_t n, int64_t k) {
    return MatrixWeight{.data = ring.next(n * k * bytes),
                        .type = type,
                        .n = n,
                        .k = k,
                        .row_stride = k,
                        .scales = bytes == 1 ? scales.data() : nullptr,
                        .scale_stride = (k + 127) / 128};
  };
  const auto mlp = [&](int64_t intermediate) {
    return MlpWeights{weight(intermediate, mix.hidden), weight(intermediate, mix.hidden),
                      weight(mix.hidden, intermediate)};
  };
  std::vector<std::vector<MlpWeights>> layers(num_layers);
  std::vector<MlpWeights> shared(num_layers);
  for (int l = 0; l < num_layers; ++l) {
    for (int e = 0; e < mix.num_experts; ++e) layers[l].push_back(mlp(mix.intermediate));
    if (mix.shared > 0) shared[l] = mlp(mix.shared);
  }
  // The bench cycles through a few routings.
  constexpr int kNumRoutings = 16;
  std::mt19937 rng(1);
  std::vector<std::vector<int32_t>> ids(kNumRoutings);
  double hit = 0;
  for (auto& routing : ids) {
    std::vector<int32_t> all(mix.num_experts);
    std::vector<bool> used(mix.num_experts);
    for (int i = 0; i < mix.num_experts; ++i) all[i] = i;
    for (int64_t t = 0; t < m; ++t) {
      std::shuffle(all.begin(), all.end(), rng);
      for (int j = 0; j < mix.top_k; ++j) {
        routing.push_back(all[j]);
        used[all[j]] = true;
      }
    }
    hit += static_cast<double>(std::count(used.begin(), used.end(), true)) / kNumRoutings;
  }
  const std::vector<float> topk_weights(m * mix.top_k, 0.1F);
  const std::vector<float> x(m * mix.hidden, 0.01F);
  std::vector<float> y(m * mix.hidden);
  ArenaScratch scratch(size_t{512} << 20);
  cpu::Context context{pool, scratch};
  size_t turn = 0;
  const auto step = [&] {
    scratch.reset();
    const size_t layer = turn % num_layers;
    cpu::simd::moe({.x = x.data(),
                    .y = y.data(),
                    .m = m,
                    .hidden = mix.hidden,
                    .topk_ids = ids[turn % kNumRoutings].data(),
                    .topk_weights = topk_weights.data(),
                    .top_k = mix.top_k,
                    .num_experts = mix.num_experts,
                    .experts = layers[layer],
                    .shared = mix.shared > 0 ? &shared[layer] : nullptr},
                   context);
    ++turn;
  };
  step();  // touches the pages of the scratch memory
  for (auto _ : state) step();
  report(state,
         (hit * static_cast<double>(expert_weights) + static_cast<double>(shared_weights)) *
             static_cast<double>(bytes),
         2.0 * static_cast<double>(m) * static_cast<double>(mix.top_k * expert_weights + shared_weights));
}

const bool kRegistered = [] {
  for (const Mixture& mix : kMixtures) {
    for (const WeightType type : {WeightType::kBF16, WeightType::kFp8Block, WeightType::kInt8Block,
                                  WeightType::kFp8Channel, WeightType::kInt8Channel}) {
      for (const int64_t m : {1, 2, 4, 8, 16, 64, 512}) {
        const std::string name =
            std::string("moe/") + mix.name + "/" + type_name(type) + "/m" + std::to_string(m);
        benchmark::RegisterBenchmark(name.c_str(), run_moe, mix, type, m)->UseRealTime();
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace hadal::bench
