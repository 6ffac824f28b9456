#include "kernels/cpu/ops/indexer.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/ops/mla.h"
#include "tests/kernels/indexer_fixture.h"

namespace hadal {
namespace {

using cpu::Random;
using testing::AssertionFailure;
using testing::AssertionResult;
using testing::AssertionSuccess;

AssertionResult is_refused(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error&) {
    return AssertionSuccess();
  }
  return AssertionFailure() << "the call was accepted";
}

class IndexerOps : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 3;
  static constexpr int64_t kHeads = 16;

  Random random_{81};
  ThreadPool pool_{2};
  Arena arena_;
  ExecContext exec_{.device = {}, .pool = pool_, .workspace = arena_, .stream = {}};
  std::vector<float> table_ = std::vector<float>(300 * 64, 0.5F);
  std::vector<int32_t> positions_ = {7, 8, 9};
  std::vector<int32_t> seq_idx_ = {0, 0, 0};
  std::vector<int32_t> kv_len_ = {170, 171, 172};
};

// Runs a step of a model: keys are written, queries made, keys selected, and attention reads the selection.
TEST_F(IndexerOps, AStepOfBothKernelSetsSelectsTheSameKeys) {
  cpu::PagedCache cache({172}, {KvFormat::kBF16, KvScales::kPerToken, KvIndex::kE4M3}, random_);
  const std::vector<float> k = random_.normals(172 * 128), weight(128, 1.0F), bias(128, 0.1F),
                           raw_q = random_.normals(kTokens * kHeads * 128),
                           raw_w = random_.normals(kTokens * kHeads),
                           attention_q = random_.normals(kTokens * 2 * kKvRowDim);
  std::vector<int64_t> slots;
  std::vector<int32_t> key_positions;
  for (int s = 0; s < 172; ++s) {
    slots.push_back(cache.page_table[s / 64] * int64_t{64} + s % 64);
    key_positions.push_back(s);
  }
  std::vector<int32_t> first_selected;
  for (const KernelSet kernels : {KernelSet::kReference, KernelSet::kOptimised}) {
    exec_.kernels = kernels;
    std::vector<std::byte> index_pool(cache.num_pages * cache.layout.index_page_bytes(), std::byte{0xff});
    index_write(Tensor::of(k.data(), {172, 128}), {weight.data(), bias.data(), 1e-6F}, key_positions,
                table_.data(), slots, index_pool.data(), KvIndex::kE4M3, exec_);
    std::vector<float> q = raw_q, w = raw_w;
    const Tensor queries = Tensor::of(q.data(), {kTokens, kHeads, 128});
    const Tensor weights = Tensor::of(w.data(), {kTokens, kHeads});
    index_query(queries, weights, positions_, table_.data(), KvIndex::kE4M3, exec_);
    const PagedIndex keys = {index_pool.data(), KvIndex::kE4M3, cache.num_pages, cache.page_table.data(),
                             cache.stride};
    std::vector<int32_t> selected(kTokens * 50, 7), counts(kTokens);
    index_select(queries, weights, keys, seq_idx_, kv_len_, Tensor::of(selected.data(), {kTokens, 50}),
                 counts, exec_);
    std::vector<uint64_t> bits(kTokens * 3);
    index_select_bits(queries, weights, keys, seq_idx_, kv_len_, 50, bits, exec_);
    for (int64_t i = 0; i < kTokens; ++i) {
      EXPECT_EQ(counts[i], 50);
      std::vector<int32_t> from_bits;
      for (int s = 0; s < 172; ++s) {
        if ((bits[i * 3 + s / 64] >> (s % 64) & 1U) != 0) from_bits.push_back(static_cast<int32_t>(slots[s]));
      }
      EXPECT_EQ(from_bits, std::vector<int32_t>(selected.begin() + i * 50, selected.begin() + (i + 1) * 50));
    }
    std::vector<float> out(kTokens * 2 * kKvLatentDim);
    mla_decode_selected(Tensor::of(attention_q.data(), {kTokens, 2, kKvRowDim}), cache.view(),
                        Tensor::of(selected.data(), {kTokens, 50}), counts, 0.1F,
                        Tensor::of(out.data(), {kTokens, 2, kKvLatentDim}), exec_);
    for (float v : out) EXPECT_TRUE(std::isfinite(v));
    if (kernels == KernelSet::kReference) first_selected = selected;
    EXPECT_EQ(selected, first_selected);
  }
}

TEST_F(IndexerOps, MisshapenOperandsAreRefused) {
  std::vector<float> data(kTokens * 65 * 192);
  std::vector<int64_t> slots = {1, 2, 3};
  std::vector<std::byte> pool(64 * 576 * 4);
  const auto write = [&](int64_t dim, std::span<const int64_t> where, KvIndex layout) {
    return is_refused([&] {
      index_write(Tensor::of(data.data(), {kTokens, dim}), {data.data(), data.data()}, positions_,
                  table_.data(), where, pool.data(), layout, exec_);
    });
  };
  EXPECT_TRUE(write(127, slots, KvIndex::kF32));
  EXPECT_TRUE(write(128, std::span(slots).first(2), KvIndex::kF32));
  EXPECT_TRUE(write(128, slots, KvIndex::kNone));
  EXPECT_FALSE(write(128, slots, KvIndex::kF32));

  const auto query = [&](int64_t heads, int64_t weights, int64_t dim, KvIndex layout) {
    return is_refused([&] {
      index_query(Tensor::of(data.data(), {kTokens, heads, dim}), Tensor::of(data.data(), {kTokens, weights}),
                  positions_, table_.data(), layout, exec_);
    });
  };
  EXPECT_TRUE(query(16, 15, 128, KvIndex::kF32));
  EXPECT_TRUE(query(16, 16, 64, KvIndex::kF32));
  EXPECT_TRUE(query(65, 65, 128, KvIndex::kF32));
  EXPECT_TRUE(query(16, 16, 128, KvIndex::kNone));
  EXPECT_FALSE(query(16, 16, 128, KvIndex::kF32));

  cpu::IndexCache cache({172}, KvIndex::kF32, random_);
  const auto select = [&](int64_t topk, size_t tokens, KvIndex layout, size_t words) {
    PagedIndex keys = cache.view();
    keys.layout = layout;
    const Tensor q = Tensor::of(data.data(), {kTokens, 16, 128});
    const Tensor w = Tensor::of(data.data(), {kTokens, 16});
    const auto seq_idx = std::span(seq_idx_).first(tokens);
    const auto kv_len = std::span(kv_len_).first(tokens);
    if (words > 0) {
      std::vector<uint64_t> bits(words);
      return is_refused(
          [&] { index_select_bits(q, w, keys, seq_idx, kv_len, static_cast<int>(topk), bits, exec_); });
    }
    std::vector<int32_t> selected(kTokens * 4096), counts(tokens);
    const Tensor out = Tensor::of(selected.data(), {kTokens, topk});
    return is_refused([&] { index_select(q, w, keys, seq_idx, kv_len, out, counts, exec_); });
  };
  EXPECT_TRUE(select(0, 3, KvIndex::kF32, 0));
  EXPECT_TRUE(select(2049, 3, KvIndex::kF32, 0));
  EXPECT_TRUE(select(64, 2, KvIndex::kF32, 0));
  EXPECT_TRUE(select(64, 3, KvIndex::kNone, 0));
  EXPECT_FALSE(select(64, 3, KvIndex::kF32, 0));
  EXPECT_TRUE(select(64, 3, KvIndex::kF32, 10)) << "10 words are not rows of equal length";
  EXPECT_TRUE(select(64, 3, KvIndex::kF32, 6)) << "two words do not hold 172 bits";
  EXPECT_FALSE(select(64, 3, KvIndex::kF32, 9));
}

TEST_F(IndexerOps, SelectionsThatDoNotFitAttentionAreRefused) {
  std::vector<float> data(256 * 512);
  cpu::PagedCache cache({172}, {KvFormat::kBF16, KvScales::kPerToken}, random_);
  std::vector<int32_t> selected(kTokens * 4, 0);
  const auto decode = [&](int64_t rows, int32_t last_count) {
    const std::vector<int32_t> counts = {4, 0, last_count};
    std::vector<float> out(kTokens * kKvLatentDim);
    return is_refused([&] {
      mla_decode_selected(Tensor::of(data.data(), {kTokens, 1, kKvRowDim}), cache.view(),
                          Tensor::of(selected.data(), {rows, 4}), counts, 1.0F,
                          Tensor::of(out.data(), {kTokens, 1, kKvLatentDim}), exec_);
    });
  };
  EXPECT_TRUE(decode(2, 4));
  EXPECT_TRUE(decode(3, 5));
  EXPECT_FALSE(decode(3, 4));

  const auto prefill = [&](size_t words) {
    const std::vector<uint64_t> bits(words, 1);
    const PrefillSegment segment = {.seq_idx = 0, .q_begin = 0, .q_len = 3, .kv_len = 172};
    const MatrixWeight kv_b{
        .data = data.data(), .type = WeightType::kF32, .n = 256, .k = 512, .row_stride = 512};
    std::vector<float> out(kTokens * 128);
    return is_refused([&] {
      mla_prefill_selected(Tensor::of(data.data(), {kTokens, 1, 192}), cache.view(), {&segment, 1}, kv_b,
                           1.0F, bits, Tensor::of(out.data(), {kTokens, 1, 128}), exec_);
    });
  };
  EXPECT_TRUE(prefill(8));
  EXPECT_TRUE(prefill(6));
  EXPECT_FALSE(prefill(9));
}

}  // namespace
}  // namespace hadal
