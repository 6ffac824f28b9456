// Finds the stored values of every tensor of a model: in a checkpoint's mappings or the random generator.
// Only the loaders of host and device weights include it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "base/mapped_file.h"
#include "model/tensor_list.h"
#include "model/weights_jobs.h"
#include "model/weights_loader.h"

namespace hadal {

struct WeightSources {
  TensorSources map;
  bool has_nextn = false;          // the NextN layer's tensors are among them
  std::vector<MappedFile> shards;  // the mappings that contain the sources' bytes
};

// Returns the shape and stored type of a tensor, without its values.
TensorSource source_of(const TensorSpec& spec, DType dtype);

// Returns, depending on options.format, the sources of all tensors that `config` needs, including those of
// its own NextN layer if options.loads_own_nextn(). It makes all checks of Checkpoint::open and
// match_tensors, and returns their errors.
Result<WeightSources> weight_sources(const std::filesystem::path& model_dir, const ModelConfig& config,
                                     const WeightLoadOptions& options);

// Returns the sources of a draft layer in the same way, under the names of its own directory. `seed` is the
// seed of random weights. The errors name the flag (kDraftFlag).
Result<WeightSources> draft_sources(const DraftLayer& draft, uint64_t seed);

// Removes from `nextn` the copies of embedding and head that the NextN layer of `config` has, if they have
// the type and the bytes of the tensors in `target`, which are then used instead. It takes as long as reading
// both from the files. `nextn` may be `target`.
void share_equal_copies(const ModelConfig& config, TensorSources& nextn, const TensorSources& target);

}  // namespace hadal
