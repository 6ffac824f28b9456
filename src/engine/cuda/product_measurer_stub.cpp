// In place of the GPU's measurers in builds without CUDA.
#include "engine/tuner.h"
#include "kernels/cuda/availability.h"

namespace hadal {

Result<std::unique_ptr<MeasurerSource>> open_gpu_measurers() {
  return make_status(StatusCode::kUnsupported, "tuning needs a GPU: {}", cuda::availability().reason);
}

}  // namespace hadal
