// Rewrites a checkpoint directory with its linears in another format: it reads any checkpoint that the engine
// reads, and writes any published format or none. It streams, so each thread needs memory for only a few
// strips of 128 rows, whatever the size of the checkpoint.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/quantization.h"

namespace hadal {

struct QuantizedCheckpointOptions {
  // null: unquantised. Codes are then converted to float32 if that is the torch_dtype, otherwise to bf16.
  const PublishedFormat* format = nullptr;
  std::vector<std::string> unquantised;          // linears to leave out, in the form of ModuleList
  int64_t max_shard_bytes = 5'000'000'000;       // a tensor larger than that gets a shard of its own
  const std::atomic<bool>* cancelled = nullptr;  // set by another thread: stop, and remove what was written
  std::function<void(int64_t done_bytes, int64_t total_bytes)> progress;  // after each piece
};

struct QuantizedCheckpointSummary {
  int64_t num_shards = 0;
  int64_t num_tensors = 0;
  int64_t num_quantised = 0;                // linears written as codes
  int64_t num_bytes = 0;                    // bytes of tensor data
  std::vector<std::string> without_effect;  // entries of `unquantised` that select no linear of the model
  std::vector<std::string> kept_files;  // files of `to` that were kept, so that the source's were not copied
};

// Reads `from` and writes `to`, which is created if absent: shards, index, config.json with the format's
// quantization_config, and copies of all other small files except weights. Linears are quantised as at load
// (quantize.h). Linears stored as codes are quantised from their float32 values, unless their codes and
// scales mean the same in the new format; everything else is copied. The errors are those of
// Checkpoint::open, match_tensors and parse_model_config; a linear that contains NaN or infinity; and
// kInvalidArgument when `to` already contains a checkpoint, kResourceExhausted when the disk is too small, or
// kCancelled. On any error the files written so far are removed.
Result<QuantizedCheckpointSummary> write_quantized_checkpoint(const std::filesystem::path& from,
                                                              const std::filesystem::path& to,
                                                              const QuantizedCheckpointOptions& options,
                                                              ThreadPool& pool);

}  // namespace hadal
