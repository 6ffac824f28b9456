// Measures attention and the row-wise ops at the dimensions of the models. Decode cycles through the caches
// of as many layers as the model has, so that records come from memory as in a real step. The counted
// operations are the products of attention, which in prefill include the expansion of keys and values. The
// counted bytes are those of the records.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <random>
#include <vector>

#include "bench/kernels/ceilings.h"
#include "kernels/cpu/cpu_kernels.h"

namespace hadal::cpu {

namespace {

using bench::ArenaScratch;
using bench::num_bench_threads;

std::vector<float> random_values(int64_t count, float scale) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(engine);
  return values;
}

// Holds one pool per layer, with every sequence of `context` tokens in consecutive pages.
struct Caches {
  std::vector<std::vector<std::byte>> pools;
  std::vector<int32_t> page_table;
  KvLayout layout;
  int64_t pages = 0;

  Caches(int layers, int64_t sequences, int64_t context, KvFormat format) {
    layout.format = format;
    pages = (context + kPageSize - 1) / kPageSize;
    page_table.resize(sequences * pages);
    std::iota(page_table.begin(), page_table.end(), 0);
    const auto rows = random_values(kPageSize * kKvRowDim, 0.5F);
    std::vector<int64_t> slots(kPageSize);
    ThreadPool pool(1);
    ArenaScratch scratch(64);
    Context ctx{pool, scratch};
    for (int layer = 0; layer < layers; ++layer) {
      pools.emplace_back(page_table.size() * layout.page_bytes());
      for (size_t page = 0; page < page_table.size(); ++page) {
        std::iota(slots.begin(), slots.end(), static_cast<int64_t>(page) * kPageSize);
        simd::kv_write({.latent = rows.data(),
                        .k_rope = rows.data() + kKvLatentDim,
                        .latent_stride = kKvRowDim,
                        .k_rope_stride = kKvRowDim,
                        .m = kPageSize,
                        .slots = slots.data(),
                        .pool = pools.back().data(),
                        .layout = layout},
                       ctx);
      }
    }
  }
  PagedKv view(int layer) {
    return {.pool = pools[layer].data(),
            .layout = layout,
            .num_pages = static_cast<int64_t>(page_table.size()),
            .page_table = page_table.data(),
            .page_table_stride = pages};
  }
};

// Measures a pass over all layers. The arguments are heads, layers, sequences, context and format.
void BM_MlaDecode(benchmark::State& state) {
  const auto heads = static_cast<int>(state.range(0));
  const auto layers = static_cast<int>(state.range(1));
  const int64_t sequences = state.range(2);
  const int64_t context = state.range(3);
  Caches caches(layers, sequences, context, static_cast<KvFormat>(state.range(4)));
  const auto q = random_values(sequences * heads * kKvRowDim, 0.5F);
  std::vector<float> out(sequences * heads * kKvLatentDim);
  std::vector<int32_t> seq_idx(sequences);
  std::iota(seq_idx.begin(), seq_idx.end(), 0);
  const std::vector<int32_t> kv_len(sequences, static_cast<int32_t>(context));
  ThreadPool pool(num_bench_threads());
  ArenaScratch scratch(size_t{256} << 20);
  Context ctx{pool, scratch};
  for (auto _ : state) {
    for (int layer = 0; layer < layers; ++layer) {
      scratch.reset();
      simd::mla_decode({.q = q.data(),
                        .out = out.data(),
                        .num_tokens = sequences,
                        .num_heads = heads,
                        .kv = caches.view(layer),
                        .seq_idx = seq_idx.data(),
                        .kv_len = kv_len.data(),
                        .softmax_scale = 0.1F},
                       ctx);
    }
  }
  const double flops =
      2.0 * static_cast<double>(layers * sequences * context * heads) * (kKvRowDim + kKvLatentDim);
  bench::report(state, static_cast<double>(layers * sequences * context * caches.layout.row_bytes()), flops);
}
BENCHMARK(BM_MlaDecode)
    ->ArgNames({"heads", "layers", "seqs", "context", "format"})
    ->Args({16, 9, 1, 1024, 2})
    ->Args({16, 9, 1, 1050, 2})
    ->Args({16, 9, 1, 64, 2})
    ->Args({16, 9, 16, 1024, 2})
    ->Args({8, 8, 1, 1024, 2})
    ->Args({8, 8, 1, 1050, 2})
    ->Args({8, 8, 16, 1024, 2})
    ->Args({128, 2, 1, 1024, 2})
    ->Args({128, 2, 1, 2048, 2})
    ->Args({16, 9, 1, 1024, 0})
    ->Args({16, 9, 1, 1024, 1})
    ->Args({16, 9, 1, 1024, 3})
    ->Args({16, 9, 1, 1024, 4})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// Measures the same when 2048 of `context` keys are selected at random. The arguments are heads, layers,
// sequences, context and format.
void BM_MlaDecodeSelected(benchmark::State& state) {
  constexpr int64_t kSelected = 2048;
  const auto heads = static_cast<int>(state.range(0));
  const auto layers = static_cast<int>(state.range(1));
  const int64_t sequences = state.range(2);
  const int64_t context = state.range(3);
  Caches caches(layers, sequences, context, static_cast<KvFormat>(state.range(4)));
  const auto q = random_values(sequences * heads * kKvRowDim, 0.5F);
  std::vector<float> out(sequences * heads * kKvLatentDim);
  std::vector<int32_t> selected;
  std::mt19937 engine(1);
  for (int64_t i = 0; i < sequences; ++i) {
    std::vector<int32_t> slots(caches.pages * kPageSize);  // of consecutive pages
    std::iota(slots.begin(), slots.end(), static_cast<int32_t>(i * caches.pages * kPageSize));
    std::sample(slots.begin(), slots.end(), std::back_inserter(selected), kSelected, engine);
  }
  const std::vector<int32_t> counts(sequences, kSelected);
  ThreadPool pool(num_bench_threads());
  ArenaScratch scratch(size_t{256} << 20);
  Context ctx{pool, scratch};
  for (auto _ : state) {
    for (int layer = 0; layer < layers; ++layer) {
      scratch.reset();
      simd::mla_decode({.q = q.data(),
                        .out = out.data(),
                        .num_tokens = sequences,
                        .num_heads = heads,
                        .kv = caches.view(layer),
                        .softmax_scale = 0.1F,
                        .selected = selected.data(),
                        .selected_stride = kSelected,
                        .counts = counts.data()},
                       ctx);
    }
  }
  const double keys = static_cast<double>(layers * sequences * kSelected);
  bench::report(state, keys * caches.layout.row_bytes(), 2.0 * keys * heads * (kKvRowDim + kKvLatentDim));
}
BENCHMARK(BM_MlaDecodeSelected)
    ->ArgNames({"heads", "layers", "seqs", "context", "format"})
    ->Args({16, 4, 1, 8192, 2})
    ->Args({128, 2, 1, 8192, 2})
    ->Args({128, 2, 1, 8192, 3})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// Measures one layer. The arguments are heads, new tokens and keys in total.
void BM_MlaPrefill(benchmark::State& state) {
  const auto heads = static_cast<int>(state.range(0));
  const int64_t q_len = state.range(1);
  const int64_t kv_len = state.range(2);
  Caches caches(1, 1, kv_len, KvFormat::kBF16);
  const auto q = random_values(q_len * heads * 192, 0.5F);
  std::vector<float> out(q_len * heads * 128);
  std::vector<bf16> weights;
  for (float v : random_values(heads * int64_t{256} * 512, 0.05F)) weights.push_back(to_bf16(v));
  const PrefillSegment segment = {0, 0, static_cast<int32_t>(q_len), static_cast<int32_t>(kv_len)};
  ThreadPool pool(num_bench_threads());
  ArenaScratch scratch(size_t{256} << 20);
  Context ctx{pool, scratch};
  for (auto _ : state) {
    scratch.reset();
    simd::mla_prefill({.q = q.data(),
                       .out = out.data(),
                       .num_heads = heads,
                       .kv = caches.view(0),
                       .segments = &segment,
                       .num_segments = 1,
                       .kv_b = {.data = weights.data(),
                                .type = WeightType::kBF16,
                                .n = heads * int64_t{256},
                                .k = 512,
                                .row_stride = 512},
                       .softmax_scale = 0.1F},
                      ctx);
  }
  const double pairs = static_cast<double>(q_len) * (static_cast<double>(kv_len) - (q_len - 1) / 2.0);
  const double flops = 2.0 * heads * (static_cast<double>(kv_len) * 256 * 512 + pairs * 320);
  bench::report(state, 0.0, flops);
}
BENCHMARK(BM_MlaPrefill)
    ->ArgNames({"heads", "q", "kv"})
    ->Args({16, 512, 512})
    ->Args({8, 512, 512})
    ->Args({8, 64, 64})
    ->Args({16, 1024, 4096})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// Measures the row-wise ops of one step over m tokens.
void BM_RmsNorm(benchmark::State& state) {
  const int64_t m = state.range(0);
  const int64_t n = state.range(1);
  const auto x = random_values(m * n, 1.0F);
  auto residual = x;
  const auto weight = random_values(n, 1.0F);
  std::vector<float> y(m * n);
  ThreadPool pool(num_bench_threads());
  ArenaScratch scratch(64);
  Context ctx{pool, scratch};
  for (auto _ : state) {
    simd::rms_norm({.x = x.data(),
                    .residual = residual.data(),
                    .y = y.data(),
                    .weight = weight.data(),
                    .m = m,
                    .n = n,
                    .x_stride = n,
                    .y_stride = n},
                   ctx);
  }
}
BENCHMARK(BM_RmsNorm)
    ->ArgNames({"m", "n"})
    ->Args({1, 2048})
    ->Args({16, 2048})
    ->Args({512, 2048})
    ->UseRealTime();

void BM_Rope(benchmark::State& state) {
  const int64_t m = state.range(0);
  const int64_t heads = state.range(1);
  auto x = random_values(m * heads * 192, 1.0F);
  const auto cos_sin = random_values(m * 64, 0.5F);
  std::vector<int32_t> positions(m);
  std::iota(positions.begin(), positions.end(), 0);
  ThreadPool pool(num_bench_threads());
  ArenaScratch scratch(64);
  Context ctx{pool, scratch};
  for (auto _ : state) {
    simd::rope({.x = x.data() + 128,
                .m = m,
                .num_heads = heads,
                .row_stride = heads * 192,
                .head_stride = 192,
                .positions = positions.data(),
                .cos_sin = cos_sin.data()},
               ctx);
  }
}
BENCHMARK(BM_Rope)->ArgNames({"m", "heads"})->Args({1, 16})->Args({512, 16})->UseRealTime();

void BM_Gate(benchmark::State& state) {
  const int64_t m = state.range(0);
  const auto experts = static_cast<int>(state.range(1));
  const bool grouped = state.range(2) != 0;
  const auto logits = random_values(m * experts, 1.0F);
  const std::vector<float> bias(experts, 0.1F);
  std::vector<int32_t> ids(m * 8);
  std::vector<float> weights(m * 8);
  ThreadPool pool(num_bench_threads());
  ArenaScratch scratch(64);
  Context ctx{pool, scratch};
  for (auto _ : state) {
    simd::gate({.logits = logits.data(),
                .bias = bias.data(),
                .topk_ids = ids.data(),
                .topk_weights = weights.data(),
                .m = m,
                .num_experts = experts,
                .top_k = grouped ? 8 : 6,
                .num_groups = grouped ? 8 : 1,
                .topk_groups = grouped ? 4 : 1,
                .kind = grouped ? GateKind::kSigmoidNoAuxTc : GateKind::kSoftmaxGreedy},
               ctx);
  }
}
BENCHMARK(BM_Gate)
    ->ArgNames({"m", "experts", "grouped"})
    ->Args({1, 64, 0})
    ->Args({512, 64, 0})
    ->Args({1, 256, 1})
    ->Args({512, 256, 1})
    ->UseRealTime();

void BM_KvWrite(benchmark::State& state) {
  const int64_t m = state.range(0);
  const KvLayout layout = {static_cast<KvFormat>(state.range(1)), KvScales::kPerToken};
  const auto rows = random_values(m * kKvRowDim, 1.0F);
  std::vector<int64_t> slots(m);
  std::iota(slots.begin(), slots.end(), 0);
  std::vector<std::byte> memory((m / kPageSize + 1) * layout.page_bytes());
  ThreadPool pool(num_bench_threads());
  ArenaScratch scratch(64);
  Context ctx{pool, scratch};
  for (auto _ : state) {
    simd::kv_write({.latent = rows.data(),
                    .k_rope = rows.data() + kKvLatentDim,
                    .latent_stride = kKvRowDim,
                    .k_rope_stride = kKvRowDim,
                    .m = m,
                    .slots = slots.data(),
                    .pool = memory.data(),
                    .layout = layout},
                   ctx);
  }
}
BENCHMARK(BM_KvWrite)
    ->ArgNames({"m", "format"})
    ->Args({1, 2})
    ->Args({512, 2})
    ->Args({1, 3})
    ->Args({512, 3})
    ->UseRealTime();

}  // namespace
}  // namespace hadal::cpu
