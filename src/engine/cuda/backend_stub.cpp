// Replaces the GPU's backend in builds without CUDA.
#include "engine/backend.h"
#include "kernels/cuda/availability.h"

namespace hadal {

Result<std::unique_ptr<Backend>> load_cuda_backend(const std::filesystem::path&, const ModelConfig&,
                                                   const BackendOptions&, ThreadPool&) {
  return make_status(StatusCode::kUnsupported, "--device cuda: {}", cuda::availability().reason);
}

Result<GpuEstimate> estimate_gpu(const ModelConfig&, LoadQuantization, DType, KvLayout, double, ModelSplit,
                                 const GpuRanks&) {
  return make_status(StatusCode::kUnsupported, "--device cuda: {}", cuda::availability().reason);
}

}  // namespace hadal
