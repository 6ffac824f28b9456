// Finds the stored values of every tensor of a model: in a checkpoint's mappings or the random generator.
// Only the loaders of host and device weights include it.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "model/tensor_list.h"
#include "model/weights_jobs.h"
#include "model/weights_loader.h"

namespace hadal {

struct WeightSources {
  std::unordered_map<std::string, TensorSource> map;  // by the checkpoint's name
  bool has_nextn = false;                             // the NextN layer's tensors are among them
  std::vector<MappedFile> shards;                     // the mappings that contain the sources' bytes
};

// Returns the shape and stored type of a tensor, without its values.
TensorSource source_of(const TensorSpec& spec, DType dtype);

// Returns, depending on options.format, the sources of all tensors that `config` needs (those of the NextN
// layer if options.load_nextn), after all checks of Checkpoint::open and match_tensors, whose errors it
// returns.
Result<WeightSources> weight_sources(const std::filesystem::path& model_dir, const ModelConfig& config,
                                     const WeightLoadOptions& options);

}  // namespace hadal
