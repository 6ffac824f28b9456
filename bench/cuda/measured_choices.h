// Loads the choices of kernels that an engine would load from a directory (tune/kernel_config.h).
#pragma once

#include <array>
#include <filesystem>

#include "tensor/cuda.h"
#include "tune/kernel_config.h"

namespace hadal::bench {

// If `dir` is empty, there are no measured choices.
inline cuda::ProductChoices measured_choices(const std::filesystem::path& dir, const CudaDeviceInfo& device) {
  if (dir.empty()) return {};
  const std::array<std::filesystem::path, 1> dirs{dir};
  return load_kernel_configs(dirs, device.name, device.num_sms).value();  // throws on errors
}

}  // namespace hadal::bench
