// A model's weights on one GPU, laid out for its kernels. Filled by device_weights_loader; immutable
// afterwards.
//
// What differs from the checkpoint
// - Matrices that read the same activations are stacked: [q_proj or q_a | kv_a], [gate | up].
// - 8-bit rows are padded with zeros to a multiple of 128 in k (row_stride), and zero rows lie between q and
//   kv_a where q_width is no multiple of 128 (kv_a_begin).
// - Every intermediate size is padded to a multiple of 128 (gate, up: zero rows; down: zero columns), so that
//   the halves of [gate | up] keep their own blocks.
// - Experts of a layer are one allocation; the shared MLP is cut into n_shared experts behind the routed
//   ones.
// - W_UK is kept a second time, transposed per head: [heads · 512, 128], scales [heads · 4, 1].
// - Checkpoints in 16 or 32 bits: bf16, or in float16 runs float16, embedding and head too. Quantised
//   checkpoints: the checkpoint's codes and scales; one scale a matrix is repeated for its rows. Linears that
//   are stored in 16 bits beside them: bf16, and with them those in the same stack, whose codes are widened
//   (all gate and up of a layer's experts are one, all down another).
//   kv_b and W_UK: FP8 in blocks or bf16, to which codes of other formats are widened.
//   Routers: float32 where they are stored in more precision than the others, else like these. Norms, router
//   bias, scales: float32.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/params/linear.h"
#include "model/config.h"
#include "tensor/cuda.h"

namespace hadal {

struct DeviceAttention {
  MatrixWeight qkv_a;                // [kv_a_begin + 576, hidden]
  int64_t q_width = 0;               // q_lora_rank, or heads · 192 without one: rows [0, q_width) of qkv_a
  int64_t kv_a_begin = 0;            // q_width; in 8 bits rounded up to a multiple of 128
  MatrixWeight q_b;                  // [heads · 192, q_lora_rank]; data null without one
  const float* q_a_norm = nullptr;   // [q_lora_rank] or null
  const float* kv_a_norm = nullptr;  // [512]
  MatrixWeight kv_b;                 // [heads · 256, 512], as in the checkpoint
  MatrixWeight w_uk;                 // [heads · 512, 128]
  MatrixWeight o;                    // [hidden, heads · 128]
};

struct DeviceMlp {
  MatrixWeight gate_up;      // [2 · intermediate, hidden], padded as above
  MatrixWeight down;         // [hidden, intermediate]
  int64_t intermediate = 0;  // padded
};

struct DeviceMoe {
  MatrixWeight gate;                                        // [n_routed_experts, hidden]
  const float* correction_bias = nullptr;                   // [n_routed_experts] or null
  DeviceMlp experts;                                        // of expert 0
  int64_t gate_up_stride = 0, down_stride = 0;              // elements between experts
  int64_t gate_up_scale_stride = 0, down_scale_stride = 0;  // scales between experts
  int num_experts = 0;                                      // routed
  int num_shared = 0;
};

struct DeviceLayer {
  const float* input_norm = nullptr;
  const float* post_attention_norm = nullptr;
  DeviceAttention attention;
  bool is_moe = false;
  DeviceMlp mlp;  // !is_moe
  DeviceMoe moe;  // is_moe
};

struct DeviceWeights {
  MatrixWeight embedding;  // [vocab, hidden] in 16 bits
  MatrixWeight lm_head;    // [vocab, hidden] in 16 bits
  const float* final_norm = nullptr;
  const float* cos_sin = nullptr;  // [max_positions, 64]
  int64_t max_positions = 0;
  std::vector<DeviceLayer> layers;
  WeightType linears = WeightType::kBF16;  // of those in 8 bits; bf16: none is
  WeightType plain = WeightType::kBF16;    // of those in 16 bits: bf16 or float16
  bool power_of_two = false;               // activations' scales too (scale_fmt ue8m0)
  int64_t bytes = 0;                       // of device memory
  std::vector<DeviceBuffer> storage;       // what every pointer points into

  // Some linears take quantised activations.
  bool w8a8() const { return has_scales(linears); }
  // Activations, and the cache, are float16.
  bool is_f16() const { return plain == WeightType::kF16; }
};

}  // namespace hadal
