// Reads the goldens of tests/model/goldens, and writes their checkpoints to a temporary directory with the
// generator of model/random_weights.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/config.h"

namespace hadal::testing {

struct GoldenCase {
  std::vector<int32_t> input_ids;
  std::vector<int32_t> greedy_ids;  // the greedy continuation; end-of-sequence is ignored
  std::vector<float> logits;        // [input_ids.size(), vocab_size], for every prompt position
};

struct Golden {
  std::string name;
  std::filesystem::path config_path;
  ModelConfig config;
  uint64_t seed = 0;
  double gate_bias_amplitude = 0.0;
  uint64_t weights_checksum = 0;
  std::vector<GoldenCase> cases;
};

// Returns the directories under tests/model/goldens, sorted.
std::vector<std::string> golden_names();

// Reads one golden; throws hadal::Error when a file is missing or malformed.
Golden load_golden(const std::string& name);

// Makes a golden's checkpoint directory on construction, which throws if the weights' checksum differs from
// the golden's, and removes it on destruction.
class GoldenCheckpoint {
 public:
  explicit GoldenCheckpoint(const Golden& golden);
  ~GoldenCheckpoint();
  GoldenCheckpoint(const GoldenCheckpoint&) = delete;
  GoldenCheckpoint& operator=(const GoldenCheckpoint&) = delete;

  const std::filesystem::path& dir() const { return dir_; }

 private:
  std::filesystem::path dir_;
};

// Makes a fresh empty directory below the system's temporary one.
std::filesystem::path make_temporary_directory(const std::string& prefix);

}  // namespace hadal::testing
