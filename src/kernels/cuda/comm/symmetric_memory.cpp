#include "kernels/cuda/comm/symmetric_memory.h"

#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/comm/device_scope.cuh"
#include "kernels/cuda/common/launch.cuh"

namespace hadal::cuda {
namespace {

template <typename Function>
Function driver_function(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  HADAL_CUDA_CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status));
  HADAL_CHECK(status == cudaDriverEntryPointSuccess && found != nullptr,
              "the driver has no {} (status {}): it must be of CUDA 12 or newer", name,
              static_cast<int>(status));
  return reinterpret_cast<Function>(found);
}

// The driver's functions are looked up through the runtime, so that nothing links against the driver's
// library.
struct Driver {
#define HADAL_DRIVER_FUNCTION(member, name) decltype(&name) member = driver_function<decltype(&name)>(#name)
  HADAL_DRIVER_FUNCTION(granularity, cuMemGetAllocationGranularity);
  HADAL_DRIVER_FUNCTION(create, cuMemCreate);
  HADAL_DRIVER_FUNCTION(release, cuMemRelease);
  HADAL_DRIVER_FUNCTION(reserve, cuMemAddressReserve);
  HADAL_DRIVER_FUNCTION(free, cuMemAddressFree);
  HADAL_DRIVER_FUNCTION(map, cuMemMap);
  HADAL_DRIVER_FUNCTION(unmap, cuMemUnmap);
  HADAL_DRIVER_FUNCTION(set_access, cuMemSetAccess);
  HADAL_DRIVER_FUNCTION(error_string, cuGetErrorString);
#undef HADAL_DRIVER_FUNCTION
};
const Driver& driver() {
  static const Driver functions;
  return functions;
}

void check_driver(CUresult result, const char* call, int device, int64_t bytes) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().error_string(result, &text);
  throw Error(fmt::format("GPU {}: {} bytes for exchanges between ranks: {}: {}", device, bytes, call,
                          text == nullptr ? "unknown error" : text));
}

}  // namespace

void check_peer_access(std::span<const int> devices) {
  int num_devices = 0;
  HADAL_CUDA_CHECK(cudaGetDeviceCount(&num_devices));
  for (const int device : devices) {
    if (device < 0 || device >= num_devices) {
      throw Error(fmt::format("ranks need GPU {}, and this machine has {}", device, num_devices));
    }
  }
  for (const int reader : devices) {
    for (const int owner : devices) {
      if (reader == owner) continue;
      int can = 0;
      HADAL_CUDA_CHECK(cudaDeviceCanAccessPeer(&can, reader, owner));
      if (can == 0) {
        throw Error(fmt::format("GPU {} cannot access the memory of GPU {}, which ranks on both need", reader,
                                owner));
      }
    }
  }
}

SymmetricMemory::SymmetricMemory(int device, std::span<const int> devices, int64_t bytes) {
  HADAL_CHECK(bytes > 0, "memory of {} bytes", bytes);
  const DeviceScope scope(device);
  HADAL_CUDA_CHECK(cudaFree(nullptr));  // creates the device's context, which the driver's calls need
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  size_t page = 0;
  check_driver(driver().granularity(&page, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "cuMemGetAllocationGranularity", device, bytes);
  const size_t size = (static_cast<size_t>(bytes) + page - 1) / page * page;
  // The object owns everything that has been allocated so far, and releases it if a later call throws.
  SymmetricMemory made;
  CUmemGenericAllocationHandle handle = 0;
  check_driver(driver().create(&handle, size, &properties, 0), "cuMemCreate", device, bytes);
  made.handle_ = handle;
  CUdeviceptr address = 0;
  check_driver(driver().reserve(&address, size, 0, 0, 0), "cuMemAddressReserve", device, bytes);
  const CUresult mapped = driver().map(address, size, 0, handle, 0);
  if (mapped != CUDA_SUCCESS) driver().free(address, size);
  check_driver(mapped, "cuMemMap", device, bytes);
  made.data_ = reinterpret_cast<std::byte*>(address);
  made.bytes_ = static_cast<int64_t>(size);
  std::vector<CUmemAccessDesc> access;
  for (const int reader : devices) {
    access.push_back({.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = reader},
                      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  check_driver(driver().set_access(address, size, access.data(), access.size()), "cuMemSetAccess", device,
               bytes);
  HADAL_CUDA_CHECK(cudaMemset(made.data_, 0, size));
  HADAL_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  *this = std::move(made);
}

SymmetricMemory& SymmetricMemory::operator=(SymmetricMemory&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    handle_ = std::exchange(other.handle_, 0);
  }
  return *this;
}

// Errors are ignored, because a failing call reports an error of earlier work, which the next synchronisation
// reports too.
void SymmetricMemory::release() noexcept {
  if (data_ != nullptr) {
    const auto address = reinterpret_cast<CUdeviceptr>(data_);
    driver().unmap(address, static_cast<size_t>(bytes_));
    driver().free(address, static_cast<size_t>(bytes_));
  }
  if (handle_ != 0) driver().release(handle_);
  data_ = nullptr;
  bytes_ = 0;
  handle_ = 0;
}

}  // namespace hadal::cuda
