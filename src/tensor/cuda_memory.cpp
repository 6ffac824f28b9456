// Implements device and pinned memory, and the copies between them.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "base/check.h"
#include "tensor/cuda.h"
#include "tensor/cuda_status.h"

namespace hadal {

OutOfDeviceMemory::OutOfDeviceMemory(size_t wanted, size_t free)
    : Error(fmt::format("out of device memory: {:.2f} GiB wanted, {:.2f} GiB free",
                        static_cast<double>(wanted) / (1U << 30), static_cast<double>(free) / (1U << 30))),
      wanted_bytes(wanted),
      free_bytes(free) {}

std::byte* DeviceMemoryTraits::allocate(size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, size_bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // clears the error, so that later calls do not report it
    throw OutOfDeviceMemory(size_bytes, cuda_free_bytes());
  }
  HADAL_CUDA_STATUS(status);
  return static_cast<std::byte*>(data);
}

// A free that fails reports errors of earlier work, and the next synchronisation reports these too.
void DeviceMemoryTraits::free(std::byte* data) {
  if (data != nullptr) cudaFree(data);
}

std::byte* PinnedMemoryTraits::allocate(size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, size_bytes);
  if (status != cudaSuccess) cudaGetLastError();
  HADAL_CHECK(status == cudaSuccess, "{} bytes of page-locked host memory: {}", size_bytes,
              cudaGetErrorString(status));
  return static_cast<std::byte*>(data);
}

void PinnedMemoryTraits::free(std::byte* data) {
  if (data != nullptr) cudaFreeHost(data);
}

void copy_to_device(void* device, const void* host, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  HADAL_CUDA_STATUS(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, to_cuda(stream)));
}

void copy_to_host(void* host, const void* device, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  HADAL_CUDA_STATUS(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, to_cuda(stream)));
}

void copy_on_device(void* target, const void* source, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  HADAL_CUDA_STATUS(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, to_cuda(stream)));
}

void copy_to_device_2d(void* device, size_t device_pitch, const void* host, size_t host_pitch,
                       size_t row_bytes, size_t num_rows, StreamHandle stream) {
  if (row_bytes == 0 || num_rows == 0) return;
  HADAL_CUDA_STATUS(cudaMemcpy2DAsync(device, device_pitch, host, host_pitch, row_bytes, num_rows,
                                      cudaMemcpyHostToDevice, to_cuda(stream)));
}

void fill_device(void* device, int byte, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return;
  HADAL_CUDA_STATUS(cudaMemsetAsync(device, byte, bytes, to_cuda(stream)));
}

}  // namespace hadal
