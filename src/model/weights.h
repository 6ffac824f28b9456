// Holds the weights of a model in memory: plain structs of views for the forward pass, and the storage to
// which they point. They are immutable once loaded; any thread may read. Loading is in weights_loader.h.
//
// In memory a tensor's type depends on what the checkpoint stores and on the compute type (--dtype; auto is
// config.json's torch_dtype). The compute type is also the KV cache's type unless --kv-cache-dtype is given.
//   stored as      float32 compute   bfloat16 compute    float16 compute
//   BF16 matrix    as is (mapped)    as is (mapped)      as is (mapped; exact in float32 arithmetic)
//   F32 matrix     as is (mapped)    rounded to bf16     as is (mapped)
//   F16 matrix     widened to f32    rounded to bf16     widened to f32 (the kernels have no f16 weights)
//   F8_E4M3, I8    as is (mapped) with the scales beside it: weight_scale_inv or weight_scale of 128×128
//                  blocks, or weight_scale of rows (one of a whole matrix is repeated for its rows)
//   … of kv_b_proj with scales of rows: code · scale, in float32 or rounded to bf16 like an F32 matrix. The
//                  scales of one of its halves lie along the sum, where the matmul cannot apply them.
//   … of a gate_proj or up_proj whose partner has another type, because a config does not quantise one of
//                  them, or one is stored without scales: code · scale in the same way, and the partner in
//                  that type too (BF16 is widened for float32 and float16), because both are read together
// The router (gate) and an indexer's weights_proj are never rounded: F16 is widened to f32. Norms, the gate's
// bias and scales are float32.
// --quantization converts the linears stored as BF16, F16 or F32 to codes and scales (quantization.h), in the
// checkpoint's own format if it has one, except kv_b_proj when the scales would belong to rows. "As is" is a
// view into the file's mapping without a copy, unless the tensor is misaligned in the file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/params/linear.h"
#include "kernels/params/moe.h"
#include "tensor/dtype.h"

namespace hadal {

// IndexerWeights holds V3.2's indexer of one layer (kernels/params/indexer.h). Every rank has all of it.
struct IndexerWeights {
  MatrixWeight wq_b;                   // [index_n_heads·128, q_lora_rank]
  MatrixWeight wk;                     // [128, hidden]
  MatrixWeight weights_proj;           // [index_n_heads, hidden], f32 or bf16
  const float* norm_weight = nullptr;  // [128]: k_norm
  const float* norm_bias = nullptr;    // [128]
};

// In the shapes below, `heads` and `width` are those of the rank if several ranks share the model; otherwise
// they are those of the whole model.
struct AttentionWeights {
  MatrixWeight q_proj;               // [q_skip + heads·192, hidden]; data is set only when q_lora_rank is 0
  MatrixWeight q_a;                  // [q_lora_rank, hidden]
  MatrixWeight q_b;                  // [q_skip + heads·192, q_lora_rank]
  int64_t q_skip = 0;                // rows of q_proj or q_b before the rank's first head
  MatrixWeight kv_a;                 // [512 + 64, hidden]: latent, then rope
  MatrixWeight kv_b;                 // [heads·(128 + 128), 512]: per head W_UK rows, then W_UV rows
  MatrixWeight o;                    // [hidden, heads·128]
  const float* q_a_norm = nullptr;   // [q_lora_rank]; null when q_lora_rank is 0
  const float* kv_a_norm = nullptr;  // [512]
  std::optional<IndexerWeights> indexer;  // V3.2
};

// The width of some experts may be 0, but not that of the shared expert.
struct MoeWeights {
  MatrixWeight gate;                       // [n_routed_experts, hidden], f32 or bf16; computed in float32
  const float* correction_bias = nullptr;  // [n_routed_experts]; null unless topk_method is noaux_tc
  int64_t first_expert = 0;                // experts[0] is this one of n_routed_experts
  std::vector<MlpWeights> experts;   // the rank's; all n_routed_experts of them if it has the whole model
  std::optional<MlpWeights> shared;  // n_shared_experts as one MLP
};

// Exactly one of mlp and moe is set.
struct LayerWeights {
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  AttentionWeights attention;
  std::optional<MlpWeights> mlp;  // a dense layer; its width may be 0
  std::optional<MoeWeights> moe;
};

// MtpWeights is the multi-token prediction layer (NextN): eh_proj(concat[enorm(embed(t+1)), hnorm(h_t)]) ->
// layer -> shared_head_norm -> lm_head.
struct MtpWeights {
  LayerWeights layer;
  const float* enorm = nullptr;             // [hidden]
  const float* hnorm = nullptr;             // [hidden]
  const float* shared_head_norm = nullptr;  // [hidden]
  MatrixWeight eh_proj;                     // [hidden, 2·hidden]
  MatrixWeight embedding;                   // its own copy if the checkpoint has one, otherwise the target's
  MatrixWeight lm_head;                     // likewise
};

class WeightStorage;  // mappings of the shards, converted and generated buffers

struct ModelWeights {
  MatrixWeight embedding;  // [vocab, hidden], f32 or bf16
  MatrixWeight lm_head;    // [the rank's part of vocab, hidden], f32 or bf16; the embedding when tied
  const float* final_norm = nullptr;  // [hidden]
  std::vector<LayerWeights> layers;   // [num_hidden_layers]
  std::optional<MtpWeights> mtp;

  DType compute_dtype = DType::kBF16;  // F32, BF16 or F16
  int64_t mapped_bytes = 0;            // bytes used straight from the files
  int64_t owned_bytes = 0;             // bytes converted, quantised or generated

  std::shared_ptr<const WeightStorage> storage;  // the memory of every pointer above
};

}  // namespace hadal
