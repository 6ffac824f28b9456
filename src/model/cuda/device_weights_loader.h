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

// `model_dir` is as for load_weights, and errors have the same texts. In addition:
// - compute_dtype float32 is refused, and float16 for a model with 8-bit weights; with bfloat16, float16
//   weights are rounded to bf16;
// - kResourceExhausted names the device memory that is needed and that is free.
// With load_nextn the draft layer is loaded or, if there is none, the checkpoint's own NextN layer if it has
// one. The 8-bit linears of a draft layer must have the model's format (check_gpu_draft). The loaded layer
// shares embedding and head with the target unless its copies differ. Each of up to 8 threads of the pool
// copies through its own pinned memory of 8 MB. All copies have ended when this returns.
Result<DeviceWeights> load_device_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                          const WeightLoadOptions& options, ThreadPool& pool);

// RankDevice is a rank of this process and the GPU that holds its weights.
struct RankDevice {
  int64_t rank = 0;
  int device = 0;
};

// Loads the weights of several ranks, in the order of `ranks`. A part of a file is read once, however many
// ranks hold it. Ranks may share a GPU. The split has been checked (check_split). Errors are as above, and
// name the GPU that lacks memory. The calling thread's device is `ranks[0].device` afterwards.
Result<std::vector<DeviceWeights>> load_device_weights(const std::filesystem::path& model_dir,
                                                       const ModelConfig& config,
                                                       const WeightLoadOptions& options, ModelSplit split,
                                                       std::span<const RankDevice> ranks, ThreadPool& pool);

}  // namespace hadal
