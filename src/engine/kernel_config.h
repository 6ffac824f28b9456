// Files of measured kernel choices, named and keyed as SGLang does: one file a shape and device, in it an
// object for each batch size.
//   dense    N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json
//   experts  E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json: gate_up;
//            the same ending in _down.json: down. E counts the experts of the product, shared ones among
//            them; N is the intermediate size as the device holds it.
// bf16: no dtype. Beside the fields of Triton's kernels (BLOCK_SIZE_M, …, num_stages) an entry has our own:
// kernel, splits, cluster, time_us, and for experts hidden_size and rows. Entries without `kernel` describe
// others' kernels and are counted, not used. Pure functions but where a directory is named; any thread.
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

namespace hadal {

struct KernelConfigName {
  int64_t num_experts = 0;  // 0: a dense product, with k; else experts, with down
  int64_t n = 0;            // outputs; of experts the intermediate size
  int64_t k = 0;
  bool down = false;
  WeightType type = WeightType::kBF16;
  std::string device;  // "NVIDIA H200", as the driver says it

  bool operator==(const KernelConfigName&) const = default;
};

// With ".json".
std::string file_name(const KernelConfigName& name);
// The inverse for files of one device; nullopt for every other name.
std::optional<KernelConfigName> parse_file_name(std::string_view file, std::string_view device);
// "NVIDIA_H200" of a name with ",device_name=NVIDIA_H200", whatever card that is; empty: a name without.
std::string device_in_file_name(std::string_view file);

struct KernelConfigEntry {
  int64_t batch = 0;  // tokens
  cuda::Choice choice;
  double time_us = 0.0;     // as measured; 0: not said
  int64_t hidden_size = 0;  // experts: outputs of down, k of gate_up
  int64_t rows = 0;         // experts: rows of the product for `batch` tokens

  bool operator==(const KernelConfigEntry&) const = default;
};

struct KernelConfigFile {
  std::vector<KernelConfigEntry> entries;  // by batch
  int num_foreign = 0;                     // entries of others' kernels
  std::vector<std::string> unknown;  // a line for each entry of a kernel that this version does not have
  std::vector<int64_t> later;        // the batch sizes of these
  std::vector<int64_t> clashing;     // those of others' entries whose fields have the names of ours
};

// `source` names the file in errors (kDataLoss): not JSON, a key that is no batch size, a field of the wrong
// type or out of range. Fields and top-level values (a version) that are not known are passed over.
Result<KernelConfigFile> parse_kernel_config(std::string_view json, std::string_view source, bool experts);

// Pretty-printed, batch sizes ascending.
std::string kernel_config_json(std::span<const KernelConfigEntry> entries, WeightType type, bool experts);

// The file of `name` in the directory. Errors: as parse_kernel_config; none where there is no file.
Result<KernelConfigFile> read_kernel_config(const std::filesystem::path& dir, const KernelConfigName& name);
// Puts the entries into it, in place of our own of the same batch sizes, and beside the fields of another
// tool's. Everything else of the file stays: other batch sizes, others' entries, top-level values. The file
// is replaced as a whole: a reader sees the old one or the new one. Errors: the file is no JSON object;
// another tool's entry has fields of our names (clashing_entry); the directory cannot be written.
Result<void> write_kernel_config(const std::filesystem::path& dir, const KernelConfigName& name,
                                 std::span<const KernelConfigEntry> entries);

// What refuses such an entry, naming file and key.
Status clashing_entry(const std::filesystem::path& dir, const KernelConfigName& name, int64_t batch);

// Whether an entry may choose it: the plain kernel is for comparing and for what no other takes.
inline bool may_be_chosen(const cuda::Choice& choice) {
  return choice.kernel != cuda::ProductKernel::kReference;
}

// The product's shape for one entry.
cuda::LinearShape linear_shape_of(const KernelConfigName& name, int64_t batch, int num_sms);
cuda::GroupedShape grouped_shape_of(const KernelConfigName& name, int64_t hidden_size, int64_t rows,
                                    int num_sms);

// Every file of the device in the directories; of files with equal names the last directory's counts. Entries
// that are not compiled here or do not take their shape are left out, with a warning a file; `named`, the one
// of the directories that the user named, is warned of where none of its entries is used. Logs what was
// loaded. Errors: a directory that is not one, a file that cannot be read or parsed.
Result<cuda::ProductChoices> load_kernel_configs(std::span<const std::filesystem::path> dirs,
                                                 std::string_view device, int num_sms,
                                                 const std::optional<std::filesystem::path>& named = {});

}  // namespace hadal
