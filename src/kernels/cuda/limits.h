// Holds the limits of the device for which all kernels are compiled (compute capability 9.0). This header
// includes no CUDA header.
#pragma once

namespace hadal::cuda {

// A block has at most this much shared memory, static and dynamic together: the 228 KB of a multiprocessor
// without the 1 KB that the driver reserves for each block.
inline constexpr int kMaxSharedBytes = 227 * 1024;

}  // namespace hadal::cuda
