// Generates random weights. Grid: its one dimension covers runs of 256 · 8 columns, then rows. A thread
// writes 8 consecutive elements of a row. Each element is computed from its index alone (about 15 integer
// instructions), so a row may start anywhere in the generator's words. Stores have 16 bytes (8 for 8-bit
// types) if the address is aligned. The kernel uses no shared memory and about 30 registers.
#include <cstring>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/weights/rounding.cuh"
#include "kernels/cuda/weights/weights.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;
constexpr int64_t kRun = kThreads * kPerThread;

__device__ __forceinline__ uint32_t random_word(uint32_t c, uint32_t key_low, uint32_t key_high) {
  uint32_t x = c * 0x9e3779b1U + key_low;
  x ^= x >> 16;
  x *= 0x85ebca6bU;
  x ^= x >> 13;
  x += key_high;
  x *= 0xc2b2ae35U;
  return x ^ (x >> 16);
}

__device__ __forceinline__ float real_element(const RandomWeightParams& p, int64_t index) {
  const uint32_t word = random_word(static_cast<uint32_t>(index >> 1), p.key_low, p.key_high);
  const uint32_t r = (index & 1) == 0 ? word & 0xffffU : word >> 16;
  if (p.kind == RandomKind::kPowerOfTwo) return r < p.upper_threshold ? 2.0F * p.offset : p.offset;
  // The operations are rounded one by one, without a fused multiply-add.
  return __fadd_rn(__fmul_rn(static_cast<float>(2 * static_cast<int>(r) - 65535), p.scale), p.offset);
}

template <typename T>
__device__ __forceinline__ T element(const RandomWeightParams& p, int64_t index) {
  if constexpr (sizeof(T) == 1) {
    const uint32_t word = random_word(static_cast<uint32_t>(index >> 2), p.key_low, p.key_high);
    const uint32_t byte = word >> (8 * static_cast<uint32_t>(index & 3)) & 0xffU;
    if (p.kind == RandomKind::kInt8Codes) return {static_cast<uint8_t>(byte == 0x80U ? 0x81U : byte)};
    return {static_cast<uint8_t>((byte & 0x7fU) == 0x7fU ? byte - 1 : byte)};
  } else {
    return rounded<T>(real_element(p, index));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) random_kernel(RandomWeightParams p, int64_t runs_per_row) {
  pdl_wait();
  const int64_t row = blockIdx.x / runs_per_row;
  const int64_t col = (blockIdx.x % runs_per_row) * kRun + threadIdx.x * kPerThread;
  if (col >= p.cols) return;
  const int64_t index = p.first + row * p.src_cols + col;
  T* out = static_cast<T*>(p.dst) + row * p.dst_stride + col;
  constexpr int kVector = 16 / sizeof(T) < kPerThread ? 16 / sizeof(T) : kPerThread;  // elements per store
  constexpr size_t kStoreBytes = kVector * sizeof(T);                                 // 16, or 8 for bytes
  if (p.cols - col >= kPerThread && reinterpret_cast<uintptr_t>(out) % kStoreBytes == 0) {
#pragma unroll
    for (int begin = 0; begin < kPerThread; begin += kVector) {
      alignas(16) T values[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[i] = element<T>(p, index + begin + i);
      using Store = std::conditional_t<kStoreBytes == 16, uint4, uint2>;
      *reinterpret_cast<Store*>(out + begin) = *reinterpret_cast<const Store*>(values);
    }
    return;
  }
  const int count = p.cols - col < kPerThread ? static_cast<int>(p.cols - col) : kPerThread;
  for (int i = 0; i < count; ++i) out[i] = element<T>(p, index + i);
}

}  // namespace

void random_weight(const RandomWeightParams& params, const Launch& launch) {
  HADAL_CHECK_EQ(params.kind == RandomKind::kFp8Codes, params.type == StoredType::kE4M3);
  HADAL_CHECK_EQ(params.kind == RandomKind::kInt8Codes, params.type == StoredType::kI8);
  const int64_t runs = (params.cols + kRun - 1) / kRun;
  const dim3 grid(static_cast<unsigned>(params.rows * runs));
  switch (params.type) {
    case StoredType::kF32:
      return launch_kernel<random_kernel<float>>(launch, grid, kThreads, 0, params, runs);
    case StoredType::kF16:
      return launch_kernel<random_kernel<f16>>(launch, grid, kThreads, 0, params, runs);
    case StoredType::kBF16:
      return launch_kernel<random_kernel<bf16>>(launch, grid, kThreads, 0, params, runs);
    case StoredType::kE4M3:
    case StoredType::kI8:
      return launch_kernel<random_kernel<fp8_e4m3>>(launch, grid, kThreads, 0, params, runs);
  }
}

int current_device() {
  int device = 0;
  HADAL_CUDA_CHECK(cudaGetDevice(&device));
  return device;
}

}  // namespace hadal::cuda
