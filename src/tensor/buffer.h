// Owns memory: Buffer is one aligned allocation, and Arena a stack of scratch tensors for one step. Both can
// be moved but not copied, and one thread at a time uses them. CPU allocations of 2 MB and more request huge
// pages; contents are uninitialised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "tensor/tensor.h"

namespace hadal {

class Buffer {
 public:
  Buffer() = default;
  // The constructor throws hadal::Error, which names the size, when the allocation fails.
  explicit Buffer(size_t size_bytes, Device device = {});

  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  Device device() const { return device_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
  Device device_;
};

// Allocates scratch memory from blocks that are kept between steps, so that nothing more is allocated after
// the first step of a shape. A Scope frees everything allocated since it was opened.
class Arena {
 public:
  explicit Arena(Device device = {}) : device_(device) {}

  // Returns memory that is uninitialised, aligned to 64 bytes, and valid until the enclosing Scope closes.
  void* allocate(size_t size_bytes);
  template <typename T>
  T* allocate_array(int64_t count) {
    return static_cast<T*>(allocate(static_cast<size_t>(count) * sizeof(T)));
  }
  template <typename T>
  Tensor tensor(std::initializer_list<int64_t> dims) {
    Tensor view(nullptr, dtype_of<T>(), dims, device_);
    view.data = allocate(static_cast<size_t>(view.num_elements()) * sizeof(T));
    return view;
  }

  size_t high_water_bytes() const { return high_water_; }

  class Scope {
   public:
    explicit Scope(Arena& arena)
        : arena_(arena), block_(arena.block_), used_(arena.used_), total_(arena.total_) {}
    ~Scope() {
      arena_.block_ = block_;
      arena_.used_ = used_;
      arena_.total_ = total_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Arena& arena_;
    size_t block_, used_, total_;
  };

 private:
  Device device_;
  std::vector<Buffer> blocks_;
  size_t block_ = 0;  // index of the block in use
  size_t used_ = 0;   // bytes allocated from that block
  size_t total_ = 0;
  size_t high_water_ = 0;
};

}  // namespace hadal
