// Replaces the GPU's measurers in builds without CUDA.
#include "tune/tuner.h"

namespace hadal {

Result<std::unique_ptr<MeasurerSource>> open_gpu_measurers() {
  return make_status(StatusCode::kUnsupported,
                     "tuning needs a GPU: this build has no CUDA backend; build the cuda-release preset");
}

}  // namespace hadal
