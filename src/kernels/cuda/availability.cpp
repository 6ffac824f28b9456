// Probes the device for `--device`. If CUDA cannot be used, the reason is one line that says what to do.
#include "kernels/cuda/availability.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <string>
#include <utility>

#include "kernels/cuda/common/code_probe.h"

namespace hadal::cuda {
namespace {

// The kernels use features that only Hopper has (wgmma, the copy engine, clusters) and are compiled for
// sm_90a alone. Code for sm_90a does not run on later architectures either.
constexpr int kMajor = 9;
constexpr int kMinor = 0;

Availability unusable(std::string reason, int num_devices = 0) {
  return {.usable = false, .reason = std::move(reason), .num_devices = num_devices};
}

std::string dotted(int cuda_version) {
  return fmt::format("{}.{}", cuda_version / 1000, cuda_version % 1000 / 10);
}

}  // namespace

Availability availability() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    return unusable("no NVIDIA driver is loaded; install one");
  }
  int num_devices = 0;
  const cudaError_t counted = cudaGetDeviceCount(&num_devices);
  if (counted == cudaErrorInsufficientDriver) {
    return unusable(fmt::format("the NVIDIA driver supports CUDA {}, this build needs {}; update the driver",
                                dotted(driver), dotted(CUDART_VERSION)));
  }
  if (counted == cudaErrorNoDevice || (counted == cudaSuccess && num_devices == 0)) {
    return unusable("the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES empty?)");
  }
  if (counted != cudaSuccess) {
    return unusable(fmt::format("the GPUs cannot be counted: {}", cudaGetErrorString(counted)));
  }
  int major = 0;
  int minor = 0;
  cudaError_t asked = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
  if (asked == cudaSuccess) asked = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
  if (asked != cudaSuccess) {
    return unusable(fmt::format("GPU 0 does not answer: {}", cudaGetErrorString(asked)), num_devices);
  }
  if (major != kMajor || minor != kMinor) {
    return unusable(fmt::format("this build's kernels are for Hopper (compute capability {}.{}), GPU 0 has "
                                "{}.{}",
                                kMajor, kMinor, major, minor),
                    num_devices);
  }
  const auto loaded = static_cast<cudaError_t>(load_code_probe());
  if (loaded != cudaSuccess) {
    return unusable(fmt::format("this build has no code for GPU 0 (compute capability {}.{}): {}", major,
                                minor, cudaGetErrorString(loaded)),
                    num_devices);
  }
  return {.usable = true, .reason = {}, .num_devices = num_devices};
}

}  // namespace hadal::cuda
