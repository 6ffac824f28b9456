// Executes a plan on host memory with the CPU's conversions, and compares placed weights (which the host can
// read) with the host loader's ModelWeights, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/cuda/device_weights_plan.h"
#include "model/weights.h"
#include "model/weights_sources.h"

namespace hadal::testing {

// Holds host memory that is aligned to 256 bytes and zero.
class HostBlock {
 public:
  explicit HostBlock(size_t bytes) : memory_(bytes + 256) {}
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (256 - address % 256) % 256;
  }

 private:
  std::vector<std::byte> memory_;
};

// Holds a config of tests/model/goldens.
struct GoldenConfig {
  std::string name;
  std::string text;
  ModelConfig config;
};
std::vector<GoldenConfig> golden_configs();
// Returns the config of that name, with parts of its text replaced.
GoldenConfig golden_config(const std::string& name,
                           const std::vector<std::pair<std::string, std::string>>& replacements = {});

// Holds the RoPE table [max_position_embeddings, 64], and a source that reads it.
struct RopeRows {
  explicit RopeRows(const ModelConfig& config);
  std::vector<float> rows;
  TensorSource source;
};

// Returns the shape of every tensor of a checkpoint that is stored as `config` says, without values.
TensorSources shapes_of(const ModelConfig& config);

// Writes codes [n, k] with their scales (per block, per row, or one) as bf16 rows that are `stride` apart.
void widen_on_host(WeightType type, const std::byte* codes, int64_t n, int64_t k, std::vector<float> scales,
                   bf16* out, int64_t stride);

// Returns the address of an element of a matrix that the host can read.
const std::byte* element_at(const MatrixWeight& w, int64_t row, int64_t col);

// Executes all placements and transposes of the plan, whose memory is the host's.
void run_on_host(const DeviceWeightPlan& plan);

// Expects that no place of the plan, which begins at `base`, is written twice, is outside of its block or is
// misaligned, and that windows lie in their sources. The memory is not touched.
void expect_separate_places(const DeviceWeightPlan& plan, const std::byte* base);

// Expects the bits of the host loader's weights; `placed` points into host memory.
void expect_same_weights(const DeviceWeights& placed, const ModelWeights& stored, const ModelConfig& config);

// Owns a directory below the system's temporary one (or HADAL_TEST_DIR), which is removed at the end.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Writes a checkpoint of random weights; throws on failure.
void write_checkpoint(const std::filesystem::path& dir, const GoldenConfig& golden, uint64_t seed);

}  // namespace hadal::testing
