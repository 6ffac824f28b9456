// ModelConfig holds the checked contents of config.json as plain data, immutable after parsing; any thread
// may read it. Field names follow config.json. Sources are DeepSeek-V2 (arXiv 2405.04434), DeepSeek-V3
// (arXiv 2412.19437) and DeepSeek-V3.2-Exp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/params/linear.h"
#include "model/config_modules.h"
#include "tensor/dtype.h"

namespace hadal {

enum class Architecture { kDeepseekV2, kDeepseekV3, kDeepseekV32 };
enum class ScoringFunc { kSoftmax, kSigmoid };
enum class TopkMethod { kGreedy, kGroupLimitedGreedy, kNoauxTc };

// The three head sizes and the latent rank are the same in every model of the family, and kernels rely on
// them.
inline constexpr int kKvLoraRank = 512;
inline constexpr int kQkNopeHeadDim = 128;
inline constexpr int kQkRopeHeadDim = 64;
inline constexpr int kQkHeadDim = kQkNopeHeadDim + kQkRopeHeadDim;
inline constexpr int kVHeadDim = 128;
inline constexpr int kFp8BlockSize = 128;  // weight_block_size in both dimensions, for int8 blocks too

// RopeScaling is YaRN (arXiv 2309.00071), as DeepSeek uses it.
struct RopeScaling {
  double factor = 1.0;
  int64_t original_max_position_embeddings = 4096;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
};

// WeightQuantization says how a checkpoint stores its linears. docs/quantization.md lists the published
// spellings.
struct WeightQuantization {
  WeightType type = WeightType::kFp8Block;  // one of the four with scales
  bool one_scale = false;     // channel types: the file has one scale per matrix, which is repeated at load
  bool ue8m0_scales = false;  // scale_fmt "ue8m0": scales are powers of two
  // This suffix turns the name of a weight into the name of its scale: "_scale_inv" or "_scale".
  std::string_view scale_suffix = "_scale_inv";
  ModuleList targets;      // empty: every linear
  ModuleList unquantised;  // linears that are stored in torch_dtype

  // Returns true if the linear `module` ("model.layers.0.mlp.up_proj") is stored in `type`.
  bool covers(std::string_view module) const {
    return (targets.empty() || targets.contains(module)) && !unquantised.contains(module);
  }
};

struct ModelConfig {
  Architecture architecture = Architecture::kDeepseekV3;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;      // width of the dense layers
  int64_t moe_intermediate_size = 0;  // width of one expert
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t q_lora_rank = 0;    // 0: the query is projected directly (V2-Lite)
  int64_t index_n_heads = 0;  // V3.2: heads of the indexer, of 128 values each
  int64_t index_topk = 0;     // V3.2: keys that a token attends to at most; 0: to all
  int64_t n_routed_experts = 0;
  int64_t n_shared_experts = 0;
  int64_t num_experts_per_tok = 0;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  ScoringFunc scoring_func = ScoringFunc::kSoftmax;
  TopkMethod topk_method = TopkMethod::kGreedy;
  bool norm_topk_prob = false;
  double routed_scaling_factor = 1.0;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t vocab_size = 0;
  int64_t max_position_embeddings = 0;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling;
  double rms_norm_eps = 1e-6;
  bool tie_word_embeddings = false;
  int64_t num_nextn_predict_layers = 0;
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_ids;
  DType torch_dtype = DType::kBF16;
  std::optional<WeightQuantization> quantization;  // quantization_config; none: the weights have torch_dtype

  bool is_moe_layer(int64_t layer_idx) const {
    return n_routed_experts > 0 && layer_idx >= first_k_dense_replace && layer_idx % moe_layer_freq == 0;
  }
  // Returns true if each layer has an indexer, which selects keys for attention (kernels/params/indexer.h).
  bool has_indexer() const { return index_topk > 0; }
  // Returns true if a token that sees kv_len keys attends only to some of them.
  bool selects_keys(int64_t kv_len) const { return has_indexer() && kv_len > index_topk; }
  bool has_score_correction_bias() const { return topk_method == TopkMethod::kNoauxTc; }
  // Returns 192^-0.5 · m(factor, mscale_all_dim)² with m(f, s) = 0.1·s·ln f + 1 (1 for f ≤ 1 or no scaling).
  double softmax_scale() const;
};

// Parses the text of a config.json. `source` names it in errors. `override_json` (from
// --json-model-override-args; empty for none) replaces top-level fields first. Unknown architectures, gates,
// rope types and quantisation methods, and values out of range, are errors that name the field, the value and
// what is allowed.
Result<ModelConfig> parse_model_config(std::string_view json, std::string_view source,
                                       std::string_view override_json = {});

// Returns the text of a config.json with its quantization_config replaced by the given JSON, or removed if
// that is empty. The error is that of parse_model_config for text that is not a JSON object.
Result<std::string> with_quantization_config(std::string_view json, std::string_view source,
                                             std::string_view quantization_config);

const char* to_string(Architecture architecture);

}  // namespace hadal
