// Checkpoint is a checkpoint directory on disk: its shards are mapped, their headers checked, and tensors are
// found by name. It is immutable after open; any thread may read. Opening reads none of the data.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mapped_file.h"
#include "base/result.h"
#include "model/safetensors.h"
#include "model/tensor_list.h"

namespace hadal {

class Checkpoint {
 public:
  struct Entry {
    SafetensorsTensor info;
    std::span<const std::byte> data;  // inside its shard's mapping; alignment as in the file
    size_t shard_idx = 0;
  };

  // Opens `dir`/model.safetensors.index.json with the shards that it names, or else model.safetensors. The
  // errors are kNotFound when neither exists (the message names other weight files that do), missing shards
  // (one message names all of them), shard names that contain a path, the errors of parse_safetensors_header,
  // a tensor in two shards, and a tensor that the index places in a shard that lacks it.
  static Result<Checkpoint> open(const std::filesystem::path& dir);

  const Entry* find(std::string_view name) const;
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<MappedFile>& shards() const { return shards_; }
  const std::filesystem::path& dir() const { return dir_; }
  // Passes the mappings to the caller, which keeps the tensors' data in use. The checkpoint's spans stay
  // valid as long as these mappings live.
  std::vector<MappedFile> take_shards() && { return std::move(shards_); }

 private:
  Result<void> add_shard(const std::filesystem::path& path);

  std::filesystem::path dir_;
  std::vector<MappedFile> shards_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys point into entries_, so it is filled last
};

// TensorMatch says how a checkpoint compares with the expected tensors.
struct TensorMatch {
  std::vector<const Checkpoint::Entry*> entries;  // one per expected tensor; null: optional and absent
  bool has_nextn = false;                         // true if all of the NextN layer's tensors exist
};

// Reports all differences in one error: missing tensors, unexpected ones, wrong shapes and types. Extra
// tensors that no computation needs (rotary_emb.inv_freq, input_scale of a quantised linear) are ignored with
// one log line. Float types may differ from the expected one (F32, F16, BF16). A linear that the config
// quantises may also be stored unquantised, and then has no scale. The trailing ones of a scale's shape may
// be absent. If none of the NextN layer's tensors exists, the layer counts as absent, not as missing. If only
// a part of the checkpoint is expected, the names of that part begin with `within`, and tensors with other
// names are ignored.
Result<TensorMatch> match_tensors(const Checkpoint& checkpoint, const std::vector<TensorSpec>& expected,
                                  std::string_view within = {});

}  // namespace hadal
