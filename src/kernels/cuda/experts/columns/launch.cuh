// Launches the columns kernel (experts/columns/kernel.cuh), for one type and with or without the activation.
#pragma once

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/experts/columns/columns.h"
#include "kernels/cuda/experts/columns/kernel.cuh"

namespace hadal::cuda::columns {

template <class C>
void launch_columns(const ExpertColumnsParams& o, const Launch& launch) {
  using T = typename C::T;
  const T* const x = static_cast<const T*>(o.x);
  const T* const tokens = static_cast<const T*>(o.tokens);
  const T* const w = static_cast<const T*>(o.w);
  Params p;
  p.y = o.y;
  p.n = static_cast<int>(o.n);
  p.rows = static_cast<int>(o.num_rows);
  p.num_k_steps = static_cast<int>((o.k + kStepK - 1) / kStepK);
  const int64_t w_rows = C::kActivated ? 2 * o.n : o.n;
  p.column_groups = static_cast<int>((w_rows + kBlockW * kCluster - 1) / (kBlockW * kCluster));
  p.num_experts = o.num_experts;
  p.direct_from = o.tokens == nullptr ? o.num_experts : o.direct_from;
  p.expert_offsets = o.expert_offsets;
  Maps<C> maps;
  for (int h = 0; h < C::kHeights; ++h) {
    maps.x[h] = make_tensor_map<2>(x, {o.k, o.num_x_rows}, {o.x_stride}, {kStepK, 8 * (h + 1)});
    maps.tokens[h] = o.tokens == nullptr ? maps.x[h]
                                         : make_tensor_map<2>(tokens, {o.k, o.num_tokens}, {o.tokens_stride},
                                                              {kStepK, 8 * (h + 1)});
  }
  if constexpr (C::kActivated) {
    maps.w = make_tensor_map<5>(w, {o.k, 8, 2, o.n / 8, o.num_experts},
                                {o.w_row_stride, o.n * o.w_row_stride, 8 * o.w_row_stride, o.expert_stride},
                                {kStepK, 8, 2, 8, 1});
  } else {
    maps.w = make_tensor_map<3>(w, {o.k, o.n, o.num_experts}, {o.w_row_stride, o.expert_stride},
                                {kStepK, kBlockW, 1});
  }
  const int blocks = launch.num_sms / kCluster * kCluster;
  launch_kernel<expert_columns_kernel<C>>(launch, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                                          C::shared_bytes(p.num_experts), maps, p);
}

template <bool kF16, bool kActivated>
void run(const ExpertColumnsParams& p, const Launch& launch) {
  using C = Config<std::conditional_t<kF16, f16, bf16>, kActivated, 208, 4>;
  static_assert(is<C>(kColumnsTile));
  launch_columns<C>(p, launch);
}

}  // namespace hadal::cuda::columns
