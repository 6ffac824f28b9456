// Implements cuda::linear: it computes the shape of the arguments and launches the kernel that gemm/choice.h
// chooses for it.
#include "kernels/cuda/gemm/tiled/linear.h"

#include "base/check.h"
#include "kernels/cuda/gemm/variants.h"
#include "kernels/cuda/operand_alignment.h"

namespace hadal::cuda {

LinearShape linear_shape(const DenseLinearParams& p, int num_sms) {
  LinearShape shape{.type = p.w.type, .m = p.m, .n = p.w.n, .k = p.w.k, .num_sms = num_sms};
  shape.f32_y = p.y_f32 != nullptr;
  shape.aligned_y = p.y != nullptr && on_16_bytes(p.y) && p.y_stride % 8 == 0;
  const bool codes = has_scales(p.w.type);
  shape.aligned =
      is_aligned(p.w) && (codes ? is_aligned(p.x_quantized, p.w.k) : on_16_bytes(p.x) && p.x_stride % 8 == 0);
  if (codes) {
    shape.aligned_y = shape.aligned_y && on_16_bytes(p.x_quantized.scales) &&
                      p.x_quantized.scale_stride % 4 == 0 && has_aligned_scales(p.w);
    // Biases of channels are read in pairs, like their scales.
    if (is_channel_scaled(p.w.type)) shape.aligned_y = shape.aligned_y && on_8_bytes(p.bias);
  }
  return shape;
}

void launch_linear(const Choice& choice, const DenseLinearParams& p, GemmLibrary& library,
                   const Launch& launch) {
  if (p.m <= 0) return;
  HADAL_CHECK((p.y != nullptr) != (p.y_f32 != nullptr), "one of y and y_f32 must be set");
  HADAL_CHECK(has_scales(p.w.type) ? p.x_quantized && p.x_quantized.format == row_format_of(p.w.type)
                                   : p.x != nullptr,
              "activations do not fit the weights' type");
  HADAL_CHECK(!p.f16 || p.w.type == WeightType::kF32 || p.w.type == WeightType::kF16,
              "float16 rows need weights in float16 or float32");
  HADAL_CHECK(p.bias == nullptr || is_channel_scaled(p.w.type), "only channel weights support a bias");
  HADAL_CHECK(sums_fit(p.w.type, p.w.k), "k is {}; int32 sums allow at most {}", p.w.k, kMaxInt8K);
  HADAL_CHECK(supports(choice, linear_shape(p, launch.num_sms)),
              "the kernel {} does not support m {}, n {}, k {}", to_string(choice), p.m, p.w.n, p.w.k);
  switch (choice.kernel) {
    case ProductKernel::kReference:
      return reference::linear(p, launch);
    case ProductKernel::kThin:
      return thin_linear(p, launch);
    case ProductKernel::kSkinny:
      return skinny_linear(p, launch, skinny::schedule_of(choice));
    case ProductKernel::kTiled:
      if (const auto tile = linear_tile_of(choice))
        return wgmma_linear_with(*tile, p, launch, rest_workspace(library));
      break;
    case ProductKernel::kLibrary:
      return cublaslt_linear(p, library, launch);
    case ProductKernel::kRouter:
      return router_linear(p, launch);
    case ProductKernel::kColumns:
      break;
  }
  HADAL_CHECK(false, "linears have no kernel {}", to_string(choice));
}

void linear(const DenseLinearParams& p, GemmLibrary& library, const Launch& launch,
            const LinearTable* measured) {
  if (p.m <= 0) return;
  const Choice choice = launch.reference ? Choice{.kernel = ProductKernel::kReference}
                                         : choose(linear_shape(p, launch.num_sms), measured);
  launch_linear(choice, p, library, launch);
}

}  // namespace hadal::cuda
