// Calls cuBLASLt's INT8 product without torch: int32 sums without scales, with the fastest of the algorithms
// that its heuristic proposes for the shape. It serves one thread and one device.
#pragma once

#include <memory>

#include "bench/cuda/gemm_goals.h"
#include "tensor/cuda.h"

namespace hadal::bench {

class LibraryInt8 {
 public:
  // Makes enough sets of operands that no data of a set is left in the L2 when the set is used again, and
  // measures the algorithms.
  LibraryInt8(const ProductShape& shape, CudaStream& stream);
  ~LibraryInt8();
  LibraryInt8(const LibraryInt8&) = delete;
  LibraryInt8& operator=(const LibraryInt8&) = delete;

  // Returns true if there is an algorithm; otherwise multiply() must not be called.
  bool found() const { return found_; }
  // Computes y = x · Wᵀ on the stream, with the operands of this call.
  void multiply(int call) const;
  int sets() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool found_;
};

}  // namespace hadal::bench
