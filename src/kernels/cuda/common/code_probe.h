// Tests whether the current device finds code for itself in this binary. This header includes no CUDA header.
#pragma once

namespace hadal::cuda {

// Loads a kernel that does nothing, without launching it; returns the cudaError_t (0 is success). A device
// that finds code for it finds code for every kernel, because all are compiled for the same architectures.
int load_code_probe();

}  // namespace hadal::cuda
