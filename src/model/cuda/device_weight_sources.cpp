// Prepares the sources that a plan of device_weights_plan.h reads, and makes a plan from a config without
// values.
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "model/cuda/device_weights_plan.h"
#include "model/tensor_list.h"
#include "model/weights_sources.h"

namespace hadal {

Result<void> add_draft_sources(const ModelConfig& config, const DraftLayer& draft, uint64_t seed,
                               WeightSources& sources) {
  HADAL_ASSIGN_OR_RETURN(WeightSources layer, draft_sources(draft, seed));
  const size_t prefix_size = layer_prefix(draft.config.num_hidden_layers).size();
  const std::string prefix = layer_prefix(config.num_hidden_layers);
  for (auto& [name, source] : layer.map)
    sources.map.insert_or_assign(prefix + name.substr(prefix_size), std::move(source));
  std::move(layer.shards.begin(), layer.shards.end(), std::back_inserter(sources.shards));
  sources.has_nextn = true;
  return {};
}

TensorSource rope_source(const ModelConfig& config) {
  TensorSource source;
  source.dtype = DType::kF32;
  source.rows = config.max_position_embeddings;
  source.cols = kQkRopeHeadDim;
  return source;
}

DeviceWeights device_weight_shapes(const ModelConfig& config, LoadQuantization quantization,
                                   DType compute_dtype, ModelSplit split, int64_t rank) {
  TensorSources sources;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (!spec.optional && !spec.nextn) sources.emplace(spec.name, source_of(spec, spec.dtype));
  }
  return plan_device_weights(config, sources, rope_source(config), quantization, nullptr, compute_dtype,
                             split, rank)
      .weights;
}

int64_t device_weight_bytes(const ModelConfig& config, LoadQuantization quantization, DType compute_dtype,
                            ModelSplit split, int64_t rank) {
  return device_weight_shapes(config, quantization, compute_dtype, split, rank).bytes;
}

}  // namespace hadal
