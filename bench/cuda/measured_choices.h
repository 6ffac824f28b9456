// The choices of kernels that an engine would take from a directory (engine/kernel_config.h).
#pragma once

#include <array>
#include <filesystem>

#include "engine/kernel_config.h"
#include "tensor/cuda.h"

namespace hadal::bench {

// dir: empty: none.
inline cuda::ProductChoices measured_choices(const std::filesystem::path& dir, const CudaDeviceInfo& device) {
  if (dir.empty()) return {};
  const std::array<std::filesystem::path, 1> dirs{dir};
  return load_kernel_configs(dirs, device.name, device.num_sms).value();  // throws what is wrong
}

}  // namespace hadal::bench
