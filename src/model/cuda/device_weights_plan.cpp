#include "model/cuda/device_weights_plan.h"

#include <utility>

#include "model/tensor_list.h"

namespace hadal {
namespace {

constexpr size_t kAlignment = 256;

int64_t blocks(int64_t size) {
  return (size + kFp8BlockSize - 1) / kFp8BlockSize;
}
int64_t whole_blocks(int64_t size) {
  return blocks(size) * kFp8BlockSize;
}

// A part of a stored matrix; rows 0: all of it.
struct Window {
  int64_t row = 0, col = 0, rows = 0, cols = 0;
};

class PlanBuilder {
 public:
  PlanBuilder(const ModelConfig& config, const TensorSources& sources, LoadQuantization quantization,
              std::byte* base)
      : config_(config), sources_(sources), quantize_(quantization == LoadQuantization::kFp8), base_(base) {
    fp8_ =
        quantize_ || source(layer_prefix(0) + "self_attn.kv_a_proj_with_mqa.weight").dtype == DType::kF8E4M3;
  }

  DeviceWeightPlan build(const TensorSource& cos_sin) {
    DeviceWeights& weights = plan_.weights;
    weights.fp8 = fp8_;
    weights.power_of_two = fp8_ && config_.quantization && config_.quantization->ue8m0_scales;
    weights.embedding = table("model.embed_tokens.weight");
    weights.lm_head = config_.tie_word_embeddings || !sources_.contains("lm_head.weight")
                          ? weights.embedding
                          : table("lm_head.weight");
    weights.final_norm = vector("model.norm.weight");
    weights.max_positions = cos_sin.rows;
    weights.cos_sin = reinterpret_cast<const float*>(place_whole(cos_sin, DType::kF32));
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) weights.layers.push_back(layer(i));
    weights.bytes = static_cast<int64_t>(used_);
    return std::move(plan_);
  }

 private:
  const TensorSource& source(const std::string& name) const {
    const auto it = sources_.find(name);
    HADAL_CHECK(it != sources_.end(), "{} passed matching but is absent", name);
    return it->second;
  }

  std::byte* take(int64_t bytes) {
    std::byte* address = base_ + used_;
    used_ += (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    return address;
  }

  std::byte* place_whole(const TensorSource& from, DType type) {
    std::byte* dst = take(from.num_elements() * dtype_bytes(type));
    plan_.placements.push_back({.source = &from,
                                .rows = from.rows,
                                .cols = from.cols,
                                .type = type,
                                .dst = dst,
                                .stride = from.cols});
    return dst;
  }

  const float* vector(const std::string& name) {
    return reinterpret_cast<const float*>(place_whole(source(name), DType::kF32));
  }

  MatrixWeight dense(const TensorSource& from, DType type) {
    return {.data = place_whole(from, type),
            .type = type == DType::kF32 ? WeightType::kF32 : WeightType::kBF16,
            .n = from.rows,
            .k = from.cols,
            .row_stride = from.cols};
  }
  MatrixWeight table(const std::string& name) { return dense(source(name), DType::kBF16); }
  MatrixWeight router(const std::string& name) {
    const TensorSource& from = source(name);
    return dense(from, from.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32);
  }

  int64_t weight_bytes() const { return fp8_ ? 1 : 2; }

  // Room for `count` matrices [n, k], one behind the other; what is returned is the first.
  MatrixWeight room(int64_t n, int64_t k, int64_t count = 1) {
    MatrixWeight w{.type = fp8_ ? WeightType::kFp8Block : WeightType::kBF16, .n = n, .k = k};
    w.row_stride = fp8_ ? whole_blocks(k) : k;
    w.data = take(count * n * w.row_stride * weight_bytes());
    if (!fp8_) return w;
    w.scale_stride = blocks(k);
    w.scales = reinterpret_cast<const float*>(take(count * blocks(n) * blocks(k) * 4));
    return w;
  }

  // The same matrix `index` places further.
  MatrixWeight shifted(MatrixWeight w, int64_t index) const {
    w.data = static_cast<const std::byte*>(w.data) + index * w.n * w.row_stride * weight_bytes();
    if (fp8_) w.scales += index * blocks(w.n) * w.scale_stride;
    return w;
  }

  // The window of a stored linear becomes rows from `at_row` on.
  void place(const std::string& name, const MatrixWeight& w, int64_t at_row = 0, Window window = {}) {
    const TensorSource& from = source(name);
    if (window.rows == 0) window = {0, 0, from.rows, from.cols};
    const bool stored_fp8 = from.dtype == DType::kF8E4M3;
    if (!quantize_ && stored_fp8 != fp8_) return mixed(name, from.dtype);
    WeightPlacement placement{.source = &from,
                              .row = window.row,
                              .col = window.col,
                              .rows = window.rows,
                              .cols = window.cols,
                              .type = fp8_ ? DType::kF8E4M3 : DType::kBF16,
                              .stride = w.row_stride};
    placement.dst = const_cast<std::byte*>(static_cast<const std::byte*>(w.data)) +
                    at_row * w.row_stride * weight_bytes();
    if (!fp8_) {
      plan_.placements.push_back(placement);
      return;
    }
    if ((window.row | window.col | at_row) % kFp8BlockSize != 0) return uneven(name);
    float* scales = const_cast<float*>(w.scales) + at_row / kFp8BlockSize * w.scale_stride;
    if (!stored_fp8) {
      placement.scales = scales;
      placement.scale_stride = w.scale_stride;
      plan_.placements.push_back(placement);
      return;
    }
    plan_.placements.push_back(placement);
    plan_.placements.push_back({.source = &source(scale_name(*config_.quantization, name)),
                                .row = window.row / kFp8BlockSize,
                                .col = window.col / kFp8BlockSize,
                                .rows = blocks(window.rows),
                                .cols = blocks(window.cols),
                                .type = DType::kF32,
                                .dst = reinterpret_cast<std::byte*>(scales),
                                .stride = w.scale_stride});
  }

  void fail(Status status) {
    if (!plan_.error) plan_.error = std::move(status);
  }
  void mixed(const std::string& name, DType dtype) {
    fail(unsupported(
        "{} is stored as {} beside linears that are {}: on the GPU all are FP8 or none; --quantization "
        "fp8 quantises the others while loading",
        name, safetensors_name(dtype), fp8_ ? "F8_E4M3" : "not"));
  }
  void uneven(const std::string& name) {
    fail(unsupported(
        "{} cannot be cut into {} experts in FP8: moe_intermediate_size is {}; with n_shared_experts > 1 "
        "a multiple of 128 is allowed on the GPU",
        name, config_.n_shared_experts, config_.moe_intermediate_size));
  }

  MatrixWeight linear(const std::string& name) {
    const TensorSource& from = source(name);
    const MatrixWeight w = room(from.rows, from.cols);
    place(name, w);
    return w;
  }

  DeviceMlp mlp_room(int64_t intermediate, int64_t count) {
    DeviceMlp mlp;
    mlp.intermediate = whole_blocks(intermediate);
    mlp.gate_up = room(2 * mlp.intermediate, config_.hidden_size, count);
    mlp.down = room(config_.hidden_size, mlp.intermediate, count);
    return mlp;
  }

  // Part `part` of `num_parts` of the stored MLP, into the room of MLP `index`.
  void place_mlp(const std::string& prefix, const DeviceMlp& mlp, int64_t index = 0, int64_t part = 0,
                 int64_t num_parts = 1) {
    const std::string down = prefix + "down_proj.weight";
    const int64_t width = source(down).cols / num_parts;
    const int64_t hidden = config_.hidden_size;
    const Window rows{part * width, 0, width, hidden};
    place(prefix + "gate_proj.weight", shifted(mlp.gate_up, index), 0, rows);
    place(prefix + "up_proj.weight", shifted(mlp.gate_up, index), mlp.intermediate, rows);
    place(down, shifted(mlp.down, index), 0, {0, part * width, hidden, width});
  }

  DeviceAttention attention(const std::string& prefix) {
    DeviceAttention weights;
    const bool low_rank = config_.q_lora_rank != 0;
    const int64_t heads = config_.num_attention_heads;
    const std::string q = prefix + (low_rank ? "q_a_proj.weight" : "q_proj.weight");
    const std::string kv_a = prefix + "kv_a_proj_with_mqa.weight";
    weights.q_width = source(q).rows;
    weights.kv_a_begin = fp8_ ? whole_blocks(weights.q_width) : weights.q_width;
    weights.qkv_a = room(weights.kv_a_begin + source(kv_a).rows, config_.hidden_size);
    place(q, weights.qkv_a);
    place(kv_a, weights.qkv_a, weights.kv_a_begin);
    if (low_rank) {
      weights.q_a_norm = vector(prefix + "q_a_layernorm.weight");
      weights.q_b = linear(prefix + "q_b_proj.weight");
    }
    weights.kv_a_norm = vector(prefix + "kv_a_layernorm.weight");
    weights.kv_b = linear(prefix + "kv_b_proj.weight");
    weights.w_uk = room(heads * kKvLoraRank, kQkNopeHeadDim);
    plan_.transposes.push_back({weights.kv_b, weights.w_uk, heads});
    weights.o = linear(prefix + "o_proj.weight");
    return weights;
  }

  DeviceMoe moe(const std::string& prefix) {
    DeviceMoe weights;
    weights.gate = router(prefix + "gate.weight");
    if (config_.has_score_correction_bias())
      weights.correction_bias = vector(prefix + "gate.e_score_correction_bias");
    const int64_t routed = config_.n_routed_experts;
    const int64_t shared = config_.n_shared_experts;
    weights.num_experts = static_cast<int>(routed);
    weights.num_shared = static_cast<int>(shared);
    weights.experts = mlp_room(config_.moe_intermediate_size, routed + shared);
    const MatrixWeight& gate_up = weights.experts.gate_up;
    const MatrixWeight& down = weights.experts.down;
    weights.gate_up_stride = gate_up.n * gate_up.row_stride;
    weights.down_stride = down.n * down.row_stride;
    weights.gate_up_scale_stride = blocks(gate_up.n) * gate_up.scale_stride;
    weights.down_scale_stride = blocks(down.n) * down.scale_stride;
    for (int64_t i = 0; i < routed; ++i)
      place_mlp(fmt::format("{}experts.{}.", prefix, i), weights.experts, i);
    for (int64_t i = 0; i < shared; ++i) {
      place_mlp(prefix + "shared_experts.", weights.experts, routed + i, i, shared);
    }
    return weights;
  }

  DeviceLayer layer(int64_t layer_idx) {
    const std::string prefix = layer_prefix(layer_idx);
    DeviceLayer weights;
    weights.input_norm = vector(prefix + "input_layernorm.weight");
    weights.post_attention_norm = vector(prefix + "post_attention_layernorm.weight");
    weights.attention = attention(prefix + "self_attn.");
    weights.is_moe = config_.is_moe_layer(layer_idx);
    if (weights.is_moe) {
      weights.moe = moe(prefix + "mlp.");
    } else {
      weights.mlp = mlp_room(config_.intermediate_size, 1);
      place_mlp(prefix + "mlp.", weights.mlp);
    }
    return weights;
  }

  const ModelConfig& config_;
  const TensorSources& sources_;
  const bool quantize_;
  std::byte* const base_;
  bool fp8_ = false;
  size_t used_ = 0;
  DeviceWeightPlan plan_;
};

}  // namespace

DeviceWeightPlan plan_device_weights(const ModelConfig& config, const TensorSources& sources,
                                     const TensorSource& cos_sin, LoadQuantization quantization,
                                     std::byte* base) {
  return PlanBuilder(config, sources, quantization, base).build(cos_sin);
}

}  // namespace hadal
