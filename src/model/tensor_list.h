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
  kLinear,     // [n, k]; quantised in fp8 checkpoints and by --quantization fp8
  kScale,      // [ceil(n/128), ceil(k/128)] f32: the weight_scale_inv of the kLinear before it
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

  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * dtype_bytes(dtype); }
};

// Every tensor of a checkpoint of `config`, in the order of the forward pass (embedding, layers, norm, head,
// then the NextN layer). A linear's scale follows it. Of tied models the head is optional.
std::vector<TensorSpec> expected_tensors(const ModelConfig& config);

// "model.layers.3." for 3.
std::string layer_prefix(int64_t layer_idx);

// "…proj.weight" -> "…proj.weight_scale_inv".
std::string scale_name(std::string_view weight_name);

}  // namespace hadal
