// Which kernel computes cuda::grouped_linear. The choice depends on shapes and types alone, never on values.
#include "base/check.h"
#include "kernels/cuda/moe/variants.h"

namespace hadal::cuda {
namespace {

// Average rows an expert above which the tiled kernel is chosen.
constexpr int64_t kTiledRowsAnExpert = 32;

}  // namespace

bool grouped_linear_wants_sorted(int64_t num_rows, int num_experts, WeightType type) {
  return type != WeightType::kF32 && num_rows > kTiledRowsAnExpert * num_experts;
}

void grouped_linear(const GroupedLinearParams& p, const Launch& launch) {
  if (p.num_rows <= 0) return;
  HADAL_CHECK(p.w.type == WeightType::kFp8Block ? static_cast<bool>(p.x_fp8) : p.x != nullptr,
              "activations do not fit the weights' type");
  HADAL_CHECK(p.w.type != WeightType::kInt8Block && !is_channel_scaled(p.w.type),
              "INT8 weights and channel scales do not run on CUDA");
  if (launch.reference) return reference::grouped_linear(p, launch);
  if (p.token_of == nullptr && grouped_linear_wants_sorted(p.num_rows, p.num_experts, p.w.type) &&
      wgmma_grouped_linear_takes(p)) {
    return wgmma_grouped_linear(p, launch);
  }
  if (grouped_skinny_takes(p)) return grouped_skinny_linear(p, launch);
  reference::grouped_linear(p, launch);
}

}  // namespace hadal::cuda
