// cuBLASLt's INT8 product without torch around it: int32 sums without scales, by the fastest of the
// algorithms that its heuristic proposes for the shape. One thread, one device.
#pragma once

#include <memory>

#include "bench/cuda/gemm_goals.h"
#include "tensor/cuda.h"

namespace hadal::bench {

class LibraryInt8 {
 public:
  // Makes operands, as many sets as leave nothing of one in the L2 when its turn comes again, and times the
  // algorithms.
  LibraryInt8(const ProductShape& shape, CudaStream& stream);
  ~LibraryInt8();
  LibraryInt8(const LibraryInt8&) = delete;
  LibraryInt8& operator=(const LibraryInt8&) = delete;

  // Whether there is an algorithm; else multiply() may not be called.
  bool found() const { return found_; }
  // y = x · Wᵀ on the stream, of the operands of this call.
  void multiply(int call) const;
  int sets() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  bool found_;
};

}  // namespace hadal::bench
