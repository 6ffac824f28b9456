// Fills DeviceWeights from a checkpoint directory or with random numbers. The thread that owns
// the pool and has chosen the device (cuda_set_device) calls it once, at start.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/cuda/device_weights.h"
#include "model/weights_loader.h"

namespace hadal {

// `model_dir` is that of load_weights, and errors have the same texts. Beyond those
// - compute_dtype float32 is refused, and float16 for a model with 8-bit weights; with bfloat16, float16
//   weights are rounded to bf16;
// - experts that are stored as one matrix (n_shared_experts > 1) with block scales, or that get such scales,
//   need moe_intermediate_size to be a multiple of 128;
// - kResourceExhausted names the device memory that is needed and that is free.
// load_nextn is ignored: the NextN layer's tensors are checked but not loaded. Every thread of the pool
// copies through its own pinned memory (8 MB each, up to 8 threads). All copies have ended when this
// returns.
Result<DeviceWeights> load_device_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                          const WeightLoadOptions& options, ThreadPool& pool);

// Returns DeviceWeights::bytes of a checkpoint that is stored as `config` says. It is a pure function and
// needs no device.
int64_t device_weight_bytes(const ModelConfig& config, LoadQuantization quantization,
                            DType compute_dtype = DType::kBF16);

}  // namespace hadal
