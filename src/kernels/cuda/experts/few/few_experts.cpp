// Implements few_experts, which computes the shape of the parameters and launches the two kernels.
#include "kernels/cuda/experts/few/few_experts.h"

#include "base/check.h"
#include "kernels/cuda/experts/route/kernels.h"
#include "kernels/cuda/operand_alignment.h"

namespace hadal::cuda {

ExpertsShape experts_shape(const FewExpertsParams& p, int num_sms) {
  ExpertsShape shape = route_shape(p.route, num_sms);
  shape.hidden = p.gate_up.k;
  shape.intermediate = p.down.k;
  shape.gate = p.gate.type;
  shape.gate_up = p.gate_up.type;
  shape.down = p.down.type;
  const bool fits = p.gate.n == p.route.num_experts && p.gate.k == p.gate_up.k &&
                    p.gate_up.n == 2 * p.down.k && p.down.n == p.gate_up.k;
  shape.gate_aligned = fits && is_aligned(p.gate) && on_16_bytes(p.x) && p.x_stride % 8 == 0;
  const bool reads_groups = p.x_quantized && p.x_quantized.format == RowFormat::kE4m3Groups;
  shape.gate_up_aligned =
      is_aligned(p.gate_up, p.gate_up_stride) &&
      (!has_scales(p.gate_up.type) || (reads_groups && is_aligned(p.x_quantized, p.gate_up.k)));
  shape.down_aligned = is_aligned(p.down, p.down_stride);
  return shape;
}

void few_experts(const FewExpertsParams& params, FewStage stage, const Launch& launch) {
  FewExpertsParams p = params;
  check_route(p.route);
  const ExpertsShape shape = experts_shape(p, launch.num_sms);
  if (p.splits == 0) p.splits = few::splits_of(shape);
  HADAL_CHECK(few::supports(shape, p.splits),
              "few_experts do not support {} tokens of {} experts, gate_up {} x {}, {} splits", p.route.m,
              p.route.num_experts, p.gate_up.n, p.gate_up.k, p.splits);
  auto* parts = static_cast<float*>(p.scratch);
  float* sums = parts + few::parts_count(shape);
  if (stage == FewStage::kRouter)
    return few::router(p, parts, sums, few::sums_count(shape, p.splits), launch);
  switch (p.gate_up.type) {
    case WeightType::kFp8Block:
      return few::experts_of<WeightType::kFp8Block>(p, parts, sums, launch);
    case WeightType::kF16:
      return few::experts_of<WeightType::kF16>(p, parts, sums, launch);
    default:
      return few::experts_of<WeightType::kBF16>(p, parts, sums, launch);
  }
}

void few_experts(const FewExpertsParams& params, const Launch& launch) {
  for (const FewStage stage : {FewStage::kRouter, FewStage::kExperts}) few_experts(params, stage, launch);
}

}  // namespace hadal::cuda
