// Reads and writes files of measured kernel choices, with names (kernel_config_name.h) and keys like
// SGLang's: one file per shape and device, which contains an object for each batch size. Besides the fields
// of Triton's kernels (BLOCK_SIZE_M, …, num_stages) an entry has our own: kernel, splits, cluster, time_us,
// and for experts hidden_size and rows. Entries without `kernel` are for other kernels; they are counted and
// ignored. Any thread may call these functions, which are pure unless they have a directory as parameter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/cuda/product_choices.h"
#include "kernels/params/linear.h"
#include "tune/kernel_config_name.h"

namespace hadal {

struct KernelConfigEntry {
  int64_t batch = 0;  // tokens
  cuda::Choice choice;
  double time_us = 0.0;     // as measured; 0: not given
  int64_t hidden_size = 0;  // experts: outputs of down, k of gate_up
  int64_t rows = 0;         // experts: rows of the product for `batch` tokens

  bool operator==(const KernelConfigEntry&) const = default;
};

struct KernelConfigFile {
  std::vector<KernelConfigEntry> entries;  // ascending by batch
  int num_foreign = 0;                     // entries for other kernels
  std::vector<std::string> unknown;        // one line per entry whose kernel does not exist in this version
  std::vector<int64_t> later;              // the batch sizes of those entries
  std::vector<int64_t> clashing;  // batch sizes of other tools' entries that have field names of ours
};

// `source` names the file in errors. The errors (kDataLoss) are text that is not JSON, a key that is not a
// batch size, and a field of the wrong type or out of range. Unknown fields and top-level values (such as a
// version) are ignored.
Result<KernelConfigFile> parse_kernel_config(std::string_view json, std::string_view source, bool experts);

// Returns the file's text, indented, with batch sizes ascending.
std::string kernel_config_json(std::span<const KernelConfigEntry> entries, WeightType type, bool experts);

// Reads the file of `name` in the directory. Errors are those of parse_kernel_config; an absent file is not
// an error.
Result<KernelConfigFile> read_kernel_config(const std::filesystem::path& dir, const KernelConfigName& name);
// Writes the entries into that file. They replace our own entries of the same batch sizes and are added to
// the fields of another tool's entries. Everything else in the file is kept: other batch sizes, other tools'
// entries and top-level values. The file is replaced as a whole, so a reader sees either the old or the new
// file. It is an error if the file is not a JSON object, another tool's entry has field names of ours
// (clashing_entry), or the directory cannot be written.
Result<void> write_kernel_config(const std::filesystem::path& dir, const KernelConfigName& name,
                                 std::span<const KernelConfigEntry> entries);

// Returns the error for an entry whose field names clash with ours, which names file and key.
Status clashing_entry(const std::filesystem::path& dir, const KernelConfigName& name, int64_t batch);

// Returns true if an entry may name this choice. The plain kernel serves only for comparison and for shapes
// that no other kernel supports.
inline bool may_be_chosen(const cuda::Choice& choice) {
  return choice.kernel != cuda::ProductKernel::kReference;
}

// Returns the shape of the product for one entry.
cuda::LinearShape linear_shape_of(const KernelConfigName& name, int64_t batch, int num_sms);
cuda::GroupedShape grouped_shape_of(const KernelConfigName& name, int64_t hidden_size, int64_t rows,
                                    int num_sms);

// Loads every file of the device in the directories and in their folders that have the card's name
// ("NVIDIA_H200"). Among files with equal names the file in the last directory is used, and within one
// directory the file in the card's folder. Entries that are not compiled here or do not support their shape
// are left out, with one warning per file. `named` is the directory that the user named; if none of its
// entries is used, there is a warning about that too. It logs what was loaded. The errors are a path that is
// not a directory, and a file that cannot be read or parsed.
Result<cuda::ProductChoices> load_kernel_configs(std::span<const std::filesystem::path> dirs,
                                                 std::string_view device, int num_sms,
                                                 const std::optional<std::filesystem::path>& named = {});

}  // namespace hadal
