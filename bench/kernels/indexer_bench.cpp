// Measures V3.2's indexer in two ways: scores and selection together as a step runs them, with the products
// of the scores as a share of the peak of fused multiply-adds; and the selection of one token alone, from
// scores that are already computed.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "bench/kernels/ceilings.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/kernels/indexer_bench.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/index_choose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {

void bench_choose(const IndexSelectParams& p, int32_t* scores) {
  choose_best(p, 0, scores);
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(bench_choose);

namespace {

using bench::ArenaScratch;
using bench::num_bench_threads;

constexpr int kTopk = 2048;

std::vector<float> random_values(int64_t count, float scale) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0F, scale);
  std::vector<float> values(count);
  for (float& v : values) v = normal(engine);
  return values;
}

// Holds the index keys of sequences of `context` tokens in consecutive pages, and their queries' inputs.
struct Index {
  KvLayout layout;
  int64_t pages;
  std::vector<int32_t> page_table;
  std::vector<std::byte> pool;

  Index(int64_t sequences, int64_t context, KvIndex format)
      : layout{.index = format}, pages((context + kPageSize - 1) / kPageSize), page_table(sequences * pages) {
    std::iota(page_table.begin(), page_table.end(), 0);
    pool.resize(page_table.size() * layout.index_page_bytes());
    const auto rows = random_values(kPageSize * kIndexHeadDim + 64, 1.0F);
    const std::vector<float> weight(kIndexHeadDim, 1.0F), bias(kIndexHeadDim, 0.0F), table(64, 0.7F);
    const std::vector<int32_t> positions(kPageSize, 0);
    std::vector<int64_t> slots(kPageSize);
    ThreadPool threads(1);
    ArenaScratch scratch(64);
    Context ctx{threads, scratch};
    for (size_t page = 0; page < page_table.size(); ++page) {
      std::iota(slots.begin(), slots.end(), static_cast<int64_t>(page) * kPageSize);
      index_write({.k = rows.data() + page % 64,  // so that pages differ
                   .k_stride = kIndexHeadDim,
                   .m = kPageSize,
                   .norm_weight = weight.data(),
                   .norm_bias = bias.data(),
                   .positions = positions.data(),
                   .cos_sin = table.data(),
                   .slots = slots.data(),
                   .pool = pool.data(),
                   .layout = format},
                  ctx);
    }
  }
  PagedIndex view() {
    return {.pool = pool.data(),
            .layout = layout.index,
            .num_pages = static_cast<int64_t>(page_table.size()),
            .page_table = page_table.data(),
            .page_table_stride = pages};
  }
};

// The arguments are heads, tokens, sequences (the tokens are the last ones of each), context and KvIndex.
// With one sequence and several tokens this is a chunk of a prompt, else a decode step.
void BM_IndexSelect(benchmark::State& state) {
  const auto heads = static_cast<int>(state.range(0));
  const int64_t tokens = state.range(1);
  const int64_t sequences = state.range(2);
  const int64_t context = state.range(3);
  Index index(sequences, context, static_cast<KvIndex>(state.range(4)));
  const auto q = random_values(tokens * heads * kIndexHeadDim, 3.0F);
  const auto w = random_values(tokens * heads, 0.01F);
  std::vector<int32_t> seq_idx, kv_len;
  double pairs = 0.0;
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t each = tokens / sequences;
    seq_idx.push_back(static_cast<int32_t>(i / each));
    kv_len.push_back(static_cast<int32_t>(context - each + i % each + 1));
    pairs += kv_len.back();
  }
  std::vector<int32_t> slots(tokens * kTopk), counts(tokens);
  ThreadPool threads(num_bench_threads());
  ArenaScratch scratch(size_t{64} << 20);
  Context ctx{threads, scratch};
  for (auto _ : state) {
    scratch.reset();
    index_select({.q = q.data(),
                  .w = w.data(),
                  .num_tokens = tokens,
                  .num_heads = heads,
                  .topk = kTopk,
                  .keys = index.view(),
                  .seq_idx = seq_idx.data(),
                  .kv_len = kv_len.data(),
                  .slots = slots.data(),
                  .counts = counts.data()},
                 ctx);
  }
  bench::report(state, static_cast<double>(sequences * context * index.layout.index_row_bytes()),
                2.0 * pairs * heads * kIndexHeadDim);
}
BENCHMARK(BM_IndexSelect)
    ->ArgNames({"heads", "tokens", "seqs", "context", "format"})
    ->Args({64, 1, 1, 8192, 2})
    ->Args({64, 4, 4, 8192, 2})
    ->Args({64, 64, 1, 8192, 2})
    ->Args({64, 1, 1, 163840, 2})
    ->Args({64, 1, 1, 8192, 1})
    ->Args({64, 64, 1, 8192, 1})
    ->Args({32, 64, 1, 8192, 2})
    ->Args({16, 64, 1, 8192, 2})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

// The arguments are the number of scores and how they are distributed: 0 is normal, 1 all equal, and
// with 2 half of them are 0.
void BM_IndexChoose(benchmark::State& state) {
  const int64_t count = state.range(0);
  auto values = random_values(count, 1.0F);
  for (int64_t i = 0; i < count; ++i) {
    if (state.range(1) == 1 || (state.range(1) == 2 && i % 2 == 0)) values[i] = 0.0F;
  }
  std::vector<int32_t> scores(count + 64);
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<int32_t>(values[i]);
    scores[i] = bits < 0 ? bits ^ 0x7fffffff : bits;
  }
  std::vector<int32_t> page_table((count + 63) / 64), slots(kTopk);
  std::iota(page_table.begin(), page_table.end(), 0);
  const int32_t seq_idx = 0;
  const auto kv_len = static_cast<int32_t>(count);
  int32_t chosen = 0;
  const IndexSelectParams p = {.topk = kTopk,
                               .keys = {.page_table = page_table.data()},
                               .seq_idx = &seq_idx,
                               .kv_len = &kv_len,
                               .slots = slots.data(),
                               .counts = &chosen};
  for (auto _ : state) {
    HWY_DYNAMIC_DISPATCH(bench_choose)(p, scores.data());
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_IndexChoose)
    ->ArgNames({"keys", "ties"})
    ->Args({8192, 0})
    ->Args({8192, 1})
    ->Args({8192, 2})
    ->Args({163840, 0})
    ->Unit(benchmark::kMicrosecond);

// The arguments are tokens and heads.
void BM_IndexQuery(benchmark::State& state) {
  const int64_t m = state.range(0);
  const auto heads = static_cast<int>(state.range(1));
  auto q = random_values(m * heads * kIndexHeadDim, 1.0F);
  auto w = random_values(m * heads, 1.0F);
  const std::vector<float> table(64, 0.5F);
  const std::vector<int32_t> positions(m, 0);
  ThreadPool threads(num_bench_threads());
  ArenaScratch scratch(64);
  Context ctx{threads, scratch};
  for (auto _ : state) {
    index_query({.q = q.data(),
                 .w = w.data(),
                 .m = m,
                 .num_heads = heads,
                 .positions = positions.data(),
                 .cos_sin = table.data(),
                 .layout = KvIndex::kE4M3},
                ctx);
  }
}
BENCHMARK(BM_IndexQuery)->ArgNames({"m", "heads"})->Args({1, 64})->Args({512, 64})->UseRealTime();

}  // namespace
}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
