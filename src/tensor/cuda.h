// Wraps the CUDA runtime in RAII, without CUDA headers: memory, streams, events and graphs. Only builds with
// HADAL_CUDA have it (cuda_*.cpp). The objects can be moved but not copied. The thread that launches uses
// them unless a function says otherwise. Failures throw hadal::Error with the runtime's own text;
// DeviceBuffer throws OutOfDeviceMemory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/stream_handle.h"
#include "tensor/device.h"

namespace hadal {

struct CudaDeviceInfo {
  int index = 0;
  std::string name;
  int num_sms = 0;
  int compute_major = 0, compute_minor = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;  // when this struct was filled
};
CudaDeviceInfo cuda_device_info(int device_index);
void cuda_set_device(int device_index);  // for the calling thread
size_t cuda_free_bytes();                // on the current device

// Owns one handle of the runtime and destroys it through Traits.
template <typename Traits>
class CudaHandle {
 public:
  CudaHandle() = default;
  explicit CudaHandle(void* native) : native_(native) {}
  ~CudaHandle() { reset(); }
  CudaHandle(CudaHandle&& other) noexcept : native_(std::exchange(other.native_, nullptr)) {}
  CudaHandle& operator=(CudaHandle&& other) noexcept {
    if (this != &other) {
      reset();
      native_ = std::exchange(other.native_, nullptr);
    }
    return *this;
  }
  void* native() const { return native_; }
  explicit operator bool() const { return native_ != nullptr; }
  void reset() {
    if (native_ != nullptr) Traits::destroy(std::exchange(native_, nullptr));
  }

 private:
  void* native_ = nullptr;
};

struct CudaStreamTraits {
  static void destroy(void* native);
};
struct CudaEventTraits {
  static void destroy(void* native);
};
struct CudaGraphTraits {
  static void destroy(void* native);
};

class CudaEvent {
 public:
  explicit CudaEvent(bool timing = false);
  void record(StreamHandle stream);
  void wait() const;  // blocks the calling thread without spinning
  // Returns the milliseconds from `begin` to this event. Both events must be made with timing and be
  // complete.
  float ms_since(const CudaEvent& begin) const;
  void* native() const { return handle_.native(); }

 private:
  CudaHandle<CudaEventTraits> handle_;
};

class CudaStream {
 public:
  CudaStream();  // non-blocking with respect to the legacy stream
  StreamHandle handle() const { return {handle_.native()}; }
  void synchronize() const;
  void wait(const CudaEvent& event);

 private:
  CudaHandle<CudaStreamTraits> handle_;
};

void synchronize_stream(StreamHandle stream);  // waits for all work on the stream
bool is_capturing(StreamHandle stream);        // true while a graph captures the stream

// CudaGraph is an instantiated graph. capture() records what `work` launches on the stream, instantiates and
// uploads it.
class CudaGraph {
 public:
  CudaGraph() = default;
  static CudaGraph capture(CudaStream& stream, const std::function<void()>& work);
  void launch(StreamHandle stream) const;
  size_t num_nodes() const { return num_nodes_; }  // kernels and copies
  explicit operator bool() const { return static_cast<bool>(handle_); }

 private:
  CudaHandle<CudaGraphTraits> handle_;
  size_t num_nodes_ = 0;
};

class OutOfDeviceMemory : public Error {
 public:
  OutOfDeviceMemory(size_t wanted, size_t free);
  size_t wanted_bytes, free_bytes;
};

// Owns one allocation of the runtime. Traits define how it is allocated and freed.
template <typename Traits>
class CudaMemory {
 public:
  CudaMemory() = default;
  explicit CudaMemory(size_t size_bytes) : data_(Traits::allocate(size_bytes)), size_(size_bytes) {}
  ~CudaMemory() { Traits::free(data_); }
  CudaMemory(CudaMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  CudaMemory& operator=(CudaMemory&& other) noexcept {
    if (this != &other) {
      Traits::free(data_);
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  std::byte* data() const { return data_; }
  // Makes the memory at least this large. If it grows, the old memory is freed first and its contents are
  // lost.
  void reserve(size_t bytes) {
    if (size() >= bytes) return;
    *this = CudaMemory();
    *this = CudaMemory(bytes);
  }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// allocate returns null for 0 bytes, and free(null) does nothing.
struct DeviceMemoryTraits {
  static std::byte* allocate(size_t size_bytes);
  static void free(std::byte* data);
};
struct PinnedMemoryTraits {
  static std::byte* allocate(size_t size_bytes);
  static void free(std::byte* data);
};

// DeviceBuffer is plain cudaMalloc, uninitialised, aligned to 256 bytes.
using DeviceBuffer = CudaMemory<DeviceMemoryTraits>;
// PinnedBuffer is page-locked host memory, for copies that do not block.
using PinnedBuffer = CudaMemory<PinnedMemoryTraits>;

// These copies are asynchronous on the stream; host memory should be pinned.
void copy_to_device(void* device, const void* host, size_t bytes, StreamHandle stream);
void copy_to_host(void* host, const void* device, size_t bytes, StreamHandle stream);
void copy_on_device(void* target, const void* source, size_t bytes, StreamHandle stream);
// Copies num_rows rows of row_bytes; on either side consecutive rows begin `pitch` bytes apart.
void copy_to_device_2d(void* device, size_t device_pitch, const void* host, size_t host_pitch,
                       size_t row_bytes, size_t num_rows, StreamHandle stream);
void fill_device(void* device, int byte, size_t bytes, StreamHandle stream);

// NvtxRange is a named range in the timelines of profilers (NVTX), which lasts as long as the object.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace hadal
