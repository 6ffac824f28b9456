// Implements cuda::grouped_linear, which computes the shape of the arguments and launches the kernel that
// experts/choice.h chooses for it.
#include "base/check.h"
#include "kernels/cuda/experts/columns/columns.h"
#include "kernels/cuda/experts/variants.h"
#include "kernels/cuda/operand_alignment.h"

namespace hadal::cuda {

GroupedShape grouped_shape(const GroupedLinearParams& p, int num_sms) {
  GroupedShape shape{.type = p.w.type,
                     .num_rows = p.num_rows,
                     .rows_per_token = p.rows_per_token,
                     .num_experts = p.num_experts,
                     .n = p.w.n,
                     .k = p.w.k,
                     .num_sms = num_sms,
                     .gathered = p.token_of != nullptr};
  const bool codes = has_scales(p.w.type);
  shape.aligned = is_aligned(p.w, p.expert_stride) &&
                  (codes ? is_aligned(p.x_quantized, p.w.k) : on_16_bytes(p.x) && p.x_stride % 8 == 0);
  shape.aligned_y = on_16_bytes(p.y) && has_aligned_scales(p.w, p.expert_scale_stride) &&
                    (!codes || (on_16_bytes(p.x_quantized.scales) && p.x_quantized.scale_stride % 4 == 0));
  return shape;
}

void launch_grouped_linear(const Choice& choice, const GroupedLinearParams& p, const Launch& launch) {
  if (p.num_rows <= 0) return;
  HADAL_CHECK(has_scales(p.w.type) ? p.x_quantized && p.x_quantized.format == row_format_of(p.w.type)
                                   : p.x != nullptr,
              "activations do not fit the weights' type");
  HADAL_CHECK(sums_fit(p.w.type, p.w.k), "k is {}; int32 sums allow at most {}", p.w.k, kMaxInt8K);
  HADAL_CHECK(supports(choice, grouped_shape(p, launch.num_sms)),
              "the kernel {} does not support {} rows, {} experts, n {}, k {}", to_string(choice), p.num_rows,
              p.num_experts, p.w.n, p.w.k);
  switch (choice.kernel) {
    case ProductKernel::kReference:
      return reference::grouped_linear(p, launch);
    case ProductKernel::kSkinny:
      return grouped_skinny_linear(p, launch, skinny::schedule_of(choice));
    case ProductKernel::kTiled:
      if (const auto tile = grouped_tile_of(choice)) return wgmma_grouped_linear(p, launch, *tile);
      break;
    case ProductKernel::kColumns:
      return expert_columns({.f16 = p.w.type == WeightType::kF16,
                             .x = p.x,
                             .x_stride = p.x_stride,
                             .num_x_rows = p.num_rows,
                             .direct_from = p.num_experts,
                             .expert_offsets = p.expert_offsets,
                             .num_rows = p.num_rows,
                             .num_experts = p.num_experts,
                             .w = p.w.data,
                             .w_row_stride = p.w.row_stride,
                             .expert_stride = p.expert_stride,
                             .n = p.w.n,
                             .k = p.w.k,
                             .y = p.y},
                            launch);
    case ProductKernel::kThin:
    case ProductKernel::kLibrary:
    case ProductKernel::kRouter:
      break;
  }
  HADAL_CHECK(false, "experts have no kernel {}", to_string(choice));
}

void grouped_linear(const GroupedLinearParams& p, const Launch& launch, const GroupedTable* measured) {
  if (p.num_rows <= 0) return;
  const Choice choice = launch.reference ? Choice{.kernel = ProductKernel::kReference}
                                         : choose(grouped_shape(p, launch.num_sms), measured);
  launch_grouped_linear(choice, p, launch);
}

}  // namespace hadal::cuda
