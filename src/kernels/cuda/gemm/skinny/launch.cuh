// Launches the weight-streaming kernel (gemm/skinny/kernel.cuh) for linears and for experts.
#pragma once

#include <algorithm>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/gemm/skinny/kernel.cuh"
#include "kernels/cuda/gemm/skinny/linear.h"
#include "kernels/cuda/gemm/skinny/schedule.h"

namespace hadal::cuda::skinny {

template <typename T>
CUtensorMap weight_map(const MatrixWeight& w, int64_t matrices, int64_t stride, int rows) {
  const int64_t k = sizeof(T) == 1 ? (w.k + 127) / 128 * 128 : w.k;
  return make_tensor_map<3, T>(static_cast<const T*>(w.data), {k, w.n, matrices},
                               {w.row_stride, matrices > 1 ? stride : w.row_stride * w.n},
                               {kSlotBytes / static_cast<int>(sizeof(T)), rows, 1});
}

// Sets the activations' part of the arguments: rows of 16 bits, or quantised rows with their scales.
template <WeightType kType>
void set_rows(Args& args, const void* x, int64_t x_stride, const QuantizedRows& x_quantized, int64_t k) {
  if constexpr (has_scales(kType)) {
    args.x = reinterpret_cast<const std::byte*>(x_quantized.codes);
    args.x_row_bytes = x_quantized.stride;
    args.x_scales = x_quantized.scales;
    args.x_scale_stride = x_quantized.scale_stride;
    args.k_bytes = static_cast<int>(round_up(k, kQuantGroup));
  } else {
    args.x = static_cast<const std::byte*>(x);
    args.x_row_bytes = x_stride * 2;
    args.k_bytes = static_cast<int>(k * 2);
  }
}

template <WeightType kType, int kTokens, int kGroups, bool kGrouped>
void launch_skinny(const Launch& launch, const MatrixWeight& w, int64_t matrices, int64_t matrix_stride,
                   int matrices_with_rows, const Schedule& schedule, Args args) {
  using Element = std::conditional_t<Type<kType>::kBytes, fp8_e4m3, Row16<kType>>;
  constexpr auto kKernel = skinny_kernel<kType, kTokens, kGroups, kGrouped>;
  constexpr int kRows = kGroups * kTileRows;
  const CUtensorMap w_map = weight_map<Element>(w, matrices, matrix_stride, kRows);
  CUtensorMap x_map = w_map;
  if constexpr (!kGrouped) {
    const int64_t size = sizeof(Element);
    x_map = make_tensor_map<2, Element>(reinterpret_cast<const Element*>(args.x),
                                        {args.k_bytes / size, args.m}, {args.x_row_bytes / size},
                                        {static_cast<int>(kSlotBytes / size), kTokens});
  }
  const int64_t blocks = int64_t{schedule.splits} * ((w.n + kRows - 1) / kRows);
  args.late = starts_late(kTokens, blocks, launch.num_sms) ? 1 : 0;
  args.n = static_cast<int>(w.n);
  args.num_blocks = blocks_of_k(kType, w.k);
  args.ring_bytes = std::max(schedule.stages * slot_bytes(kTokens, kGroups),
                             (staging_bytes(kTokens, kGroups) + 1023) / 1024 * 1024);
  args.w_scales = w.scales;
  args.w_scale_stride = w.scale_stride;
  const int64_t lane_bytes = args.y_is_f32 != 0 ? 16 : 8;
  args.y_vector = args.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.y) % lane_bytes == 0;
  const SharedLayout layout(
      Type<kType>::scale_count(kTokens, kGroups, (args.num_blocks + schedule.splits - 1) / schedule.splits),
      args.ring_bytes);
  const size_t shared_bytes = static_cast<size_t>(layout.bytes) + 1024;
  HADAL_CHECK_EQ(static_cast<int64_t>(shared_bytes),
                 skinny::shared_bytes(kType, kTokens, kGroups, schedule.stages,
                                      (args.num_blocks + schedule.splits - 1) / schedule.splits));
  if (shared_bytes > 48 * 1024) allow_shared_memory<kKernel>(shared_bytes);

  cudaLaunchAttribute attributes[2]{};
  int count = 0;
  if (launch.pdl) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (schedule.splits > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim.x = static_cast<unsigned>(schedule.splits);
    attributes[count].val.clusterDim.y = 1;
    attributes[count++].val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(static_cast<unsigned>(schedule.splits), static_cast<unsigned>((w.n + kRows - 1) / kRows),
           static_cast<unsigned>(matrices_with_rows));
  config.blockDim = dim3(kGroups * 128 + 32);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream_of(launch);
  config.attrs = attributes;
  config.numAttrs = static_cast<unsigned>(count);
  HADAL_CUDA_CHECK(cudaLaunchKernelEx(&config, kKernel, w_map, x_map, args));
}

}  // namespace hadal::cuda::skinny
