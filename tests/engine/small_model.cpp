#include "tests/engine/small_model.h"

#include "model/shard_weights.h"
#include "model/weights_loader.h"

namespace hadal::testing {
namespace {

constexpr const char* kV3 = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
  "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
  "q_lora_rank": 96, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2,
  "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 320, "max_position_embeddings": 1024,
  "rope_theta": 10000, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false,
  "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"})";

constexpr const char* kV2Lite = R"({
  "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 128, "intermediate_size": 192,
  "moe_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 3,
  "q_lora_rank": null, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
  "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
  "scoring_func": "softmax", "topk_method": "greedy", "norm_topk_prob": false, "routed_scaling_factor": 1.0,
  "first_k_dense_replace": 1, "moe_layer_freq": 1, "vocab_size": 320, "max_position_embeddings": 1024,
  "rope_theta": 10000, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": false,
  "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 256, "beta_fast": 32,
                   "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707},
  "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16"})";

}  // namespace

std::unique_ptr<Model> make_small_model(const std::string& kind, ThreadPool& pool, uint64_t seed) {
  constexpr const char* kIndexer = R"({"architectures": ["DeepseekV32ForCausalLM"], "index_n_heads": 16,
    "index_head_dim": 128, "index_topk": 48})";
  const bool has_nextn = kind.ends_with("+nextn");
  const std::string family = kind.substr(0, kind.find('+'));
  ModelConfig config =
      parse_model_config(family == "v2-lite" ? kV2Lite : kV3, kind, family == "v3.2" ? kIndexer : "").value();
  if (has_nextn) {
    config.num_nextn_predict_layers = 1;
    config.num_hidden_layers = 3;  // a draft must cost clearly less than a token
  }
  WeightLoadOptions options;
  options.format = LoadFormat::kDummy;
  options.seed = seed;
  ModelWeights weights = load_weights({}, config, options, pool).value();
  return make_model(std::move(config), std::move(weights)).value();
}

std::vector<std::shared_ptr<Model>> make_small_ranks(const std::string& kind, ModelSplit split,
                                                     ThreadPool& pool, uint64_t seed) {
  const std::unique_ptr<Model> whole = make_small_model(kind, pool, seed);
  std::vector<std::shared_ptr<Model>> ranks;
  for (int64_t rank = 0; rank < split.tp; ++rank) {
    ModelWeights part = shard_weights(whole->weights(), whole->config(), split, rank);
    ranks.push_back(make_model(whole->config(), std::move(part)).value());
  }
  return ranks;
}

}  // namespace hadal::testing
