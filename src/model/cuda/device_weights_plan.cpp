#include "model/cuda/device_weights_plan.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "kernels/params/matrix_window.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

constexpr size_t kDeviceAlignment = 256;
// A plan that only counts bytes begins here, because arithmetic with null pointers is undefined.
constexpr uintptr_t kNoMemory = kDeviceAlignment;

int64_t blocks(int64_t size) {
  return (size + kFp8BlockSize - 1) / kFp8BlockSize;
}
int64_t whole_blocks(int64_t size) {
  return blocks(size) * kFp8BlockSize;
}

// Describes a part of a stored matrix. Where each row has a scale, scale_cols are the columns that one GPU
// would quantise together with the part.
struct Window {
  int64_t row = 0, col = 0, rows = 0, cols = 0;
  Range scale_cols;
};

// Describes a part of a stored MLP's intermediate size, and the columns of down_proj that are quantised
// together with it.
struct MlpPart {
  Range width;
  Range scale_cols;
};

class PlanBuilder {
 public:
  PlanBuilder(const ModelConfig& config, const TensorSources& sources, LoadQuantization quantization,
              std::byte* base, DType compute_dtype, ModelSplit split, int64_t rank)
      : config_(config),
        sources_(sources),
        quantization_(quantization),
        base_(base != nullptr ? base : reinterpret_cast<std::byte*>(kNoMemory)),
        plain_dtype_(compute_dtype),
        plain_(compute_dtype == DType::kF16 ? WeightType::kF16 : WeightType::kBF16),
        type_(linear_type(config, quantization)),
        split_(split),
        rank_(rank) {}

  DeviceWeightPlan build(const TensorSource& cos_sin) {
    DeviceWeights& weights = plan_.weights;
    weights.split = split_;
    weights.rank = rank_;
    const TensorSource& embedding = source("model.embed_tokens.weight");
    weights.embedding = dense(embedding, plain_dtype_, {0, embedding.rows});
    const Range tokens = vocabulary_of(config_, split_, rank_);
    const bool tied = config_.tie_word_embeddings || !sources_.contains("lm_head.weight");
    weights.lm_head = tied ? row_window(weights.embedding, tokens.begin, tokens.size())
                           : dense(source("lm_head.weight"), plain_dtype_, tokens);
    if (weights.lm_head.n == 0) weights.lm_head.data = nullptr;
    weights.vocab_begin = tokens.begin;
    weights.final_norm = vector("model.norm.weight");
    weights.max_positions = cos_sin.rows;
    weights.cos_sin = reinterpret_cast<const float*>(place_rows(cos_sin, DType::kF32, {0, cos_sin.rows}));
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) weights.layers.push_back(layer(i));
    if (sources_.contains(layer_prefix(config_.num_hidden_layers) + "eh_proj.weight"))
      weights.nextn = nextn(weights, tokens);
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

  // These return windows of a stored matrix: the whole matrix, some rows, or some columns.
  Window whole(const std::string& name) const { return rows_of(name, 0, source(name).rows); }
  Window rows_of(const std::string& name, int64_t first, int64_t count) const {
    const int64_t cols = source(name).cols;
    return {.row = first, .rows = count, .cols = cols, .scale_cols = {0, cols}};
  }
  Window cols_of(const std::string& name, Range cols, Range scale_cols) const {
    return {.col = cols.begin, .rows = source(name).rows, .cols = cols.size(), .scale_cols = scale_cols};
  }

  std::byte* take(int64_t bytes) {
    std::byte* address = base_ + used_;
    used_ += (static_cast<size_t>(bytes) + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    return address;
  }

  // Returns null if there are no rows.
  std::byte* place_rows(const TensorSource& from, DType type, Range rows) {
    if (rows.size() == 0) return nullptr;
    std::byte* dst = take(rows.size() * from.cols * dtype_bytes(type));
    plan_.placements.push_back({.source = &from,
                                .row = rows.begin,
                                .rows = rows.size(),
                                .cols = from.cols,
                                .type = type,
                                .dst = dst,
                                .stride = from.cols});
    return dst;
  }

  const float* vector(const std::string& name) {
    return reinterpret_cast<const float*>(place_rows(source(name), DType::kF32, {0, 1}));
  }

  MatrixWeight dense(const TensorSource& from, DType type, Range rows) {
    return {.data = place_rows(from, type, rows),
            .type = type == DType::kF32 ? WeightType::kF32 : plain_,
            .n = rows.size(),
            .k = from.cols,
            .row_stride = from.cols};
  }
  MatrixWeight router(const std::string& name) {
    const TensorSource& from = source(name);
    const bool rounds =
        from.dtype == DType::kF32 || (from.dtype == DType::kF16 && plain_dtype_ == DType::kBF16);
    return dense(from, rounds ? DType::kF32 : plain_dtype_, {0, from.rows});
  }

  // Returns true if a linear is stored in 8 bits unless its stack prevents it, as on the CPU
  // (loaded_types.h).
  bool wants_codes(const std::string& name) const {
    return is_code(source(name).dtype) || quantises_at_load(config_, quantization_, name);
  }
  // Returns the type that decides where a linear may be cut. It is that of the codes even if the linear's
  // stack prevents 8 bits.
  WeightType cut_type(const std::string& name) const { return wants_codes(name) ? type_ : plain_; }
  // Returns the type of linears in one stack: 8 bits if all of them can have 8 bits, otherwise 16.
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

  // Reserves room for `count` matrices [n, k], one after another, and returns the first. Empty matrices have
  // no data.
  MatrixWeight room(WeightType type, int64_t n, int64_t k, int64_t count = 1) {
    MatrixWeight w{.type = type, .n = n, .k = k};
    w.row_stride = has_scales(type) ? whole_blocks(k) : k;
    if (is_block_scaled(type)) w.scale_stride = blocks(k);
    if (n * k * count == 0) return w;
    w.data = take(count * n * w.row_stride * weight_element_bytes(type));
    if (has_scales(type)) w.scales = reinterpret_cast<const float*>(take(count * num_scales(w) * 4));
    return w;
  }

  // Returns the matrix that lies `index` matrices after w.
  MatrixWeight shifted(MatrixWeight w, int64_t index) const {
    w.data =
        static_cast<const std::byte*>(w.data) + index * w.n * w.row_stride * weight_element_bytes(w.type);
    if (has_scales(w.type)) w.scales += index * num_scales(w);
    return w;
  }

  // Places the window of a stored linear in the rows from `at_row` on.
  void place(const std::string& name, const MatrixWeight& w, const Window& window, int64_t at_row = 0) {
    const TensorSource& from = source(name);
    const bool stored_codes = is_code(from.dtype);
    const bool in_blocks = is_block_scaled(w.type);
    HADAL_CHECK(!stored_codes || config_.quantization, "codes passed matching without a quantisation");
    if (in_blocks || (stored_codes && is_block_scaled(type_))) {
      HADAL_CHECK((window.row | window.col | (in_blocks ? at_row : 0)) % kFp8BlockSize == 0,
                  "{} is cut inside a block of scales: row {}, column {}", name, window.row, window.col);
    }
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
    float* scales =
        const_cast<float*>(w.scales) + (in_blocks ? at_row / kFp8BlockSize * w.scale_stride : at_row);
    if (!stored_codes) {
      placement.scales = scales;
      placement.scale_stride = w.scale_stride;
      placement.scale_col = in_blocks ? window.col : window.scale_cols.begin;
      placement.scale_cols = in_blocks ? window.cols : window.scale_cols.size();
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

  MatrixWeight linear(const std::string& name, const Window& window) {
    return linear(name, window, type_of({&name, 1}));
  }
  MatrixWeight linear(const std::string& name, const Window& window, WeightType type) {
    const MatrixWeight w = room(type, window.rows, window.cols);
    place(name, w, window);
    return w;
  }

  // Reserves room for `count` MLPs of this width. The stored MLPs of these prefixes are in one stack.
  DeviceMlp mlp_room(int64_t width, std::span<const std::string> prefixes, int64_t count = 1) {
    std::vector<std::string> first, second;
    for (const std::string& prefix : prefixes) {
      first.insert(first.end(), {prefix + "gate_proj.weight", prefix + "up_proj.weight"});
      second.push_back(prefix + "down_proj.weight");
    }
    DeviceMlp mlp;
    mlp.intermediate = whole_blocks(width);
    mlp.gate_up = room(type_of(first), 2 * mlp.intermediate, config_.hidden_size, count);
    mlp.down = room(type_of(second), config_.hidden_size, mlp.intermediate, count);
    return mlp;
  }

  // Places a part of the stored MLP in the room of MLP `index`.
  void place_mlp(const std::string& prefix, const DeviceMlp& mlp, const MlpPart& part, int64_t index = 0) {
    if (part.width.size() == 0) return;
    const std::string gate = prefix + "gate_proj.weight";
    const std::string up = prefix + "up_proj.weight";
    const std::string down = prefix + "down_proj.weight";
    const MatrixWeight gate_up = shifted(mlp.gate_up, index);
    place(gate, gate_up, rows_of(gate, part.width.begin, part.width.size()));
    place(up, gate_up, rows_of(up, part.width.begin, part.width.size()), mlp.intermediate);
    place(down, shifted(mlp.down, index), cols_of(down, part.width, part.scale_cols));
  }

  // Returns the rank's part of a dense MLP, or of a shared one that is a product of its own.
  DeviceMlp whole_mlp(const std::string& prefix) {
    const int64_t size = source(prefix + "down_proj.weight").cols;
    const Range width = mlp_width_of(size, split_, kGpuMlpUnit, rank_);
    const DeviceMlp mlp = mlp_room(width.size(), {&prefix, 1});
    place_mlp(prefix, mlp, {.width = width, .scale_cols = {0, size}});
    return mlp;
  }

  DeviceAttention attention(const std::string& prefix) {
    DeviceAttention weights;
    const bool low_rank = config_.q_lora_rank != 0;
    const Range heads = heads_of(config_, split_, rank_);
    const std::string q = prefix + (low_rank ? "q_b_proj.weight" : "q_proj.weight");
    const std::string q_a = prefix + "q_a_proj.weight";
    const std::string kv_a = prefix + "kv_a_proj_with_mqa.weight";
    const RowWindow q_rows = q_rows_of(heads, cut_type(q));
    const Window q_window = rows_of(q, q_rows.first, q_rows.count);
    weights.num_heads = heads.size();
    weights.q_skip = q_rows.skip;

    const std::string& first = low_rank ? q_a : q;
    const Window first_window = low_rank ? whole(q_a) : q_window;
    const std::string indexer = prefix + "indexer.";
    const std::string wk = indexer + "wk.weight";
    std::vector<std::string> stack = {first, kv_a};
    if (config_.has_indexer()) stack.push_back(wk);
    const WeightType type = type_of(stack);
    weights.q_width = first_window.rows;
    weights.kv_a_begin = has_scales(type) ? whole_blocks(weights.q_width) : weights.q_width;
    if (config_.has_indexer()) {
      weights.indexer.k_begin = weights.kv_a_begin;
      weights.kv_a_begin += source(wk).rows;
    }
    weights.qkv_a = room(type, weights.kv_a_begin + source(kv_a).rows, config_.hidden_size);
    place(first, weights.qkv_a, first_window);
    place(kv_a, weights.qkv_a, whole(kv_a), weights.kv_a_begin);
    if (config_.has_indexer()) {
      place(wk, weights.qkv_a, whole(wk), weights.indexer.k_begin);
      add_indexer(indexer, weights.indexer);
    }
    if (low_rank) {
      weights.q_a_norm = vector(prefix + "q_a_layernorm.weight");
      weights.q_b = linear(q, q_window);
    }
    weights.kv_a_norm = vector(prefix + "kv_a_layernorm.weight");
    // kv_b stays in 8 bits only if both of its halves can be multiplied in 8 bits.
    constexpr int64_t kHeadRows = kQkNopeHeadDim + kVHeadDim;
    const std::string kv_b = prefix + "kv_b_proj.weight";
    weights.kv_b = linear(kv_b, rows_of(kv_b, heads.begin * kHeadRows, heads.size() * kHeadRows),
                          type_ == WeightType::kFp8Block ? type_of({&kv_b, 1}) : plain_);
    weights.w_uk = room(weights.kv_b.type, heads.size() * kKvLoraRank, kQkNopeHeadDim);
    plan_.transposes.push_back({weights.kv_b, weights.w_uk, heads.size()});
    const std::string o = prefix + "o_proj.weight";
    const Range columns{heads.begin * kVHeadDim, heads.end * kVHeadDim};
    weights.o = linear(o, cols_of(o, columns, {0, source(o).cols}));
    return weights;
  }

  // Places the tensors of the indexer that are not in the stack.
  void add_indexer(const std::string& prefix, DeviceIndexer& indexer) {
    indexer.num_heads = static_cast<int>(config_.index_n_heads);
    indexer.wq_b = linear(prefix + "wq_b.weight", whole(prefix + "wq_b.weight"));
    indexer.weights_proj = router(prefix + "weights_proj.weight");
    indexer.norm_weight = vector(prefix + "k_norm.weight");
    indexer.norm_bias = vector(prefix + "k_norm.bias");
  }

  DeviceMoe moe(const std::string& prefix) {
    DeviceMoe weights;
    weights.gate = router(prefix + "gate.weight");
    if (config_.has_score_correction_bias())
      weights.correction_bias = vector(prefix + "gate.e_score_correction_bias");
    const int64_t size = config_.moe_intermediate_size;
    const Range local = experts_of(config_, split_, rank_);
    const std::string shared_mlp = prefix + "shared_experts.";
    const bool apart = shared_apart(shared_mlp);
    const int64_t behind = apart ? 0 : config_.n_shared_experts;
    weights.num_experts = static_cast<int>(config_.n_routed_experts);
    weights.first_expert = static_cast<int>(local.begin);
    weights.num_local_experts = static_cast<int>(local.size());
    weights.num_shared = static_cast<int>(behind);

    // The types are those that one GPU would use, so experts of other ranks count too.
    std::vector<std::string> mlps;
    for (int64_t i = 0; i < config_.n_routed_experts; ++i)
      mlps.push_back(fmt::format("{}experts.{}.", prefix, i));
    std::vector<std::string> stack = mlps;
    if (behind > 0) stack.push_back(shared_mlp);
    const Range width = expert_width_of(config_, split_, kGpuMlpUnit, rank_);
    weights.experts = mlp_room(width.size(), stack, local.size() + behind);
    const MatrixWeight& gate_up = weights.experts.gate_up;
    const MatrixWeight& down = weights.experts.down;
    weights.gate_up_stride = gate_up.n * gate_up.row_stride;
    weights.down_stride = down.n * down.row_stride;
    weights.gate_up_scale_stride = num_scales(gate_up);
    weights.down_scale_stride = num_scales(down);
    for (int64_t i = 0; i < local.size(); ++i) {
      place_mlp(mlps[static_cast<size_t>(local.begin + i)], weights.experts,
                {.width = width, .scale_cols = {0, size}}, i);
    }
    for (int64_t i = 0; i < behind; ++i) {
      place_mlp(
          shared_mlp, weights.experts,
          {.width = {i * size + width.begin, i * size + width.end}, .scale_cols = {i * size, (i + 1) * size}},
          local.size() + i);
    }
    if (apart) weights.shared = whole_mlp(shared_mlp);
    return weights;
  }

  // Returns true if the shared MLP is a product of its own.
  bool shared_apart(const std::string& prefix) const {
    if (config_.n_shared_experts == 0) return false;
    WeightType type = plain_;
    for (const char* module : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
      if (wants_codes(prefix + module)) type = type_;
    }
    return shared_is_apart(config_, split_, type);
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
      weights.mlp = whole_mlp(prefix + "mlp.");
    }
    return weights;
  }

  DeviceNextn nextn(const DeviceWeights& target, Range tokens) {
    const std::string prefix = layer_prefix(config_.num_hidden_layers);
    const std::string embedding = prefix + "embed_tokens.weight";
    const std::string head = prefix + "shared_head.head.weight";
    DeviceNextn weights{.embedding = target.embedding, .lm_head = target.lm_head};
    weights.enorm = vector(prefix + "enorm.weight");
    weights.hnorm = vector(prefix + "hnorm.weight");
    weights.shared_head_norm = vector(prefix + "shared_head.norm.weight");
    const TensorSource& joined = source(prefix + "eh_proj.weight");
    weights.eh_proj = dense(joined, plain_dtype_, joined_rows_of(config_, split_, rank_));
    weights.layer = layer(config_.num_hidden_layers);
    if (sources_.contains(embedding))
      weights.embedding = dense(source(embedding), plain_dtype_, {0, config_.vocab_size});
    if (sources_.contains(head)) weights.lm_head = dense(source(head), plain_dtype_, tokens);
    return weights;
  }

  const ModelConfig& config_;
  const TensorSources& sources_;
  const LoadQuantization quantization_;
  std::byte* const base_;
  const DType plain_dtype_;  // type of 16-bit linears
  const WeightType plain_;
  const WeightType type_;  // type of 8-bit linears
  const ModelSplit split_;
  const int64_t rank_;
  bool some_codes_ = false;  // there is an 8-bit linear
  size_t used_ = 0;
  DeviceWeightPlan plan_;
};

}  // namespace

int64_t WeightPlacement::end_row() const {
  const int64_t end = row + rows;
  const bool in_blocks = (quantised() || widened()) && is_block_scaled(codes);
  return in_blocks ? std::min(whole_blocks(end), source->rows) : end;
}

DeviceWeightPlan plan_device_weights(const ModelConfig& config, const TensorSources& sources,
                                     const TensorSource& cos_sin, LoadQuantization quantization,
                                     std::byte* base, DType compute_dtype, ModelSplit split, int64_t rank) {
  return PlanBuilder(config, sources, quantization, base, compute_dtype, split, rank).build(cos_sin);
}

}  // namespace hadal
