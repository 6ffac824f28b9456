// Contains what writers of checkpoint directories share: a fresh directory that is cleared again on failure,
// the split into shards, and the index. Only these writers include it; one thread uses it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/tensor_list.h"

namespace hadal {

// Removes the files that were added, and the directory if it was created here and is empty, unless keep() is
// called.
class UnfinishedFiles {
 public:
  UnfinishedFiles() = default;
  UnfinishedFiles(const UnfinishedFiles&) = delete;
  UnfinishedFiles& operator=(const UnfinishedFiles&) = delete;
  ~UnfinishedFiles();

  void add(std::filesystem::path path) { paths_.push_back(std::move(path)); }
  void add_dir(std::filesystem::path dir) { dir_ = std::move(dir); }
  void keep();
  // Returns false if another process, or another object, holds the directory's lock; otherwise locks it until
  // the end.
  bool lock(const std::filesystem::path& dir);

 private:
  std::vector<std::filesystem::path> paths_;
  std::filesystem::path dir_;
  int lock_ = -1;
};

// Creates `dir` if it is absent and locks it. The error is kInvalidArgument if another process is writing to
// it, if it already contains safetensors files, their index, config.json or generation_config.json, or if it
// is not a directory. It is kResourceExhausted if its disk has less than num_bytes left, and otherwise
// kInternal.
Result<void> prepare_directory(const std::filesystem::path& dir, int64_t num_bytes, UnfinishedFiles& files);

// Splits tensors, in their order, into shards of up to max_shard_bytes; a larger tensor gets a shard of its
// own. A scale is in the same shard as its linear.
std::vector<std::vector<TensorSpec>> split_into_shards(std::vector<TensorSpec> specs,
                                                       int64_t max_shard_bytes);

// Returns "model.safetensors" for one shard, "model-00001-of-00003.safetensors", … for more.
std::vector<std::string> shard_names(size_t num_shards);

// Returns the text of model.safetensors.index.json.
std::string index_json(std::span<const std::vector<TensorSpec>> shards, std::span<const std::string> names,
                       int64_t total_bytes);

// Replaces a file. The error is kResourceExhausted.
Result<void> write_text(const std::filesystem::path& path, std::string_view text);

}  // namespace hadal
