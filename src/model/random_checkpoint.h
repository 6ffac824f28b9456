// A Hugging Face checkpoint directory full of random weights (model/random_weights.h): shards, index,
// config.json and generation_config.json. Streams: memory stays at a few MiB a thread whatever the size.
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
  bool nextn_copies = true;  // the NextN layer carries embedding and head, as published files do
  const std::atomic<bool>* cancelled = nullptr;  // set from elsewhere: stop, remove what was written
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;  // after each piece of a shard
};

struct RandomCheckpointSummary {
  int64_t num_shards = 0;
  int64_t num_tensors = 0;
  int64_t num_bytes = 0;  // of tensor data
};

// Writes the checkpoint of `config_json` (stored as config.json; `config` is what it parses to) into `dir`,
// which is created if absent. Errors: kInvalidArgument when the directory already holds safetensors files or
// a config.json, kResourceExhausted when the disk is too small, kCancelled; on any error the files written so
// far are removed (and the directory, if it was created here).
Result<RandomCheckpointSummary> write_random_checkpoint(const std::filesystem::path& dir,
                                                        std::string_view config_json,
                                                        const ModelConfig& config,
                                                        const RandomCheckpointOptions& options,
                                                        ThreadPool& pool);

// One number for all weights of a config but the NextN layer's: the sum over its tensors of
// mix64(fnv1a64(name) ^ tensor_checksum(bytes)), modulo 2^64. Goldens state it.
Result<uint64_t> random_checkpoint_checksum(const ModelConfig& config, const RandomWeightOptions& options);

}  // namespace hadal
