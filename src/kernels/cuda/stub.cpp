// Replaces the device kernels in builds without CUDA.
#include "kernels/cuda/availability.h"

namespace hadal::cuda {

Availability availability() {
  return {.usable = false,
          .in_this_build = false,
          .reason = "this build has no CUDA backend; build the cuda-release preset"};
}

}  // namespace hadal::cuda
