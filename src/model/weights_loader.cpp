#include "model/weights_loader.h"

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/available_memory.h"
#include "base/log.h"
#include "model/loaded_types.h"
#include "model/tensor_list.h"
#include "model/weights_jobs.h"
#include "model/weights_sources.h"
#include "model/weights_storage.h"

namespace hadal {
namespace {

// Turns sources into the structs of weights.h, and appends the necessary conversions to `jobs`.
class WeightsBuilder {
 public:
  WeightsBuilder(const ModelConfig& config, const WeightLoadOptions& options, const TensorSources& sources,
                 WeightStorage& storage, std::vector<WeightJob>& jobs)
      : config_(config), options_(options), sources_(sources), storage_(storage), jobs_(jobs) {}

  // Builds everything but the NextN layer.
  void build(ModelWeights& weights) {
    weights_ = &weights;
    weights.compute_dtype = options_.compute_dtype;
    weights.embedding = matrix("model.embed_tokens.weight", TensorRole::kEmbedding);
    weights.lm_head = config_.tie_word_embeddings || !has("lm_head.weight")
                          ? weights.embedding
                          : matrix("lm_head.weight", TensorRole::kHead);
    weights.final_norm = vector("model.norm.weight");
    for (int64_t i = 0; i < config_.num_hidden_layers; ++i) weights.layers.push_back(layer(i));
  }

  // Adds the NextN layer to weights that have already been built.
  void build_nextn(ModelWeights& weights) {
    weights_ = &weights;
    weights.mtp = nextn(weights);
  }

 private:
  bool has(const std::string& name) const { return sources_.contains(name); }

  const TensorSource& source(const std::string& name) const {
    const auto it = sources_.find(name);
    HADAL_CHECK(it != sources_.end(), "{} passed matching but is absent", name);
    return it->second;
  }

  std::byte* convert(WeightJobKind kind, const TensorSource& from, DType to) {
    std::byte* dst = storage_.allocate(static_cast<size_t>(from.num_elements() * dtype_bytes(to)));
    jobs_.push_back({.kind = kind, .source = from, .dst = dst});
    return dst;
  }

  // Returns the stored values unchanged: in the mapping if they are aligned there, otherwise a copy.
  const std::byte* as_stored(const TensorSource& from) {
    const auto address = reinterpret_cast<uintptr_t>(from.bytes.data());
    if (from.random || address % static_cast<uintptr_t>(dtype_bytes(from.dtype)) != 0) {
      return convert(WeightJobKind::kCopy, from, from.dtype);
    }
    weights_->mapped_bytes += static_cast<int64_t>(from.bytes.size());
    return from.bytes.data();
  }

  // Returns a vector [size] in float32.
  const float* vector(const std::string& name) {
    const TensorSource& from = source(name);
    const std::byte* data =
        from.dtype == DType::kF32 ? as_stored(from) : convert(WeightJobKind::kWiden, from, DType::kF32);
    return reinterpret_cast<const float*>(data);
  }

  // Returns a scale for each row, in float32.
  const float* row_scales(const TensorSource& from, int64_t num_rows) {
    if (from.num_elements() == num_rows) {
      const std::byte* data =
          from.dtype == DType::kF32 ? as_stored(from) : convert(WeightJobKind::kWiden, from, DType::kF32);
      return reinterpret_cast<const float*>(data);
    }
    std::byte* dst = storage_.allocate(static_cast<size_t>(num_rows) * sizeof(float));
    jobs_.push_back({.kind = WeightJobKind::kRepeat, .source = from, .dst = dst, .repeats = num_rows});
    return reinterpret_cast<const float*>(dst);
  }

  // Uses the checkpoint's codes with their scales.
  MatrixWeight stored_quantised(const std::string& name, const TensorSource& from) {
    MatrixWeight weight{.n = from.rows, .k = from.cols, .row_stride = from.cols};
    weight.type = config_.quantization->type;
    const std::string scale = scale_name(*config_.quantization, name);
    weight.data = as_stored(from);
    if (is_block_scaled(weight.type)) {
      weight.scales = vector(scale);
      weight.scale_stride = (from.cols + kFp8BlockSize - 1) / kFp8BlockSize;
    } else {
      weight.scales = row_scales(source(scale), from.rows);
    }
    return weight;
  }

  // Computes code · scale for all elements; `type` is a type without scales.
  MatrixWeight multiplied_out(const std::string& name, const TensorSource& from, WeightType type) {
    const bool round = type == WeightType::kBF16;
    const DType to = round ? DType::kBF16 : DType::kF32;
    MatrixWeight weight{.n = from.rows, .k = from.cols, .row_stride = from.cols};
    weight.type = type;
    std::byte* dst = storage_.allocate(static_cast<size_t>(from.num_elements() * dtype_bytes(to)));
    jobs_.push_back({.kind = round ? WeightJobKind::kDequantizeToBf16 : WeightJobKind::kDequantize,
                     .source = from,
                     .dst = dst,
                     .type = config_.quantization->type,
                     .scale_source = source(scale_name(*config_.quantization, name))});
    weight.data = dst;
    return weight;
  }

  // Quantises at load. The type and the sizes of `weight` are already set.
  MatrixWeight quantised(MatrixWeight weight, const TensorSource& from) {
    const auto blocks = [](int64_t size) { return (size + kFp8BlockSize - 1) / kFp8BlockSize; };
    const bool in_blocks = is_block_scaled(weight.type);
    const int64_t num_scales = in_blocks ? blocks(from.rows) * blocks(from.cols) : from.rows;
    auto* scales =
        reinterpret_cast<float*>(storage_.allocate(static_cast<size_t>(num_scales) * sizeof(float)));
    std::byte* dst = storage_.allocate(static_cast<size_t>(from.num_elements()));
    jobs_.push_back({.kind = WeightJobKind::kQuantize,
                     .source = from,
                     .dst = dst,
                     .scales = scales,
                     .type = weight.type});
    weight.data = dst;
    weight.scales = scales;
    weight.scale_stride = in_blocks ? blocks(from.cols) : 0;
    return weight;
  }

  WeightType type_of(const std::string& name, TensorRole role) const {
    return loaded_type(config_, options_, name, role, source(name).dtype);
  }

  MatrixWeight matrix_of(const std::string& name, WeightType type) {
    const TensorSource& from = source(name);
    if (is_code(from.dtype))
      return has_scales(type) ? stored_quantised(name, from) : multiplied_out(name, from, type);
    MatrixWeight weight{.n = from.rows, .k = from.cols, .row_stride = from.cols};
    weight.type = type;
    if (has_scales(type)) return quantised(weight, from);
    const bool round = type == WeightType::kBF16;
    const DType to = round ? DType::kBF16 : DType::kF32;
    weight.data = from.dtype == to ? as_stored(from)
                                   : convert(round ? WeightJobKind::kRound : WeightJobKind::kWiden, from, to);
    return weight;
  }

  MatrixWeight matrix(const std::string& name, TensorRole role) {
    return matrix_of(name, type_of(name, role));
  }

  MatrixWeight linear(const std::string& name) { return matrix(name, TensorRole::kLinear); }

  MlpWeights mlp(const std::string& prefix) {
    const std::string gate = prefix + "gate_proj.weight";
    const std::string up = prefix + "up_proj.weight";
    const WeightType type = common_type(type_of(gate, TensorRole::kLinear), type_of(up, TensorRole::kLinear),
                                        options_.compute_dtype);
    return {.gate = matrix_of(gate, type),
            .up = matrix_of(up, type),
            .down = linear(prefix + "down_proj.weight")};
  }

  AttentionWeights attention(const std::string& prefix) {
    AttentionWeights weights;
    if (config_.q_lora_rank == 0) {
      weights.q_proj = linear(prefix + "q_proj.weight");
    } else {
      weights.q_a = linear(prefix + "q_a_proj.weight");
      weights.q_a_norm = vector(prefix + "q_a_layernorm.weight");
      weights.q_b = linear(prefix + "q_b_proj.weight");
    }
    weights.kv_a = linear(prefix + "kv_a_proj_with_mqa.weight");
    weights.kv_a_norm = vector(prefix + "kv_a_layernorm.weight");
    weights.kv_b = linear(prefix + "kv_b_proj.weight");
    weights.o = linear(prefix + "o_proj.weight");
    if (config_.has_indexer()) weights.indexer = indexer(prefix + "indexer.");
    return weights;
  }

  IndexerWeights indexer(const std::string& prefix) {
    return {.wq_b = linear(prefix + "wq_b.weight"),
            .wk = linear(prefix + "wk.weight"),
            .weights_proj = matrix(prefix + "weights_proj.weight", TensorRole::kGate),
            .norm_weight = vector(prefix + "k_norm.weight"),
            .norm_bias = vector(prefix + "k_norm.bias")};
  }

  MoeWeights moe(const std::string& prefix) {
    MoeWeights weights;
    weights.gate = matrix(prefix + "gate.weight", TensorRole::kGate);
    if (config_.has_score_correction_bias()) {
      weights.correction_bias = vector(prefix + "gate.e_score_correction_bias");
    }
    for (int64_t i = 0; i < config_.n_routed_experts; ++i) {
      weights.experts.push_back(mlp(fmt::format("{}experts.{}.", prefix, i)));
    }
    if (config_.n_shared_experts > 0) weights.shared = mlp(prefix + "shared_experts.");
    return weights;
  }

  LayerWeights layer(int64_t layer_idx) {
    const std::string prefix = layer_prefix(layer_idx);
    LayerWeights weights;
    weights.input_norm = vector(prefix + "input_layernorm.weight");
    weights.attention = attention(prefix + "self_attn.");
    weights.post_attention_norm = vector(prefix + "post_attention_layernorm.weight");
    if (config_.is_moe_layer(layer_idx)) {
      weights.moe = moe(prefix + "mlp.");
    } else {
      weights.mlp = mlp(prefix + "mlp.");
    }
    return weights;
  }

  MtpWeights nextn(const ModelWeights& target) {
    const std::string prefix = layer_prefix(config_.num_hidden_layers);
    MtpWeights weights;
    const std::string embedding = prefix + "embed_tokens.weight";
    const std::string head = prefix + "shared_head.head.weight";
    weights.embedding = has(embedding) ? matrix(embedding, TensorRole::kEmbedding) : target.embedding;
    weights.enorm = vector(prefix + "enorm.weight");
    weights.hnorm = vector(prefix + "hnorm.weight");
    weights.eh_proj = matrix(prefix + "eh_proj.weight", TensorRole::kEhProj);
    weights.layer = layer(config_.num_hidden_layers);
    weights.shared_head_norm = vector(prefix + "shared_head.norm.weight");
    weights.lm_head = has(head) ? matrix(head, TensorRole::kHead) : target.lm_head;
    return weights;
  }

  const ModelConfig& config_;
  const WeightLoadOptions& options_;
  const TensorSources& sources_;
  WeightStorage& storage_;
  ModelWeights* weights_ = nullptr;
  std::vector<WeightJob>& jobs_;
};

// Adds the draft layer to weights that were built from the sources `target`.
Result<void> build_draft(const WeightLoadOptions& options, const TensorSources& target,
                         WeightStorage& storage, std::vector<WeightJob>& jobs, ModelWeights& weights) {
  const DraftLayer& draft = *options.draft;
  HADAL_ASSIGN_OR_RETURN(WeightSources sources, draft_sources(draft, options.seed));
  share_equal_copies(draft.config, sources.map, target);
  storage.adopt(std::move(sources.shards));
  WeightLoadOptions draft_options = options;
  draft_options.quantization = draft.quantization;
  WeightsBuilder(draft.config, draft_options, sources.map, storage, jobs).build_nextn(weights);
  log_info("draft layer loaded path={} layer={} linears=\"{}\" shares_embedding={} shares_head={}",
           draft.dir.string(), draft.config.num_hidden_layers, describe(draft.config, draft.quantization),
           weights.mtp->embedding.data == weights.embedding.data,
           weights.mtp->lm_head.data == weights.lm_head.data);
  return {};
}

}  // namespace

Result<DType> resolve_compute_dtype(std::string_view flag, const ModelConfig& config) {
  std::optional<DType> dtype;
  if (flag == "auto") dtype = config.torch_dtype;
  for (const DType candidate : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (flag == to_string(candidate)) dtype = candidate;
  }
  if (dtype == DType::kF16 && config.has_indexer()) {
    return unsupported("--dtype {}{}: {} does not run in float16; allowed: bfloat16, float32", flag,
                       flag == "auto" ? ", which is float16 in config.json" : "",
                       to_string(config.architecture));
  }
  if (dtype) return *dtype;
  return invalid_argument("--dtype: \"{}\" is unknown; allowed: auto, float32, float16, bfloat16", flag);
}

Result<ModelWeights> load_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                  const WeightLoadOptions& options, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<size_t> available = available_memory_bytes();
  auto storage = std::make_shared<WeightStorage>(available.value_or(SIZE_MAX));
  const bool dummy = options.format == LoadFormat::kDummy;
  HADAL_ASSIGN_OR_RETURN(WeightSources sources, weight_sources(model_dir, config, options));
  storage->adopt(std::move(sources.shards));
  ModelWeights weights;
  std::vector<WeightJob> jobs;
  WeightsBuilder builder(config, options, sources.map, *storage, jobs);
  builder.build(weights);
  if (sources.has_nextn) builder.build_nextn(weights);
  if (options.loads_draft())
    HADAL_RETURN_IF_ERROR(build_draft(options, sources.map, *storage, jobs, weights));
  weights.owned_bytes = static_cast<int64_t>(storage->allocated_bytes());
  if (storage->over_limit()) {
    return make_status(StatusCode::kResourceExhausted,
                       "{}: {:.1f} GB of memory are needed for weights, but {:.1f} GB are available",
                       dummy ? "--load-format dummy" : model_dir.string(),
                       static_cast<double>(storage->allocated_bytes()) * 1e-9,
                       static_cast<double>(*available) * 1e-9);
  }
  run_weight_jobs(jobs, pool, options.progress);
  weights.storage = std::move(storage);
  log_info("weights loaded mapped_bytes={} owned_bytes={} nextn={} compute={} seconds={:.3f}",
           weights.mapped_bytes, weights.owned_bytes, weights.mtp.has_value(),
           to_string(weights.compute_dtype),
           std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return weights;
}

}  // namespace hadal
