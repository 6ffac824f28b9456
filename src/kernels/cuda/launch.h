// Holds the parameters of a launch, and states the rules that every device op follows. It is plain data,
// which is passed by reference to every op; this header includes no CUDA header.
//
// Rules of every op under kernels/cuda:
// - Pointers are device pointers unless a comment says "host". No op allocates memory or synchronises with
//   the host; every op can be captured in a CUDA graph, and the same arguments give the same bits in every
//   run.
// - Sizes that a graph fixes (number of rows) are host values; values that change from step to step (lengths,
//   page tables, routing) are read on the device. Rows that only pad a graph's batch are marked on the device
//   (slot < 0, kv_len 0) and change no other row.
// - Programmatic dependent launch: every block calls pdl_wait() (common/pdl.cuh) before it touches memory
//   that an earlier kernel reads or writes. At least one block of every grid calls it in any case: a kernel
//   then ends only after the previous kernel has ended, so the order is transitive (this also orders the
//   steps of a graph). There are three exceptions. Weights, which no kernel writes, may be loaded before
//   pdl_wait(). Data that a parameter of the op declares to be settled may be loaded before pdl_wait() too.
//   Any memory may be prefetched into the L2 before pdl_wait() and read afterwards, because all writes go to
//   the L2.
// - Shapes that the tuned kernels do not cover run on the plain kernel of the op (`reference`), which covers
//   all shapes.
#pragma once

#include <cstdint>

#include "base/stream_handle.h"

namespace hadal::cuda {

struct Launch {
  StreamHandle stream;     // a cudaStream_t
  int num_sms = 132;       // at most the device's multiprocessors, because the blocks of some kernels
                           // wait for each other
  bool pdl = true;         // launch with programmatic stream serialisation
  bool reference = false;  // run the op's plain kernel: any shape, the oracle of tests
};

}  // namespace hadal::cuda
