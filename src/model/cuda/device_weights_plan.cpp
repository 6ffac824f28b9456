#include "model/cuda/device_weights_plan.h"

#include <algorithm>
#include <array>
#include <span>
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

// Describes a part of a stored matrix; rows 0 means all of it.
struct Window {
  int64_t row = 0, col = 0, rows = 0, cols = 0;
};

class PlanBuilder {
 public:
  PlanBuilder(const ModelConfig& config, const TensorSources& sources, LoadQuantization quantization,
              std::byte* base, DType compute_dtype)
      : config_(config),
        sources_(sources),
        quantization_(quantization),
        base_(base),
        plain_dtype_(compute_dtype),
        plain_(compute_dtype == DType::kF16 ? WeightType::kF16 : WeightType::kBF16),
        type_(linear_type(config, quantization)) {}

  DeviceWeightPlan build(const TensorSource& cos_sin) {
    DeviceWeights& weights = plan_.weights;
    weights.embedding = table("model.embed_tokens.weight");
    weights.lm_head = config_.tie_word_embeddings || !sources_.contains("lm_head.weight")
                          ? weights.embedding
                          : table("lm_head.weight");
    weights.final_norm = vector("model.norm.weight");
    weights.max_positions = cos_sin.rows;
    weights.cos_sin = reinterpret_cast<const float*>(place_whole(cos_sin, DType::kF32));
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) weights.layers.push_back(layer(i));
    HADAL_CHECK(!some_codes_ || plain_ == WeightType::kBF16, "8-bit weights need bf16");
    weights.linears = some_codes_ ? type_ : plain_;
    weights.plain = plain_;
    weights.power_of_two = weights.linears == WeightType::kFp8Block && config_.quantization &&
                           config_.quantization->ue8m0_scales;
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
            .type = type == DType::kF32 ? WeightType::kF32 : plain_,
            .n = from.rows,
            .k = from.cols,
            .row_stride = from.cols};
  }
  MatrixWeight table(const std::string& name) { return dense(source(name), plain_dtype_); }
  MatrixWeight router(const std::string& name) {
    const TensorSource& from = source(name);
    const bool rounds =
        from.dtype == DType::kF32 || (from.dtype == DType::kF16 && plain_dtype_ == DType::kBF16);
    return dense(from, rounds ? DType::kF32 : plain_dtype_);
  }

  // Returns true if a linear is stored in 8 bits unless its stack prevents it, as on the CPU
  // (loaded_types.h).
  bool wants_codes(const std::string& name) const {
    return is_code(source(name).dtype) || quantises_at_load(config_, quantization_, name);
  }
  // Returns the type of linears in one stack: 8 bits if all of them want that, otherwise 16.
  WeightType type_of(std::span<const std::string> names) {
    const bool codes =
        std::all_of(names.begin(), names.end(), [&](const std::string& name) { return wants_codes(name); });
    some_codes_ |= codes;
    return codes ? type_ : plain_;
  }

  // Counts the scales of one matrix.
  static int64_t num_scales(const MatrixWeight& w) {
    return is_block_scaled(w.type) ? blocks(w.n) * w.scale_stride : is_channel_scaled(w.type) ? w.n : 0;
  }

  // Reserves room for `count` matrices [n, k], one after the other, and returns the first.
  MatrixWeight room(WeightType type, int64_t n, int64_t k, int64_t count = 1) {
    MatrixWeight w{.type = type, .n = n, .k = k};
    w.row_stride = has_scales(type) ? whole_blocks(k) : k;
    w.data = take(count * n * w.row_stride * weight_element_bytes(type));
    if (!has_scales(type)) return w;
    w.scale_stride = is_block_scaled(type) ? blocks(k) : 0;
    w.scales = reinterpret_cast<const float*>(take(count * num_scales(w) * 4));
    return w;
  }

  // Returns the matrix `index` places further.
  MatrixWeight shifted(MatrixWeight w, int64_t index) const {
    w.data =
        static_cast<const std::byte*>(w.data) + index * w.n * w.row_stride * weight_element_bytes(w.type);
    if (has_scales(w.type)) w.scales += index * num_scales(w);
    return w;
  }

  // Places the window of a stored linear in the rows from `at_row` on.
  void place(const std::string& name, const MatrixWeight& w, int64_t at_row = 0, Window window = {}) {
    const TensorSource& from = source(name);
    if (window.rows == 0) window = {0, 0, from.rows, from.cols};
    const bool stored_codes = is_code(from.dtype);
    HADAL_CHECK(!stored_codes || config_.quantization, "codes passed matching without a quantisation");
    if (stored_codes && is_block_scaled(type_) && (window.row | window.col) % kFp8BlockSize != 0)
      return uneven(name);
    WeightPlacement placement{.source = &from,
                              .row = window.row,
                              .col = window.col,
                              .rows = window.rows,
                              .cols = window.cols,
                              .type = plain_dtype_,
                              .stride = w.row_stride,
                              .codes = type_};
    placement.dst = const_cast<std::byte*>(static_cast<const std::byte*>(w.data)) +
                    at_row * w.row_stride * weight_element_bytes(w.type);
    if (!has_scales(w.type)) {
      if (stored_codes) placement.code_scales = &source(scale_name(*config_.quantization, name));
      plan_.placements.push_back(placement);
      return;
    }
    placement.type = code_dtype(w.type);
    const bool in_blocks = is_block_scaled(w.type);
    if (in_blocks && (window.row | window.col | at_row) % kFp8BlockSize != 0) return uneven(name);
    float* scales =
        const_cast<float*>(w.scales) + (in_blocks ? at_row / kFp8BlockSize * w.scale_stride : at_row);
    if (!stored_codes) {
      placement.scales = scales;
      placement.scale_stride = w.scale_stride;
      plan_.placements.push_back(placement);
      return;
    }
    plan_.placements.push_back(placement);
    const TensorSource& stored = source(scale_name(*config_.quantization, name));
    WeightPlacement scale{.source = &stored,
                          .row = window.row,
                          .rows = window.rows,
                          .cols = 1,
                          .type = DType::kF32,
                          .dst = reinterpret_cast<std::byte*>(scales),
                          .stride = 1};
    if (in_blocks) {
      scale.row = window.row / kFp8BlockSize;
      scale.col = window.col / kFp8BlockSize;
      scale.rows = blocks(window.rows);
      scale.cols = blocks(window.cols);
      scale.stride = w.scale_stride;
    } else if (stored.num_elements() == 1) {  // one scale for the whole matrix
      scale.row = 0;
      scale.repeat = true;
    }
    plan_.placements.push_back(scale);
  }

  void fail(Status status) {
    if (!plan_.error) plan_.error = std::move(status);
  }
  void uneven(const std::string& name) {
    fail(unsupported(
        "{} cannot be cut into {} experts in blocks: moe_intermediate_size is {}; with n_shared_experts > 1 "
        "it must be a multiple of 128 on the GPU",
        name, config_.n_shared_experts, config_.moe_intermediate_size));
  }

  MatrixWeight linear(const std::string& name) { return linear(name, type_of({&name, 1})); }
  MatrixWeight linear(const std::string& name, WeightType type) {
    const TensorSource& from = source(name);
    const MatrixWeight w = room(type, from.rows, from.cols);
    place(name, w);
    return w;
  }

  // Reserves room for the stored MLPs of these prefixes, all in one type.
  DeviceMlp mlp_room(int64_t intermediate, std::span<const std::string> prefixes, int64_t count) {
    std::vector<std::string> first, second;
    for (const std::string& prefix : prefixes) {
      first.insert(first.end(), {prefix + "gate_proj.weight", prefix + "up_proj.weight"});
      second.push_back(prefix + "down_proj.weight");
    }
    DeviceMlp mlp;
    mlp.intermediate = whole_blocks(intermediate);
    mlp.gate_up = room(type_of(first), 2 * mlp.intermediate, config_.hidden_size, count);
    mlp.down = room(type_of(second), config_.hidden_size, mlp.intermediate, count);
    return mlp;
  }

  // Places part `part` of `num_parts` of the stored MLP in the room of MLP `index`.
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
    const WeightType type = type_of(std::array{q, kv_a});
    weights.q_width = source(q).rows;
    weights.kv_a_begin = has_scales(type) ? whole_blocks(weights.q_width) : weights.q_width;
    weights.qkv_a = room(type, weights.kv_a_begin + source(kv_a).rows, config_.hidden_size);
    place(q, weights.qkv_a);
    place(kv_a, weights.qkv_a, weights.kv_a_begin);
    if (low_rank) {
      weights.q_a_norm = vector(prefix + "q_a_layernorm.weight");
      weights.q_b = linear(prefix + "q_b_proj.weight");
    }
    weights.kv_a_norm = vector(prefix + "kv_a_layernorm.weight");
    // It is in 8 bits only if both its halves can be multiplied in them.
    const std::string kv_b = prefix + "kv_b_proj.weight";
    weights.kv_b = linear(kv_b, type_ == WeightType::kFp8Block ? type_of({&kv_b, 1}) : plain_);
    weights.w_uk = room(weights.kv_b.type, heads * kKvLoraRank, kQkNopeHeadDim);
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
    std::vector<std::string> mlps;
    for (int64_t i = 0; i < routed; ++i) mlps.push_back(fmt::format("{}experts.{}.", prefix, i));
    const std::string shared_mlp = prefix + "shared_experts.";
    if (shared > 0) mlps.push_back(shared_mlp);
    weights.experts = mlp_room(config_.moe_intermediate_size, mlps, routed + shared);
    const MatrixWeight& gate_up = weights.experts.gate_up;
    const MatrixWeight& down = weights.experts.down;
    weights.gate_up_stride = gate_up.n * gate_up.row_stride;
    weights.down_stride = down.n * down.row_stride;
    weights.gate_up_scale_stride = num_scales(gate_up);
    weights.down_scale_stride = num_scales(down);
    for (int64_t i = 0; i < routed; ++i) place_mlp(mlps[static_cast<size_t>(i)], weights.experts, i);
    for (int64_t i = 0; i < shared; ++i) place_mlp(shared_mlp, weights.experts, routed + i, i, shared);
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
      const std::string mlp = prefix + "mlp.";
      weights.mlp = mlp_room(config_.intermediate_size, {&mlp, 1}, 1);
      place_mlp(mlp, weights.mlp);
    }
    return weights;
  }

  const ModelConfig& config_;
  const TensorSources& sources_;
  const LoadQuantization quantization_;
  std::byte* const base_;
  const DType plain_dtype_;  // type of 16-bit linears
  const WeightType plain_;
  const WeightType type_;    // type of 8-bit linears
  bool some_codes_ = false;  // there is an 8-bit linear
  size_t used_ = 0;
  DeviceWeightPlan plan_;
};

}  // namespace

DeviceWeightPlan plan_device_weights(const ModelConfig& config, const TensorSources& sources,
                                     const TensorSource& cos_sin, LoadQuantization quantization,
                                     std::byte* base, DType compute_dtype) {
  return PlanBuilder(config, sources, quantization, base, compute_dtype).build(cos_sin);
}

}  // namespace hadal
