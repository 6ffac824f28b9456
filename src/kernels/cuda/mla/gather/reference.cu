// Implements the plain kernel of gather_keys: one block of 128 threads per record converts a group of 128
// latents at a time.
#include <cuda_runtime.h>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/gather/gather.h"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = kQuantGroup;

// Returns element `column` (0…575) of a record.
__device__ float read_element(const std::byte* record, int column, KvFormat format) {
  switch (format) {
    case KvFormat::kBF16:
      return to_f32(reinterpret_cast<const bf16*>(record)[column]);
    case KvFormat::kF16:
      return to_f32(reinterpret_cast<const f16*>(record)[column]);
    case KvFormat::kFp8E4M3: {
      if (column >= kKvLatentDim) {
        return to_f32(reinterpret_cast<const bf16*>(record + kKvFp8RopeOffset)[column - kKvLatentDim]);
      }
      const float scale = reinterpret_cast<const float*>(record + kKvFp8ScaleOffset)[column / kKvScaleGroup];
      return to_f32(reinterpret_cast<const fp8_e4m3*>(record)[column]) * scale;
    }
    default:
      return to_f32(reinterpret_cast<const fp8_e5m2*>(record)[column]);
  }
}

__global__ void gather_keys_kernel(GatherKeysParams p) {
  __shared__ float magnitudes[kThreads];
  pdl_wait();
  const KeyRun run = p.runs[blockIdx.y];
  const int t = static_cast<int>(threadIdx.x);
  if (static_cast<int>(blockIdx.x) >= run.count) return;
  const int position = run.begin + static_cast<int>(blockIdx.x);
  const int64_t row = int64_t{run.out_begin} + blockIdx.x;
  const int64_t page = p.kv.page_table[run.seq_idx * p.kv.page_table_stride + position / kPageSize];
  const std::byte* record =
      p.kv.pool + (page * kPageSize + position % kPageSize) * int64_t{p.kv.layout.row_bytes()};
  const KvFormat format = p.kv.layout.format;
  const bool is_f16 = format == KvFormat::kF16;
  if (t < kKvRopeDim)
    store_16_bit(p.rope, row * kKvRopeDim + t, read_element(record, kKvLatentDim + t, format), is_f16);
  for (int group = 0; group < kKvLatentDim / kQuantGroup; ++group) {
    const int column = group * kQuantGroup + t;
    const float latent = read_element(record, column, format);
    if (p.latent != nullptr) store_16_bit(p.latent, row * kKvLatentDim + column, latent, is_f16);
    if (p.latent_fp8.codes == nullptr) continue;
    __syncthreads();
    magnitudes[t] = fabsf(latent);
    __syncthreads();
    float most = 0.0F;
    for (int i = 0; i < kQuantGroup; ++i) most = fmaxf(most, magnitudes[i]);
    const float scale = group_scale(most, p.latent_fp8.power_of_two);
    p.latent_fp8.codes[row * p.latent_fp8.stride + column] = to_e4m3(__fdiv_rn(latent, scale));
    if (t == 0) p.latent_fp8.scales[group * p.latent_fp8.scale_stride + row] = scale;
  }
  if (p.latent_fp8.codes != nullptr) {
    for (int64_t i = kKvLatentDim + t; i < p.latent_fp8.stride; i += kThreads) {
      p.latent_fp8.codes[row * p.latent_fp8.stride + i] = {};
    }
  }
}

}  // namespace

void gather_keys(const GatherKeysParams& p, const Launch& launch) {
  launch_kernel<gather_keys_kernel>(
      launch, dim3(static_cast<unsigned>(p.max_count), static_cast<unsigned>(p.num_runs)), dim3(kThreads), 0,
      p);
}

}  // namespace hadal::cuda::reference
