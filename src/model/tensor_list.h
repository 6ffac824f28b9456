// Lists the tensors that model.safetensors must contain for a given config. One list serves the loader
// (missing, unexpected or misshapen tensors), the dummy weights, the checkpoint writer and the parameter
// counts. The functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/config.h"
#include "tensor/dtype.h"

namespace hadal {

enum class TensorRole : uint8_t {
  kEmbedding,  // [vocab, hidden], read by row
  kHead,       // [vocab, hidden], a matrix product
  kNorm,       // [size] of an RMSNorm; the weight or bias of an indexer's LayerNorm
  kLinear,     // [n, k]; quantised by quantization_config or by --quantization
  kScale,      // f32, belongs to the preceding kLinear: [ceil(n/128), ceil(k/128)], [n, 1] or [1]
  kGate,       // [n, hidden]: a router, or an indexer's weights_proj; never quantised
  kGateBias,   // [n_routed_experts] f32: e_score_correction_bias
  kEhProj,     // [hidden, 2·hidden] of a NextN layer; never quantised
};

struct TensorSpec {
  std::string name;            // as in the checkpoint, e.g. "model.layers.3.mlp.gate.weight"
  DType dtype = DType::kBF16;  // the type in which a checkpoint of this config is written
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kLinear;
  bool optional = false;  // may be absent because it is shared with the target (NextN, tied head)
  bool nextn = false;     // belongs to the multi-token prediction layer model.layers.<num_hidden_layers>
  bool expert = false;    // belongs to one routed expert, so only tokens routed to it use it
  bool left_out = false;  // kLinear that quantization_config leaves out although it quantises others
  int64_t fan_in = 0;     // kScale: k of its linear

  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype); }
};

// Returns every tensor of a checkpoint of `config`, in the order of the forward pass (embedding, layers,
// norm, head, then the NextN layer). A linear's scale follows it. In tied models the head is optional.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

// Returns "model.layers.3." for 3.
std::string layer_prefix(int64_t layer_idx);

// Turns "…proj.weight" into "…proj.weight_scale_inv" or "…proj.weight_scale".
std::string scale_name(const WeightQuantization& quantization, std::string_view weight_name);

// Turns "model.layers.0.mlp.up_proj.weight" into "model.layers.0.mlp.up_proj".
std::string_view module_name(std::string_view weight_name);

// Returns true if the config says that the linear is stored quantised.
bool is_quantised(const ModelConfig& config, std::string_view weight_name);

// Returns F8_E4M3 or I8, the stored type of the codes of a type with scales.
DType code_dtype(WeightType type);
// Returns true for F8_E4M3 and I8; false also for nullopt, which stands for stored types that have no DType.
bool is_code(std::optional<DType> dtype);

// Returns true if the tensor is kv_b_proj's weight or scale. Where each of its rows has a scale of its own,
// the loader widens kv_b_proj, because one half of it is multiplied along its rows.
bool is_kv_b(std::string_view tensor_name);

}  // namespace hadal
