// Implements the kernels of flash_layout.h. Both have one thread per element, because they have few elements.
#include <cuda_runtime.h>

#include <cmath>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/mla/gather/flash_layout.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

__global__ void __launch_bounds__(kThreads) flash_rows_kernel(FlashRowsParams p) {
  pdl_wait();
  const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (row >= p.num_seqs * p.pieces) return;
  const auto seq = static_cast<int>(row / p.pieces);
  const auto later = p.pieces - 1 - static_cast<int>(row % p.pieces);
  p.seq_idx[row] = seq;
  p.kv_len[row] = max(0, p.cache_seqlens[seq] - (p.causal ? later * p.piece_len : 0));
}

__global__ void __launch_bounds__(kThreads) flash_lse_kernel(FlashLseParams p) {
  pdl_wait();
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= p.num_seqs * p.q_len * p.num_kv_heads * p.group) return;
  const auto token = static_cast<int>(at % p.q_len);
  const int64_t rest = at / p.q_len;
  const auto head = static_cast<int>(rest % p.group);
  const auto kv_head = static_cast<int>(rest / p.group % p.num_kv_heads);
  const int64_t seq = rest / p.group / p.num_kv_heads;
  const float lse = p.lse[((kv_head * p.num_seqs + seq) * p.q_len + token) * p.group + head];
  p.out[at] = lse == -INFINITY ? INFINITY : lse;
}

}  // namespace

void flash_rows(const FlashRowsParams& p, const Launch& launch) {
  launch_kernel<flash_rows_kernel>(launch, dim3(blocks_for(p.num_seqs * p.pieces)), dim3(kThreads), 0, p);
}

void flash_lse(const FlashLseParams& p, const Launch& launch) {
  const int64_t count = p.num_seqs * p.q_len * p.num_kv_heads * p.group;
  launch_kernel<flash_lse_kernel>(launch, dim3(blocks_for(count)), dim3(kThreads), 0, p);
}

}  // namespace hadal::cuda
