#include "model/random_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/checkpoint_directory.h"
#include "model/safetensors_writer.h"
#include "model/tensor_list.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWrittenPieceBytes = int64_t{4} << 20;

struct TensorPiece {
  size_t tensor_idx = 0;
  int64_t begin = 0;  // in elements
  int64_t count = 0;
};

struct Progress {
  int64_t done_bytes = 0;
  int64_t total_bytes = 0;
  std::mutex mutex;
};

Result<void> write_shard(const fs::path& path, const std::vector<TensorSpec>& specs,
                         const RandomCheckpointOptions& options, ThreadPool& pool, Progress& progress) {
  std::vector<SafetensorsWriter::Entry> entries;
  std::vector<RandomTensor> tensors;
  std::vector<TensorPiece> pieces;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    entries.push_back({.name = spec.name, .dtype = spec.dtype, .shape = spec.shape});
    HADAL_ASSIGN_OR_RETURN(RandomTensor tensor, RandomTensor::make(spec, options.weights));
    tensors.push_back(tensor);
    const int64_t step = kWrittenPieceBytes / dtype_bytes(spec.dtype);
    for (int64_t begin = 0; begin < tensor.num_elements(); begin += step) {
      pieces.push_back({i, begin, std::min(step, tensor.num_elements() - begin)});
    }
  }
  HADAL_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::create(path, std::move(entries)));

  std::vector<std::vector<std::byte>> buffers(static_cast<size_t>(pool.num_threads()));
  std::optional<Status> failure;
  pool.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int thread_idx) {
    std::vector<std::byte>& buffer = buffers[static_cast<size_t>(thread_idx)];
    buffer.resize(kWrittenPieceBytes);
    for (int64_t i = begin; i < end; ++i) {
      {
        const std::lock_guard lock(progress.mutex);
        if (failure) return;
        if (options.cancelled != nullptr && options.cancelled->load()) {
          failure = make_status(StatusCode::kCancelled, "interrupted; {} is not written", path.string());
          return;
        }
      }
      const TensorPiece& piece = pieces[static_cast<size_t>(i)];
      const RandomTensor& tensor = tensors[piece.tensor_idx];
      const int64_t element_bytes = dtype_bytes(tensor.dtype());
      tensor.fill(piece.begin, piece.count, buffer.data());
      const Result<void> written =
          writer.write(piece.tensor_idx, piece.begin * element_bytes,
                       std::span(buffer).first(static_cast<size_t>(piece.count * element_bytes)));
      const std::lock_guard lock(progress.mutex);
      if (!written.ok()) failure = written.status();
      progress.done_bytes += piece.count * element_bytes;
      if (options.progress) options.progress(progress.done_bytes, progress.total_bytes);
    }
  });
  if (failure) return *failure;
  return writer.finish();
}

std::string generation_config_json(const ModelConfig& config) {
  std::string text = "{\n  \"_from_model_config\": true";
  if (config.bos_token_id) text += fmt::format(",\n  \"bos_token_id\": {}", *config.bos_token_id);
  if (config.eos_token_ids.size() == 1)
    text += fmt::format(",\n  \"eos_token_id\": {}", config.eos_token_ids[0]);
  if (config.eos_token_ids.size() > 1)
    text += fmt::format(",\n  \"eos_token_id\": [{}]", fmt::join(config.eos_token_ids, ", "));
  return text + "\n}\n";
}

}  // namespace

Result<RandomCheckpointSummary> write_random_checkpoint(const fs::path& dir, std::string_view config_json,
                                                        const ModelConfig& config,
                                                        const RandomCheckpointOptions& options,
                                                        ThreadPool& pool) {
  std::vector<TensorSpec> specs = expected_tensors(config);
  std::erase_if(
      specs, [&](const TensorSpec& spec) { return spec.optional && !(spec.nextn && options.nextn_copies); });
  RandomCheckpointSummary summary;
  summary.num_tensors = static_cast<int64_t>(specs.size());
  Progress progress;
  for (const TensorSpec& spec : specs) summary.num_bytes += spec.num_bytes();
  progress.total_bytes = summary.num_bytes;

  UnfinishedFiles files;
  HADAL_RETURN_IF_ERROR(prepare_directory(dir, summary.num_bytes, files));
  const auto shards = split_into_shards(std::move(specs), options.max_shard_bytes);
  summary.num_shards = static_cast<int64_t>(shards.size());
  const std::vector<std::string> names = shard_names(shards.size());
  for (size_t i = 0; i < shards.size(); ++i) {
    files.add(dir / names[i]);
    HADAL_RETURN_IF_ERROR(write_shard(dir / names[i], shards[i], options, pool, progress));
  }
  const auto write_file = [&](const char* name, const std::string& text) {
    files.add(dir / name);
    return write_text(dir / name, text);
  };
  if (shards.size() > 1) {
    HADAL_RETURN_IF_ERROR(
        write_file("model.safetensors.index.json", index_json(shards, names, summary.num_bytes)));
  }
  HADAL_RETURN_IF_ERROR(write_file("generation_config.json", generation_config_json(config)));
  HADAL_RETURN_IF_ERROR(write_file("config.json", std::string(config_json)));
  files.keep();
  return summary;
}

Result<uint64_t> random_checkpoint_checksum(const ModelConfig& config, const RandomWeightOptions& options) {
  uint64_t sum = 0;
  std::vector<std::byte> bytes;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.nextn || spec.optional) continue;
    HADAL_ASSIGN_OR_RETURN(const RandomTensor tensor, RandomTensor::make(spec, options));
    bytes.resize(static_cast<size_t>(tensor.num_bytes()));
    tensor.fill(0, tensor.num_elements(), bytes.data());
    sum += named_checksum(spec.name, bytes);
  }
  return sum;
}

}  // namespace hadal
