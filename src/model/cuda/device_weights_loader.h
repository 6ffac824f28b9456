// Fills DeviceWeights from a checkpoint directory or with random numbers. Called once, at start, by the
// thread that owns the pool and has chosen the device (cuda_set_device).
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/cuda/device_weights.h"
#include "model/weights_loader.h"

namespace hadal {

// `model_dir` as in load_weights, whose errors come in the same words. Beyond those
// - compute_dtype float32 is refused, and float16 of a model with weights in 8 bits; with bfloat16, float16
//   weights are rounded to bf16;
// - experts that are stored as one matrix (n_shared_experts > 1) with scales of blocks, or get such scales,
//   need moe_intermediate_size to be a multiple of 128;
// - kResourceExhausted says how much device memory is needed and how much is free.
// load_nextn is ignored: the NextN layer's tensors are checked but not loaded. Every thread of the pool
// copies through pinned memory of its own (8 MB each, up to 8 threads). All copies have ended when it
// returns.
Result<DeviceWeights> load_device_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                          const WeightLoadOptions& options, ThreadPool& pool);

// DeviceWeights::bytes of a checkpoint that is stored as `config` says. A pure function, without a device.
int64_t device_weight_bytes(const ModelConfig& config, LoadQuantization quantization,
                            DType compute_dtype = DType::kBF16);

}  // namespace hadal
