// SymmetricMemory is memory of one device that other devices of the machine read and write, at the same
// address on all of them. It is allocated by the driver's calls for virtual memory, which give peers access
// to this memory alone. After cudaDeviceEnablePeerAccess, every allocation and release would wait for all
// peers. Only one thread at a time may use an object. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace hadal::cuda {

// Throws hadal::Error, which names the devices, if a device of `devices` does not exist or cannot access the
// memory of another one. The same device may occur several times.
void check_peer_access(std::span<const int> devices);

class SymmetricMemory {
 public:
  SymmetricMemory() = default;
  // Reserves at least `bytes` (> 0) bytes on `device`, rounded up to the driver's pages of 2 MiB, and sets
  // them to 0. All of `devices`, which must include `device`, may access them. Throws hadal::Error if the
  // device has too little memory.
  SymmetricMemory(int device, std::span<const int> devices, int64_t bytes);
  ~SymmetricMemory() { release(); }
  SymmetricMemory(SymmetricMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        handle_(std::exchange(other.handle_, 0)) {}
  SymmetricMemory& operator=(SymmetricMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void release() noexcept;

  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
  unsigned long long handle_ = 0;  // the driver's handle of the physical allocation
};

}  // namespace hadal::cuda
