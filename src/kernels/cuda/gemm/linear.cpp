// Which kernel computes cuda::linear. The choice depends on shapes and types alone, never on values.
#include "base/check.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {

void linear(const LinearParams& p, GemmLibrary& library, const Launch& launch) {
  if (p.m <= 0) return;
  HADAL_CHECK((p.y != nullptr) != (p.y_f32 != nullptr), "one of y and y_f32 must be set");
  HADAL_CHECK(p.w.type == WeightType::kFp8Block ? static_cast<bool>(p.x_fp8) : p.x != nullptr,
              "activations do not fit the weights' type");
  if (launch.reference) return reference::linear(p, launch);
  switch (p.w.type) {
    case WeightType::kF32:
      if (router_linear_takes(p)) return router_linear(p, launch);
      break;
    case WeightType::kBF16:
      if (skinny_linear_takes(p)) return skinny_linear(p, launch);
      return cublaslt_linear(p, library, launch);
    case WeightType::kFp8Block:
      if (skinny_linear_takes(p)) return skinny_linear(p, launch);
      if (wgmma_fp8_linear_takes(p)) return wgmma_fp8_linear(p, launch);
      break;
  }
  reference::linear(p, launch);
}

}  // namespace hadal::cuda
