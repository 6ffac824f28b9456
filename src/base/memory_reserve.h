// Keeps memory aside for the moment when an allocation fails. Threads and code that serve several requests
// (the engine thread, queues between threads, error answers) then allocate from this reserve. So an
// allocation can fail only in work for a single request, and only that request ends.
//
// This is one of the five process-wide objects that docs/architecture.md lists, because C++ has one handler
// of failed allocations for the whole process.
#pragma once

#include <cstddef>

namespace hadal {

class MemoryReserve {
 public:
  static constexpr size_t kBlocks = 8;
  static constexpr size_t kBlockBytes = size_t{4} << 20;

  // Maps the blocks and installs the handler (std::set_new_handler). Only one may exist. Where the system
  // refuses a block, the reserve is smaller.
  MemoryReserve();
  // Restores the handler; no other thread may be inside a Scope.
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Maps the blocks again that were given up. When there are none, a call costs one load of an atomic. Any
  // thread may call it.
  static void refill() noexcept;
  // Returns the number of blocks that are left.
  static size_t num_blocks() noexcept;

  // While a Scope lives, an allocation of this thread that fails unmaps a block of the reserve and is tried
  // again.
  class Scope {
   public:
    Scope() noexcept { ++depth(); }
    ~Scope() { --depth(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };

  // A Pause suspends a Scope during work for a single request, because a failed allocation there must end
  // that request.
  class Pause {
   public:
    Pause() noexcept : depth_(depth()) { depth() = 0; }
    ~Pause() { depth() = depth_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    const int depth_;
  };

 private:
  static int& depth() noexcept;
  static void on_failure();
};

// Writes one line to stderr without allocating: "<event>: <detail>". It is meant for a process that is about
// to end, and for messages for which the log has no memory.
void write_last_line(const char* event, const char* detail) noexcept;

}  // namespace hadal
