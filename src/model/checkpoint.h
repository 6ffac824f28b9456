// A checkpoint directory on disk: its shards mapped, their headers checked, tensors found by name. Immutable
// after open; any thread may read. Nothing of the data is read here.
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
    std::span<const std::byte> data;  // inside its shard's mapping; alignment as the file has it
    size_t shard_idx = 0;
  };

  // Opens `dir`/model.safetensors.index.json with the shards that it names, or else model.safetensors.
  // Errors: kNotFound when neither is there (naming other weight files that are), all missing shards in one
  // message, shard names with a path in them, and whatever parse_safetensors_header finds; a tensor in two
  // shards; a tensor that the index places in a shard that lacks it.
  static Result<Checkpoint> open(const std::filesystem::path& dir);

  const Entry* find(std::string_view name) const;
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<MappedFile>& shards() const { return shards_; }
  const std::filesystem::path& dir() const { return dir_; }
  // The mappings, for whoever keeps the tensors' data in use. The checkpoint's spans stay valid as long as
  // those live.
  std::vector<MappedFile> take_shards() && { return std::move(shards_); }

 private:
  Result<void> add_shard(const std::filesystem::path& path);

  std::filesystem::path dir_;
  std::vector<MappedFile> shards_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, size_t> by_name_;  // keys point into entries_: filled at the end
};

// What a checkpoint holds against what it should.
struct TensorMatch {
  std::vector<const Checkpoint::Entry*> entries;  // one for each expected tensor; null: optional and absent
  bool has_nextn = false;                         // all of the NextN layer's tensors are there
};

// All differences in one error: missing tensors, unexpected ones, wrong shapes and types. Leftovers that no
// computation needs (rotary_emb.inv_freq, input_scale of a quantised linear) are ignored with one log line.
// Float types may differ from the expected one (F32, F16, BF16); a linear that the config quantises may also
// be stored unquantised, then without its scale. A scale's shape may lack its last ones. When
// not a single tensor of the NextN layer is there, it counts as absent, not as missing.
Result<TensorMatch> match_tensors(const Checkpoint& checkpoint, const std::vector<TensorSpec>& expected);

}  // namespace hadal
