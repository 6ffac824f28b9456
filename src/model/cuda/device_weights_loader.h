// Fills DeviceWeights from a checkpoint directory or with random numbers. The thread that owns
// the pool and has chosen the device (cuda_set_device) calls it once, at start.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/cuda/device_weights.h"
#include "model/weights_loader.h"

namespace hadal {

// `model_dir` is that of load_weights, and errors have the same texts. Beyond those
// - compute_dtype float32 is refused, and float16 for a model with 8-bit weights; with bfloat16, float16
//   weights are rounded to bf16;
// - kResourceExhausted names the device memory that is needed and that is free.
// With load_nextn the NextN layer is loaded if the checkpoint has it, or the draft layer, whose 8-bit linears
// must have the model's format (check_gpu_draft); it shares embedding and head with the target unless its
// copies differ. Every thread of the pool copies through its own pinned memory (8 MB each,
// up to 8 threads). All copies have ended when this returns.
Result<DeviceWeights> load_device_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                          const WeightLoadOptions& options, ThreadPool& pool);

// RankDevice is a rank of this process and the GPU that holds its weights.
struct RankDevice {
  int64_t rank = 0;
  int device = 0;
};

// Loads the weights of several ranks, in the order of `ranks`; a part of a file is read once, whoever holds
// it. Ranks may share a GPU. The split has been checked (check_split). Errors are as above, and name the GPU
// that lacks memory. The calling thread's device is `ranks[0].device` afterwards.
Result<std::vector<DeviceWeights>> load_device_weights(const std::filesystem::path& model_dir,
                                                       const ModelConfig& config,
                                                       const WeightLoadOptions& options, ModelSplit split,
                                                       std::span<const RankDevice> ranks, ThreadPool& pool);

}  // namespace hadal
