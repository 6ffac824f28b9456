// Writes a Hugging Face checkpoint directory with random weights (model/random_weights.h): shards, index,
// config.json and generation_config.json. It streams: each thread needs a few MiB of memory, whatever the
// size.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/random_weights.h"

namespace hadal {

struct RandomCheckpointOptions {
  RandomWeightOptions weights;
  int64_t max_shard_bytes = 5'000'000'000;  // a tensor larger than that gets a shard of its own
  bool nextn_copies = true;  // the NextN layer contains embedding and head, as in published files
  const std::atomic<bool>* cancelled = nullptr;  // set by another thread: stop, and remove what was written
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;  // after each piece of a shard
};

struct RandomCheckpointSummary {
  int64_t num_shards = 0;
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;  // bytes of tensor data
};

// Writes the checkpoint of `config_json` (stored as config.json; `config` is its parsed form) into `dir`,
// which is created if absent. The errors are kInvalidArgument when the directory already contains safetensors
// files or a config.json, kResourceExhausted when the disk is too small, and kCancelled. On any error the
// files written so far are removed (and the directory, if it was created here).
Result<RandomCheckpointSummary> write_random_checkpoint(const std::filesystem::path& dir,
                                                        std::string_view config_json,
                                                        const ModelConfig& config,
                                                        const RandomCheckpointOptions& options,
                                                        ThreadPool& pool);

// Returns one number for all weights of a config except the NextN layer's: the sum over its tensors of
// mix64(fnv1a64(name) ^ tensor_checksum(bytes)), modulo 2^64. The goldens contain it.
Result<uint64_t> random_checkpoint_checksum(const ModelConfig& config, const RandomWeightOptions& options);

}  // namespace hadal
