// Compares the codes and scales that ranks would hold on GPUs with those of one GPU. All are in host memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/cuda/weights/placed_weights.h"
#include "tests/model/shard_models.h"

namespace hadal::testing {

// Held is what the ranks of a split have in host memory.
struct Held {
  std::vector<std::unique_ptr<HostBlock>> blocks;
  std::vector<DeviceWeights> ranks;
};

inline Held hold(const ModelConfig& config, const WeightLoadOptions& options, ModelSplit split) {
  const WeightSources sources = weight_sources("", config, options).value();
  const RopeRows rope(config);
  Held held;
  for (int64_t rank = 0; rank < split.tp; ++rank) {
    const auto plan_at = [&](std::byte* base) {
      return plan_device_weights(config, sources.map, rope.source, options.quantization, base,
                                 options.compute_dtype, split, rank);
    };
    const auto bytes = static_cast<size_t>(plan_at(nullptr).weights.bytes);
    held.blocks.push_back(std::make_unique<HostBlock>(bytes));
    DeviceWeightPlan plan = plan_at(held.blocks.back()->data());
    expect_separate_places(plan, held.blocks.back()->data());
    run_on_host(plan);
    held.ranks.push_back(std::move(plan.weights));
  }
  return held;
}

// Place is the upper left corner of a window.
struct Place {
  int64_t row = 0, col = 0;
};

inline float scale_at(const MatrixWeight& w, int64_t row, int64_t col) {
  if (is_block_scaled(w.type)) return w.scales[row / 128 * w.scale_stride + col / 128];
  return is_channel_scaled(w.type) ? w.scales[row] : 1.0F;
}

// Expects two windows of [rows, cols] to have the same values, code by code and scale by scale.
inline void expect_same_window(const MatrixWeight& a, Place at_a, const MatrixWeight& b, Place at_b,
                               int64_t rows, int64_t cols) {
  ASSERT_EQ(a.type, b.type);
  ASSERT_TRUE(at_a.row + rows <= a.n && at_a.col + cols <= a.k);
  ASSERT_TRUE(at_b.row + rows <= b.n && at_b.col + cols <= b.k);
  const int64_t size = weight_element_bytes(a.type);
  const auto row_of = [&](const MatrixWeight& w, Place at, int64_t i) {
    return static_cast<const std::byte*>(w.data) + ((at.row + i) * w.row_stride + at.col) * size;
  };
  for (int64_t i = 0; i < rows; ++i) {
    ASSERT_EQ(std::memcmp(row_of(a, at_a, i), row_of(b, at_b, i), static_cast<size_t>(cols * size)), 0)
        << "row " << i;
    for (int64_t j = 0; has_scales(a.type) && j < cols; j += is_block_scaled(a.type) ? 1 : cols) {
      ASSERT_EQ(scale_at(a, at_a.row + i, at_a.col + j), scale_at(b, at_b.row + i, at_b.col + j))
          << i << "," << j;
    }
  }
}

inline void expect_same(const MatrixWeight& a, const MatrixWeight& b) {
  ASSERT_EQ(a.n, b.n);
  ASSERT_EQ(a.k, b.k);
  expect_same_window(a, {}, b, {}, a.n, a.k);
}

inline void expect_same_floats(const float* a, const float* b, int64_t count) {
  ASSERT_EQ(a == nullptr, b == nullptr);
  if (a == nullptr) return;
  ASSERT_EQ(std::memcmp(a, b, static_cast<size_t>(count) * 4), 0);
}

// Expects a part of an MLP to be the whole one from intermediate index `at` on. The parts are cut at
// multiples of 128, so their padded sizes add up as well.
inline void expect_mlp_part(const DeviceMlp& part, const DeviceMlp& whole, int64_t at) {
  if (part.intermediate == 0) {
    EXPECT_EQ(part.gate_up.data, nullptr);
    EXPECT_EQ(part.down.data, nullptr);
    return;
  }
  const int64_t width = part.intermediate;
  const int64_t hidden = whole.gate_up.k;
  expect_same_window(part.gate_up, {}, whole.gate_up, {at, 0}, width, hidden);
  expect_same_window(part.gate_up, {width, 0}, whole.gate_up, {whole.intermediate + at, 0}, width, hidden);
  expect_same_window(part.down, {}, whole.down, {0, at}, hidden, width);
}

// Returns expert `index` of those that the rank holds, the shared ones last.
inline DeviceMlp expert_of(const DeviceMoe& moe, int64_t index) {
  DeviceMlp mlp = moe.experts;
  const auto move = [&](MatrixWeight& w, int64_t stride, int64_t scale_stride) {
    w.data = static_cast<const std::byte*>(w.data) + index * stride * weight_element_bytes(w.type);
    if (has_scales(w.type)) w.scales += index * scale_stride;
  };
  if (mlp.intermediate == 0) return mlp;
  move(mlp.gate_up, moe.gate_up_stride, moe.gate_up_scale_stride);
  move(mlp.down, moe.down_stride, moe.down_scale_stride);
  return mlp;
}

// Compares what ranks hold with what one GPU holds.
class Comparison {
 public:
  Comparison(const ModelConfig& config, const WeightLoadOptions& options, const DeviceWeights& whole,
             std::span<const DeviceWeights> ranks)
      : config_(config), options_(options), whole_(whole), ranks_(ranks) {}

  void run() const {
    int64_t num_tokens = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const DeviceWeights& part = ranks_[r];
      EXPECT_EQ(part.rank, static_cast<int64_t>(r));
      EXPECT_EQ(part.split.tp, static_cast<int64_t>(ranks_.size()));
      EXPECT_EQ(part.linears, whole_.linears);
      EXPECT_EQ(part.plain, whole_.plain);
      EXPECT_EQ(part.power_of_two, whole_.power_of_two);
      EXPECT_EQ(part.vocab_begin, num_tokens);
      expect_same_window(part.lm_head, {}, whole_.lm_head, {num_tokens, 0}, part.lm_head.n,
                         config_.hidden_size);
      EXPECT_EQ(part.lm_head.data == nullptr, part.lm_head.n == 0);
      num_tokens += part.lm_head.n;
      expect_same(part.embedding, whole_.embedding);
      expect_same_floats(part.final_norm, whole_.final_norm, config_.hidden_size);
      ASSERT_EQ(part.max_positions, whole_.max_positions);
      expect_same_floats(part.cos_sin, whole_.cos_sin, whole_.max_positions * kQkRopeHeadDim);
      ASSERT_EQ(part.layers.size(), whole_.layers.size());
    }
    EXPECT_EQ(num_tokens, config_.vocab_size);
    for (size_t layer = 0; layer < whole_.layers.size(); ++layer) {
      SCOPED_TRACE("layer " + std::to_string(layer));
      norms(layer);
      attention(layer);
      if (whole_.layers[layer].is_moe) {
        experts(layer);
      } else {
        dense(layer);
      }
    }
  }

 private:
  void norms(size_t layer) const {
    const DeviceLayer& whole = whole_.layers[layer];
    for (const DeviceWeights& rank : ranks_) {
      const DeviceLayer& part = rank.layers[layer];
      ASSERT_EQ(part.is_moe, whole.is_moe);
      expect_same_floats(part.input_norm, whole.input_norm, config_.hidden_size);
      expect_same_floats(part.post_attention_norm, whole.post_attention_norm, config_.hidden_size);
    }
  }

  void attention(size_t layer) const {
    const DeviceAttention& whole = whole_.layers[layer].attention;
    const bool low_rank = config_.q_lora_rank != 0;
    const MatrixWeight& whole_q = low_rank ? whole.q_b : whole.qkv_a;
    int64_t heads = 0;  // of the ranks so far
    for (const DeviceWeights& rank : ranks_) {
      const DeviceAttention& part = rank.layers[layer].attention;
      EXPECT_EQ(part.q_skip, is_block_scaled(whole_q.type) ? heads * kQkHeadDim % 128 : 0);
      const int64_t q_rows = part.q_skip + part.num_heads * kQkHeadDim;
      EXPECT_EQ(part.q_b.n, low_rank ? q_rows : 0);
      EXPECT_EQ(part.q_width, low_rank ? config_.q_lora_rank : q_rows);
      ASSERT_EQ(part.qkv_a.n, part.kv_a_begin + 576);
      const int64_t hidden = config_.hidden_size;
      const Place q_begin{heads * kQkHeadDim - part.q_skip, 0};
      expect_same_window(low_rank ? part.q_b : part.qkv_a, {}, whole_q, q_begin, q_rows, whole_q.k);
      if (low_rank) expect_same_window(part.qkv_a, {}, whole.qkv_a, {}, whole.q_width, hidden);
      expect_same_window(part.qkv_a, {part.kv_a_begin, 0}, whole.qkv_a, {whole.kv_a_begin, 0}, 576, hidden);
      expect_same_floats(part.q_a_norm, whole.q_a_norm, config_.q_lora_rank);
      expect_same_floats(part.kv_a_norm, whole.kv_a_norm, 512);
      EXPECT_EQ(part.kv_b.n, part.num_heads * 256);
      expect_same_window(part.kv_b, {}, whole.kv_b, {heads * 256, 0}, part.kv_b.n, 512);
      EXPECT_EQ(part.w_uk.n, part.num_heads * 512);
      expect_same_window(part.w_uk, {}, whole.w_uk, {heads * 512, 0}, part.w_uk.n, 128);
      EXPECT_EQ(part.o.k, part.num_heads * 128);
      expect_same_window(part.o, {}, whole.o, {0, heads * 128}, hidden, part.o.k);
      heads += part.num_heads;
    }
    EXPECT_EQ(heads, config_.num_attention_heads);
  }

  void dense(size_t layer) const {
    int64_t at = 0;
    for (const DeviceWeights& rank : ranks_) {
      expect_mlp_part(rank.layers[layer].mlp, whole_.layers[layer].mlp, at);
      at += rank.layers[layer].mlp.intermediate;
    }
    EXPECT_EQ(at, whole_.layers[layer].mlp.intermediate);
  }

  void experts(size_t layer) const {
    const DeviceMoe& whole = whole_.layers[layer].moe;
    std::vector<int64_t> at(static_cast<size_t>(whole.num_experts + whole.num_shared), 0);
    int64_t shared_at = 0;  // position in a shared MLP that is a product of its own
    for (const DeviceWeights& rank : ranks_) {
      const DeviceMoe& part = rank.layers[layer].moe;
      expect_same(part.gate, whole.gate);
      expect_same_floats(part.correction_bias, whole.correction_bias, whole.num_experts);
      EXPECT_EQ(part.num_experts, whole.num_experts);
      EXPECT_EQ(part.num_local_experts, whole.num_experts / rank.split.ep);
      for (int64_t i = 0; i < part.num_local_experts + part.num_shared; ++i) {
        const int64_t expert = i < part.num_local_experts ? part.first_expert + i
                                                          : whole.num_experts + i - part.num_local_experts;
        int64_t& begin = at[static_cast<size_t>(expert)];
        expect_mlp_part(expert_of(part, i), expert_of(whole, expert), begin);
        begin += part.experts.intermediate;
      }
      shared_apart(part, whole, shared_at);
      shared_at += part.shared.intermediate;
    }
    const int64_t behind = ranks_[0].layers[layer].moe.num_shared;
    for (int64_t i = 0; i < whole.num_experts + behind; ++i)
      EXPECT_EQ(at[static_cast<size_t>(i)], whole.experts.intermediate) << "expert " << i;
    EXPECT_EQ(behind, shared_at > 0 ? 0 : config_.n_shared_experts);
    const int64_t shared_size = config_.n_shared_experts * config_.moe_intermediate_size;
    EXPECT_TRUE(shared_at == 0 || shared_at >= shared_size) << shared_at;
  }

  // Compares a shared MLP that is a product of its own on a rank, from intermediate index `at` on.
  void shared_apart(const DeviceMoe& part, const DeviceMoe& whole, int64_t at) const {
    if (part.shared.intermediate == 0) return;
    if (whole.num_shared == 0) return expect_mlp_part(part.shared, whole.shared, at);
    const int64_t size = config_.moe_intermediate_size;
    const int64_t end = std::min(at + part.shared.intermediate, size * whole.num_shared);
    // On one GPU each of several shared experts has scales of its own if each row has one scale.
    const bool other_scales = whole.num_shared > 1 && is_channel_scaled(part.shared.down.type) &&
                              options_.quantization != LoadQuantization::kNone;
    // On one GPU the shared MLP is in one stack with the routed experts, which may prevent its codes.
    const bool other_type = part.shared.gate_up.type != whole.experts.gate_up.type;
    EXPECT_TRUE(!other_type || config_.quantization);
    for (int64_t i = at; i < end;) {
      const DeviceMlp one = expert_of(whole, whole.num_experts + i / size);
      const int64_t col = i % size;
      const int64_t run = std::min(size - col, end - i);
      const int64_t hidden = config_.hidden_size;
      if (!other_type) {
        expect_same_window(part.shared.gate_up, {i - at, 0}, one.gate_up, {col, 0}, run, hidden);
        expect_same_window(part.shared.gate_up, {part.shared.intermediate + i - at, 0}, one.gate_up,
                           {one.intermediate + col, 0}, run, hidden);
      }
      if (!other_scales && part.shared.down.type == one.down.type)
        expect_same_window(part.shared.down, {0, i - at}, one.down, {0, col}, hidden, run);
      i += run;
    }
  }

  const ModelConfig& config_;
  const WeightLoadOptions& options_;
  const DeviceWeights& whole_;
  const std::span<const DeviceWeights> ranks_;
};

}  // namespace hadal::testing
