// The tensors of a checkpoint: what model.safetensors must hold for a given config. One list serves the
// loader (what is missing, unexpected or misshapen), the dummy weights, the checkpoint writer and the
// parameter counts. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tensor/dtype.h"

namespace hadal {

enum class TensorRole : uint8_t {
  kEmbedding,  // [vocab, hidden], rows are looked up
  kHead,       // [vocab, hidden], a matrix product
  kNorm,       // [size] of an RMSNorm
  kLinear,     // [n, k]; quantised by quantization_config or by --quantization
  kScale,      // f32, of the kLinear before it: [ceil(n/128), ceil(k/128)], [n, 1] or [1]
  kGate,       // [n_routed_experts, hidden]: the router; never quantised
  kGateBias,   // [n_routed_experts] f32: e_score_correction_bias
  kEhProj,     // [hidden, 2·hidden] of a NextN layer; never quantised
};

struct TensorSpec {
  std::string name;            // as in the checkpoint, e.g. "model.layers.3.mlp.gate.weight"
  DType dtype = DType::kBF16;  // what a checkpoint of this config is written in
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kLinear;
  bool optional = false;  // may be absent: shared with the target (NextN, tied head)
  bool nextn = false;     // belongs to the multi-token prediction layer model.layers.<num_hidden_layers>
  bool expert = false;    // belongs to one routed expert: used only by the tokens routed to it
  bool left_out = false;  // kLinear that quantization_config leaves as it was, where it quantises others
  int64_t fan_in = 0;     // kScale: k of its linear

  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype); }
};

// Every tensor of a checkpoint of `config`, in the order of the forward pass (embedding, layers, norm, head,
// then the NextN layer). A linear's scale follows it. Of tied models the head is optional.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

// "model.layers.3." for 3.
std::string layer_prefix(int64_t layer_idx);

// "…proj.weight" -> "…proj.weight_scale_inv" or "…proj.weight_scale".
std::string scale_name(const WeightQuantization& quantization, std::string_view weight_name);

// "model.layers.0.mlp.up_proj.weight" -> "model.layers.0.mlp.up_proj".
std::string_view module_name(std::string_view weight_name);

// Whether a linear is stored quantised: the config says so of it.
bool is_quantised(const ModelConfig& config, std::string_view weight_name);

// F8_E4M3 or I8: how the codes of a type with scales are stored.
DType code_dtype(WeightType type);

// Whether the tensor is kv_b_proj's weight or scale. The loader widens it where each row has a scale of its
// own: one half of it is multiplied along its rows.
bool is_kv_b(std::string_view tensor_name);

}  // namespace hadal
