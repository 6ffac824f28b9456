// The parameters of a launch, and the rules that every device op follows. Plain data, passed by reference to
// every op; free of CUDA headers.
//
// Rules of every op under kernels/cuda:
// - Pointers are device pointers unless a comment says "host". Nothing is allocated, nothing synchronises;
//   every op can be captured in a CUDA graph, and the same arguments give the same bits in every run.
// - Sizes that a graph fixes (number of rows) are host values; values that change from step to step
//   (lengths, page tables, routing) are read on the device. Rows that only pad a graph's batch are marked on
//   the device (slot < 0, kv_len 0) and harm nothing.
// - Programmatic dependent launch: every block calls pdl_wait() (common/pdl.cuh) before it touches memory
//   that an earlier kernel reads or writes. At least one block of every grid does so, whatever the other
//   blocks do: a kernel then ends only after the one before it has, and order is transitive (the steps of
//   a graph follow each other so).
//   Exempt: weights, which nothing writes, may be prefetched before; so may what a parameter of the op
//   declares to be settled. Anything may be prefetched into the L2 before, because all writes go there; it is
//   read afterwards.
// - Shapes that the tuned kernels do not cover run on the plain kernel of the op (`reference`), which covers
//   all shapes.
#pragma once

#include <cstdint>

#include "base/stream_handle.h"

namespace hadal::cuda {

struct Launch {
  StreamHandle stream;     // a cudaStream_t
  int num_sms = 132;       // multiprocessors of the device: never more than it has, for some kernels' blocks
                           // wait for each other
  bool pdl = true;         // launch with programmatic stream serialisation
  bool reference = false;  // the plain kernel of the op: any shape, the oracle of tests
};

}  // namespace hadal::cuda
