#include <algorithm>

#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "tests/cuda/comm/test_parts.h"

namespace hadal::testing {
namespace {

constexpr int kThreads = 256;

__device__ uint32_t salt_of(uint32_t salt, const uint32_t* step) {
  return step == nullptr ? salt : salt + 64 * *step;
}

__global__ void fill_kernel(uint16_t* part, int64_t count, uint32_t salt, const uint32_t* step, int rank,
                            bool f16) {
  cuda::pdl_launch_dependents();
  cuda::pdl_wait();
  const uint32_t own_salt = salt_of(salt, step);
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    part[i] = part_bits(own_salt, rank, i, f16);
  }
}

__global__ void count_wrong_kernel(const cuda::ExchangedParts parts, int64_t count, uint32_t salt,
                                   const uint32_t* step, bool f16, uint32_t* num_wrong) {
  cuda::pdl_launch_dependents();
  cuda::pdl_wait();
  const uint32_t own_salt = salt_of(salt, step);
  uint32_t wrong = 0;
  for (int rank = 0; rank < parts.num_ranks; ++rank) {
    const auto* const words = static_cast<const uint32_t*>(parts.parts[rank]);
    for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count / 2;
         i += int64_t{gridDim.x} * kThreads) {
      const uint32_t expected =
          part_bits(own_salt, rank, 2 * i, f16) | uint32_t{part_bits(own_salt, rank, 2 * i + 1, f16)} << 16;
      if (cuda::load_part(words + i) != expected) ++wrong;
    }
  }
  if (wrong != 0) atomicAdd(num_wrong, wrong);
}

__global__ void count_wrong_sums_kernel(const uint16_t* sums, int64_t count, int num_ranks, uint32_t salt,
                                        const uint32_t* step, uint32_t* num_wrong) {
  cuda::pdl_launch_dependents();
  cuda::pdl_wait();
  const uint32_t own_salt = salt_of(salt, step);
  uint32_t wrong = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * kThreads) {
    float sum = cuda::to_f32(bf16{part_bits(own_salt, 0, i, false)});
    for (int rank = 1; rank < num_ranks; ++rank) {
      sum += cuda::to_f32(bf16{part_bits(own_salt, rank, i, false)});
    }
    if (sums[i] != cuda::to_bf16_rn(sum).bits) ++wrong;
  }
  if (wrong != 0) atomicAdd(num_wrong, wrong);
}

__global__ void random_wait_kernel(uint32_t* calls, uint32_t seed, uint32_t most_ns) {
  cuda::pdl_launch_dependents();
  cuda::pdl_wait();
  const uint32_t call = (*calls)++;
  const int64_t end = cuda::global_nanoseconds() + mixed(seed + mixed(call)) % most_ns;
  while (cuda::global_nanoseconds() < end) {
  }
}

__global__ void count_step_kernel(uint32_t* step) {
  cuda::pdl_launch_dependents();
  cuda::pdl_wait();
  ++*step;
}

dim3 blocks_for(int64_t count) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(1024, (count + kThreads - 1) / kThreads)));
}

}  // namespace

void fill_part(uint16_t* part, int64_t count, uint32_t salt, const uint32_t* step, int rank, bool f16,
               const cuda::Launch& launch) {
  cuda::launch_kernel<fill_kernel>(launch, blocks_for(count), kThreads, 0, part, count, salt, step, rank,
                                   f16);
}

void count_wrong(const cuda::ExchangedParts& parts, int64_t count, uint32_t salt, const uint32_t* step,
                 bool f16, uint32_t* num_wrong, const cuda::Launch& launch) {
  cuda::launch_kernel<count_wrong_kernel>(launch, blocks_for(count), kThreads, 0, parts, count, salt, step,
                                          f16, num_wrong);
}

void count_wrong_sums(const uint16_t* sums, int64_t count, int num_ranks, uint32_t salt, const uint32_t* step,
                      uint32_t* num_wrong, const cuda::Launch& launch) {
  cuda::launch_kernel<count_wrong_sums_kernel>(launch, blocks_for(count), kThreads, 0, sums, count, num_ranks,
                                               salt, step, num_wrong);
}

void random_wait(uint32_t* calls, uint32_t seed, uint32_t most_ns, const cuda::Launch& launch) {
  cuda::launch_kernel<random_wait_kernel>(launch, dim3(1), dim3(1), 0, calls, seed, most_ns);
}

void count_step(uint32_t* step, const cuda::Launch& launch) {
  cuda::launch_kernel<count_step_kernel>(launch, dim3(1), dim3(1), 0, step);
}

void load_test_kernels() {
  cuda::preload<fill_kernel>();
  cuda::preload<count_wrong_kernel>();
  cuda::preload<count_wrong_sums_kernel>();
  cuda::preload<random_wait_kernel>();
  cuda::preload<count_step_kernel>();
}

}  // namespace hadal::testing
