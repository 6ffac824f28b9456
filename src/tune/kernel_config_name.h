// Files of measured kernel choices have names like SGLang's, one file per shape and device:
//   dense    N=512,K=7168,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json
//   experts  E=257,N=256,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128, 128].json: gate_up;
//            the same ending in _down.json: down. E counts the experts of the product, including shared ones;
//            N is the intermediate size in the device's layout.
// A name for bf16 has no dtype part. The functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/params/linear.h"

namespace hadal {

inline constexpr int64_t kMaxConfigSize = int64_t{1} << 40;  // limit of batch sizes and of shapes

struct KernelConfigName {
  int64_t num_experts = 0;  // 0: a dense product, with k; otherwise experts, with down
  int64_t n = 0;            // outputs; for experts the intermediate size
  int64_t k = 0;
  bool down = false;
  WeightType type = WeightType::kBF16;
  std::string device;  // "NVIDIA H200", the name that the driver reports

  bool operator==(const KernelConfigName&) const = default;
};

// Returns a device's name in the form of files and folders: "NVIDIA_H200" for "NVIDIA H200".
std::string card_name(std::string_view device);
// The result ends with ".json".
std::string file_name(const KernelConfigName& name);
// Does the inverse of file_name for files of one device; returns nullopt for every other name.
std::optional<KernelConfigName> parse_file_name(std::string_view file, std::string_view device);
// Returns "NVIDIA_H200" for a name with ",device_name=NVIDIA_H200", whatever the card; empty if it has none.
std::string device_in_file_name(std::string_view file);

// Parses the number after `key`, at least 1 and without leading zeros, and removes both from the front of
// `text`.
std::optional<int64_t> take_config_number(std::string_view& text, std::string_view key);

}  // namespace hadal
