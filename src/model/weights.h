// The weights of a model in memory: plain structs of views for the forward pass, and the storage they point
// into. Immutable once loaded; any thread may read. Loading is in weights_loader.h.
//
// How a tensor is held, by what the checkpoint stores and the compute type (--dtype; auto is config.json's
// torch_dtype). The compute type is also the KV cache's type unless --kv-cache-dtype says otherwise.
//   stored as      float32 compute   bfloat16 compute    float16 compute
//   BF16 matrix    as is (mapped)    as is (mapped)      as is (mapped; exact in float32 arithmetic)
//   F32 matrix     as is (mapped)    rounded to bf16     as is (mapped)
//   F16 matrix     widened to f32    rounded to bf16     widened to f32 (the kernels have no f16 weights)
//   F8_E4M3, I8    as is (mapped) with the scales beside it: weight_scale_inv or weight_scale of 128×128
//                  blocks, or weight_scale of rows (one of a whole matrix is repeated for its rows)
//   … of kv_b_proj with scales of rows: code · scale, in float32 or rounded to bf16 as an F32 matrix is: the
//                  scales of one of its halves lie along the sum, where the matmul cannot apply them
//   … of a gate_proj or up_proj whose partner is held in another type (a config that leaves out one of the
//   two,
//                  one stored without scales): code · scale in the same way, and the partner in that type too
//                  (a BF16 one widened for float32 and float16): the two are read side by side
// The router (gate) is never rounded: F16 widens to f32. Norms, the gate's bias and scales are float32.
// --quantization turns the linears stored as BF16, F16 or F32 into codes and scales (quantization.h), of the
// checkpoint's own format where it has one, but not kv_b_proj where rows would have the scales.
// "As is" is a view into the file's mapping, with no copy, unless the file aligns the tensor badly.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/params/linear.h"
#include "kernels/params/moe.h"
#include "tensor/dtype.h"

namespace hadal {

struct AttentionWeights {
  MatrixWeight q_proj;               // [heads·192, hidden]; only when q_lora_rank is 0 (then data is set)
  MatrixWeight q_a;                  // [q_lora_rank, hidden]
  MatrixWeight q_b;                  // [heads·192, q_lora_rank]
  MatrixWeight kv_a;                 // [512 + 64, hidden]: latent, then rope
  MatrixWeight kv_b;                 // [heads·(128 + 128), 512]: per head W_UK rows, then W_UV rows
  MatrixWeight o;                    // [hidden, heads·128]
  const float* q_a_norm = nullptr;   // [q_lora_rank]; null when q_lora_rank is 0
  const float* kv_a_norm = nullptr;  // [512]
};

struct MoeWeights {
  MatrixWeight gate;                       // [n_routed_experts, hidden], f32 or bf16; computed in float32
  const float* correction_bias = nullptr;  // [n_routed_experts]; null unless topk_method is noaux_tc
  std::vector<MlpWeights> experts;         // [n_routed_experts], of moe_intermediate_size
  std::optional<MlpWeights> shared;        // of n_shared_experts · moe_intermediate_size
};

// Exactly one of mlp and moe is set.
struct LayerWeights {
  const float* input_norm = nullptr;           // [hidden]
  const float* post_attention_norm = nullptr;  // [hidden]
  AttentionWeights attention;
  std::optional<MlpWeights> mlp;  // a dense layer, of intermediate_size
  std::optional<MoeWeights> moe;
};

// The multi-token prediction layer (NextN): eh_proj(concat[enorm(embed(t+1)), hnorm(h_t)]) -> layer ->
// shared_head_norm -> lm_head.
struct MtpWeights {
  LayerWeights layer;
  const float* enorm = nullptr;             // [hidden]
  const float* hnorm = nullptr;             // [hidden]
  const float* shared_head_norm = nullptr;  // [hidden]
  MatrixWeight eh_proj;                     // [hidden, 2·hidden]
  MatrixWeight embedding;                   // its own copy if the checkpoint has one, else the target's
  MatrixWeight lm_head;                     // likewise
};

class WeightStorage;  // mappings of the shards, converted and generated buffers

struct ModelWeights {
  MatrixWeight embedding;             // [vocab, hidden], f32 or bf16
  MatrixWeight lm_head;               // [vocab, hidden], f32 or bf16; the embedding when tied
  const float* final_norm = nullptr;  // [hidden]
  std::vector<LayerWeights> layers;   // [num_hidden_layers]
  std::optional<MtpWeights> mtp;

  DType compute_dtype = DType::kBF16;  // F32, BF16 or F16
  int64_t mapped_bytes = 0;            // used straight from the files
  int64_t owned_bytes = 0;             // converted, quantised or generated

  std::shared_ptr<const WeightStorage> storage;  // what every pointer above points into
};

}  // namespace hadal
