// Converts tensors before their first use, in a loop that runs on all threads. Only the loader includes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/params/linear.h"
#include "model/random_weights.h"
#include "model/weights_loader.h"

namespace hadal {

// TensorSource is the origin of a tensor's stored values: bytes of a mapping, or the random generator.
struct TensorSource {
  DType dtype = DType::kBF16;
  int64_t rows = 1;  // [rows, cols]; vectors are one row
  int64_t cols = 0;
  std::span<const std::byte> bytes;    // rows · cols values, any alignment; empty when random
  std::optional<RandomTensor> random;  // set: `bytes` is unused

  int64_t num_elements() const { return rows * cols; }
};
using TensorSources = std::unordered_map<std::string, TensorSource>;  // by the checkpoint's name

enum class WeightJobKind : uint8_t {
  kCopy,        // dst: the stored type
  kWiden,       // dst: float32
  kRound,       // dst: bf16
  kRepeat,      // dst: float32 [repeats], all of them equal to the source's one value
  kQuantize,    // dst: codes of `type`; scales as quantize_rows writes them for the whole matrix
  kDequantize,  // source: codes of `type` with scales from scale_source; dst: float32
  kDequantizeToBf16,
};

struct WeightJob {
  WeightJobKind kind = WeightJobKind::kCopy;
  TensorSource source;
  std::byte* dst = nullptr;
  float* scales = nullptr;
  WeightType type = WeightType::kFp8Block;
  int64_t repeats = 0;
  // Its shape is [ceil(rows / 128), ceil(cols / 128)] for blocks; [rows, 1] or one value otherwise.
  TensorSource scale_source;
};

// Runs all jobs, in pieces of a few MB that threads fetch on demand. Pages of the mapping are dropped from
// memory once they have been converted, so that the peak is the memory that the weights finally need.
void run_weight_jobs(std::span<const WeightJob> jobs, ThreadPool& pool, const LoadProgress& progress);

}  // namespace hadal
