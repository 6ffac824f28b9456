// Launches the experts' kernel for few tokens (experts/few/kernel.cuh), for one type of weights.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/experts/few/kernel.cuh"

namespace hadal::cuda::few {

template <WeightType kType, int kValues, int kStages, int kDownSlots>
void launch_few(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  using Element = std::conditional_t<is_fp8_type<kType>, fp8_e4m3, Row16<kType>>;
  constexpr int kElements = kSlotK / static_cast<int>(sizeof(Element));
  const auto map_of = [&](const MatrixWeight& w, int64_t stride) {
    return make_tensor_map<3, Element>(static_cast<const Element*>(w.data),
                                       {w.k, w.n, held_experts(p.route) + p.route.num_shared},
                                       {w.row_stride, stride}, {kElements, kTileRows, 1});
  };
  const auto product = [&](const MatrixWeight& w, int64_t scale_stride) {
    return Product{
        .num_blocks = static_cast<int>(w.k / kElements),
        .tiles = static_cast<int>(w.n / kTileRows),
        .per_tiles = static_cast<uint32_t>(((int64_t{1} << 32) + w.n / kTileRows - 1) / (w.n / kTileRows)),
        .scales = w.scales,
        .scale_stride = w.scale_stride,
        .expert_scale_stride = scale_stride};
  };
  Args args;
  args.route = p.route;
  args.parts = parts;
  args.sums = sums;
  args.sums_n = static_cast<int>(p.gate_up.n);
  args.splits = p.splits;
  args.gate_up = product(p.gate_up, p.gate_up_scale_stride);
  args.down = product(p.down, p.down_scale_stride);
  args.x_slots = (args.gate_up.num_blocks + args.splits - 1) / args.splits;
  args.x_scales = p.x_quantized.scales;
  args.x_scale_stride = p.x_quantized.scale_stride;
  args.y = p.y;
  args.y_stride = static_cast<int>(p.down.n);
  args.power_of_two = p.x_quantized.power_of_two ? 1 : 0;
  const void* x = is_fp8_type<kType> ? p.x_quantized.codes : p.x;
  const CUtensorMap x_map = make_tensor_map<2, Element>(
      static_cast<const Element*>(x), {p.gate_up.k, p.route.m},
      {is_fp8_type<kType> ? p.x_quantized.stride : p.x_stride}, {kElements, kTokens});
  const int shared = SharedPlan(kStages, args.x_slots, 2 * args.down.num_blocks).bytes + 1024;
  launch_kernel<few_experts_kernel<kType, kValues, kStages, kDownSlots>>(
      launch, dim3(static_cast<unsigned>(launch.num_sms)), dim3(kThreads),
      static_cast<size_t>(shared > kLeastShared ? shared : kLeastShared), map_of(p.gate_up, p.gate_up_stride),
      map_of(p.down, p.down_stride), x_map, args);
}

template <WeightType kType, int kStages, int kDownSlots>
void launch_config(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  dispatch_lane_values<kMaxRoutedExperts>(p.route.num_experts, [&]<int kValues>() {
    launch_few<kType, kValues, kStages, kDownSlots>(p, parts, sums, launch);
  });
}

template <WeightType kType>
void experts_of(const FewExpertsParams& p, const float* parts, float* sums, const Launch& launch) {
  if constexpr (is_fp8_type<kType>) {
    if (p.down.k == 2 * kSlotK) return launch_config<kType, 16, 2>(p, parts, sums, launch);
  }
  launch_config<kType, 8, 0>(p, parts, sums, launch);
}

}  // namespace hadal::cuda::few
