#include "tune/kernel_config_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>

namespace hadal {

namespace {

constexpr WeightType kTypes[] = {WeightType::kF32,       WeightType::kBF16,       WeightType::kFp8Block,
                                 WeightType::kInt8Block, WeightType::kFp8Channel, WeightType::kInt8Channel};

const char* type_part(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return ",dtype=float32";
    case WeightType::kBF16:
    case WeightType::kF16:  // for float16 the measurements of bf16 are used
      return "";
    case WeightType::kFp8Block:
      return ",dtype=fp8_w8a8,block_shape=[128, 128]";
    case WeightType::kInt8Block:
      return ",dtype=int8_w8a8,block_shape=[128, 128]";
    case WeightType::kFp8Channel:
      return ",dtype=fp8_w8a8,per_channel_quant=True";
    case WeightType::kInt8Channel:
      return ",dtype=int8_w8a8,per_channel_quant=True";
  }
  return "";
}

}  // namespace

std::optional<int64_t> take_config_number(std::string_view& text, std::string_view key) {
  if (!text.starts_with(key)) return std::nullopt;
  text.remove_prefix(key.size());
  if (text.starts_with('0')) return std::nullopt;
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 1 || value > kMaxConfigSize) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

std::string card_name(std::string_view device) {
  std::string name(device);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

std::string file_name(const KernelConfigName& name) {
  const std::string device = card_name(name.device);
  const std::string shape = name.num_experts > 0 ? fmt::format("E={},N={}", name.num_experts, name.n)
                                                 : fmt::format("N={},K={}", name.n, name.k);
  return fmt::format("{},device_name={}{}{}.json", shape, device, type_part(name.type),
                     name.down ? "_down" : "");
}

std::optional<KernelConfigName> parse_file_name(std::string_view file, std::string_view device) {
  KernelConfigName name{.device = std::string(device)};
  std::string_view rest = file;
  const bool experts = file.starts_with("E=");
  const auto first = take_config_number(rest, experts ? "E=" : "N=");
  const auto second = take_config_number(rest, experts ? ",N=" : ",K=");
  if (!first || !second) return std::nullopt;
  name.num_experts = experts ? *first : 0;
  name.n = experts ? *second : *first;
  name.k = experts ? 0 : *second;
  for (const WeightType type : kTypes) {
    for (const bool down : {false, true}) {
      if (down && !experts) continue;
      name.type = type;
      name.down = down;
      if (file_name(name) == file) return name;
    }
  }
  return std::nullopt;
}

std::string device_in_file_name(std::string_view file) {
  constexpr std::string_view kKey = ",device_name=", kEnd = ".json", kDown = "_down";
  const size_t key = file.find(kKey);
  if (key == file.npos || !file.ends_with(kEnd)) return {};
  const size_t begin = key + kKey.size();
  std::string_view device =
      file.substr(begin, std::min(file.find(',', begin), file.size() - kEnd.size()) - begin);
  if (file.starts_with("E=") && device.ends_with(kDown)) device.remove_suffix(kDown.size());
  return std::string(device);
}

}  // namespace hadal
