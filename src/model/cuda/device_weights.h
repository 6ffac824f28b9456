// Holds the weights of one rank on its GPU, laid out for its kernels; one rank has the whole model.
// device_weights_loader fills them; they are immutable afterwards.
//
// Differences from the checkpoint
// - Matrices that read the same activations are stacked: [q_proj or q_a | kv_a], [gate | up]; with an indexer
//   [q_a | wk | kv_a]. The indexer's weights_proj, which is never in 8 bits, is separate.
// - 8-bit rows are padded with zeros to a multiple of 128 in k (row_stride), and zero rows separate q and
//   kv_a where q_width is not a multiple of 128 (kv_a_begin).
// - Every intermediate size is padded to a multiple of 128 (gate, up: zero rows; down: zero columns), so that
//   the halves of [gate | up] have separate blocks.
// - The experts of a layer are one allocation; the shared MLP is cut into n_shared experts after the routed
//   ones, unless it is a product of its own (shard.h: shared_is_apart).
// - W_UK is stored a second time, transposed per head: [heads · 512, 128], scales [heads · 4, 1].
// - Checkpoints in 16 or 32 bits become bf16, or float16 in float16 runs, including embedding and head.
//   Quantised checkpoints keep their codes and scales; one scale per matrix is repeated for its rows. Their
//   linears in 16 bits become bf16. If a stack contains such a linear, the codes of all its other linears are
//   widened to bf16. (All gate and up of a layer's experts are one stack, and all down another.) kv_b and
//   W_UK are FP8 in blocks or bf16; codes of other formats are widened to bf16. Routers and weights_proj are
//   float32 if they are stored with more precision than the other linears; otherwise they have the type of
//   the other linears. Norms, router bias and scales are float32.
//
// What a rank holds (shard.h decides it)
// - Its heads' part of q (or q_b), kv_b, W_UK and o; `heads` below counts these heads.
// - Its part of every MLP, cut at multiples of 128, so that at most the last part of an MLP is padded. Ranks
//   may have different parts; a rank that has none has DeviceMlp::intermediate 0.
// - Its routed experts, and its part of their intermediate size.
// - Its rows of the head, and of NextN's eh_proj. Ranks may have different numbers of rows, which are not
//   padded.
// - All of embedding, norms, q_a, kv_a, routers and the indexer.
// If the model is quantised at load, a rank has the codes and scales that one GPU would have, with one
// exception: a shared MLP that is separate because of ep has one scale for each whole row of down, where one
// GPU has one scale for each of the n_shared_experts parts of the row.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/params/linear.h"
#include "model/shard.h"
#include "tensor/cuda.h"

namespace hadal {

// Holds V3.2's indexer (kernels/params/indexer.h); wk is in the stack of attention.
struct DeviceIndexer {
  int num_heads = 0;                   // 0: the model has none
  int64_t k_begin = 0;                 // rows [k_begin, k_begin + 128) of qkv_a are wk
  MatrixWeight wq_b;                   // [num_heads · 128, q_lora_rank]
  MatrixWeight weights_proj;           // [num_heads, hidden], bf16 or float32
  const float* norm_weight = nullptr;  // [128]
  const float* norm_bias = nullptr;    // [128]
};

struct DeviceAttention {
  int64_t num_heads = 0;  // of the rank: `heads`
  // The number of leading columns of the queries that belong to another rank's head: outputs [0, q_skip) of
  // q_b, or of qkv_a if there is no q_b, are computed but not read. It is 0 or 64, and 0 without block
  // scales.
  int64_t q_skip = 0;
  MatrixWeight qkv_a;   // [kv_a_begin + 576, hidden]
  int64_t q_width = 0;  // q_lora_rank, or q_skip + heads · 192 without one: rows [0, q_width) of qkv_a
  // q_width, in 8 bits rounded up to a multiple of 128; with an indexer 128 more, because wk lies between q_a
  // and kv_a.
  int64_t kv_a_begin = 0;
  MatrixWeight q_b;                  // [q_skip + heads · 192, q_lora_rank]; data null without one
  const float* q_a_norm = nullptr;   // [q_lora_rank], or null without it
  const float* kv_a_norm = nullptr;  // [512]
  MatrixWeight kv_b;                 // [heads · 256, 512], as in the checkpoint
  MatrixWeight w_uk;                 // [heads · 512, 128]
  MatrixWeight o;                    // [hidden, heads · 128]
  DeviceIndexer indexer;
};

// An MLP of which the rank holds nothing has intermediate 0 and no data; its product is zero.
struct DeviceMlp {
  MatrixWeight gate_up;      // [2 · intermediate, hidden], padded as above
  MatrixWeight down;         // [hidden, intermediate]
  int64_t intermediate = 0;  // of the rank, padded
};

struct DeviceMoe {
  MatrixWeight gate;                       // [n_routed_experts, hidden]
  const float* correction_bias = nullptr;  // [n_routed_experts], or null if there is none
  // These are the weights of the rank's first expert. If `intermediate` is 0, the rank holds no part of its
  // experts or of the shared experts that follow them.
  DeviceMlp experts;
  int64_t gate_up_stride = 0, down_stride = 0;              // elements between experts
  int64_t gate_up_scale_stride = 0, down_scale_stride = 0;  // scales between experts
  int num_experts = 0;                                      // routed, on all ranks: the router's outputs
  // The rank's routed experts are [first_expert, first_expert + num_local_experts); one rank has all of them.
  int first_expert = 0;
  int num_local_experts = 0;
  int num_shared = 0;  // shared experts after the rank's routed ones; 0 if they are a product of their own
  DeviceMlp shared;    // the shared MLP if it is a product of its own; intermediate 0: none
};

struct DeviceLayer {
  const float* input_norm = nullptr;
  const float* post_attention_norm = nullptr;
  DeviceAttention attention;
  bool is_moe = false;
  DeviceMlp mlp;  // used unless is_moe
  DeviceMoe moe;  // used if is_moe
};

// The NextN layer, which is loaded only for speculation (MtpWeights in model/weights.h has its formula).
struct DeviceNextn {
  const float* enorm = nullptr;             // [hidden]
  const float* hnorm = nullptr;             // [hidden]
  const float* shared_head_norm = nullptr;  // [hidden]
  MatrixWeight eh_proj;  // [rows, 2 · hidden] in 16 bits: joined_rows_of(rank); no data with 0
  DeviceLayer layer;
  MatrixWeight embedding;  // its own copy if the checkpoint has one that differs, otherwise the target's
  MatrixWeight lm_head;    // likewise; the rank's rows of it
};

struct DeviceWeights {
  ModelSplit split;        // among these ranks
  int64_t rank = 0;        // this one
  MatrixWeight embedding;  // [vocab, hidden] in 16 bits
  // [rows, hidden] in 16 bits: the rows of tokens [vocab_begin, vocab_begin + n), which are
  // vocabulary_of(rank) of shard.h. If n is 0, it has no data.
  MatrixWeight lm_head;
  int64_t vocab_begin = 0;
  const float* final_norm = nullptr;
  const float* cos_sin = nullptr;  // [max_positions, 64]
  int64_t max_positions = 0;
  std::vector<DeviceLayer> layers;
  std::optional<DeviceNextn> nextn;
  WeightType linears = WeightType::kBF16;  // type of the 8-bit linears; bf16: there are none
  WeightType plain = WeightType::kBF16;    // type of the 16-bit linears: bf16 or float16
  bool power_of_two = false;               // scales of activations are powers of two too (scale_fmt ue8m0)
  int64_t bytes = 0;                       // device memory
  std::shared_ptr<const DeviceBuffer> storage;  // the memory of every pointer

  int64_t num_heads() const { return layers.front().attention.num_heads; }  // of the rank
  // Returns true if some linears use quantised activations.
  bool w8a8() const { return has_scales(linears); }
  // Returns true if activations, and the cache, are float16.
  bool is_f16() const { return plain == WeightType::kF16; }
};

}  // namespace hadal
