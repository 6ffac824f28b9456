// Implements the kernel of wgmma_probe.h. The grid is one block of one warpgroup. Thread 0 loads both
// operands whole through tensor maps (one barrier, one phase), and all four warps issue the products of the
// form. Accumulators go to global memory as they lie, and once more through stmatrix, the 128-byte swizzle
// and a tensor store. Shared memory holds A (16 or 32 KB), B (up to 64 KB) and D (up to 32 KB).
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "tests/cuda/gemm/wgmma_probe.h"

namespace hadal::cuda {
namespace {

constexpr int kOperandBytes = 64 * 1024;

template <WgmmaForm kForm>
struct Form {
  static constexpr bool kBf16 = kForm != WgmmaForm::kE4m3 && kForm != WgmmaForm::kE4m3Registers;
  static constexpr bool kAMn = kForm == WgmmaForm::kBf16AMnMajor || kForm == WgmmaForm::kBf16BothMnMajor;
  static constexpr bool kBMn = kForm == WgmmaForm::kBf16BMnMajor || kForm == WgmmaForm::kBf16BothMnMajor ||
                               kForm == WgmmaForm::kBf16RegistersBMnMajor;
  static constexpr bool kRegisters = kForm == WgmmaForm::kBf16Registers ||
                                     kForm == WgmmaForm::kBf16RegistersBMnMajor ||
                                     kForm == WgmmaForm::kE4m3Registers;
  static constexpr int kPerRow = kBf16 ? 64 : 128;  // elements of 128 bytes
  static constexpr int kDepth = 2 * kPerRow;
  using Element = std::conditional_t<kBf16, bf16, fp8_e4m3>;
};

// Returns word i of the A fragment for 32 bytes of k starting at byte `k_byte` of a K-major tile.
__device__ __forceinline__ uint32_t a_word(const uint8_t* tile, int k_byte, int i) {
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const int row = 16 * warp + 8 * (i & 1) + lane / 4;
  const int byte = k_byte + 16 * (i >> 1) + 4 * (lane % 4);
  return *reinterpret_cast<const uint32_t*>(tile + swizzle_128(row, byte >> 4) + (byte & 15));
}

template <WgmmaForm kForm, int kN>
__global__ void __launch_bounds__(128)
    wgmma_probe_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                       const __grid_constant__ CUtensorMap d_map, float* d_out, bool store_bf16) {
  using F = Form<kForm>;
  extern __shared__ uint8_t raw_shared[];
  uint8_t* shared = raw_shared + (1024 - (shared_address(raw_shared) & 1023U)) % 1024;
  uint8_t* a = shared;
  uint8_t* b = shared + kOperandBytes / 2;
  uint8_t* staged = b + kOperandBytes;
  __shared__ Mbarrier full;
  constexpr int kATile = F::kAMn ? 128 * 128 : 64 * 128;  // bytes of a box: rows of 128 bytes
  constexpr int kBTile = F::kBMn ? 128 * 128 : kN * 128;
  constexpr int kATiles = F::kAMn ? 1 : 2;
  constexpr int kBTiles = F::kBMn ? kN / 64 : 2;
  pdl_wait();
  if (threadIdx.x == 0) {
    mbarrier_init(&full, 1);
    mbarrier_init_fence();
    mbarrier_arrive_expect_tx(&full, kATiles * kATile + kBTiles * kBTile);
    for (int i = 0; i < kATiles; ++i) tma_load_2d(a + i * kATile, &a_map, &full, i * F::kPerRow, 0);
    for (int i = 0; i < kBTiles; ++i) tma_load_2d(b + i * kBTile, &b_map, &full, i * F::kPerRow, 0);
  }
  __syncthreads();
  mbarrier_wait(&full, 0);
  float d[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) d[i] = __int_as_float(0x7fc00000);  // the first product must not read it
  wgmma_pin(d);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < 8; ++step) {  // 32 bytes of k each
    const int tile = step / 4;
    const int inside = step % 4;
    const uint64_t b_desc = F::kBMn ? wgmma_mn_major(b + step * 2048, kBTile)
                                    : wgmma_advance(wgmma_k_major(b + tile * kBTile), inside * 32);
    if constexpr (F::kRegisters) {
      uint32_t fragment[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) fragment[i] = a_word(a + tile * kATile, inside * 32, i);
      wgmma_pin(fragment);
      wgmma_fence();
      if constexpr (F::kBf16)
        wgmma_bf16_rs<kN, F::kBMn>(d, fragment, b_desc, step > 0);
      else
        wgmma_e4m3_rs<kN>(d, fragment, b_desc, step > 0);
      wgmma_commit();
      wgmma_wait<0>();
    } else {
      const uint64_t a_desc = F::kAMn ? wgmma_mn_major(a + step * 2048, kATile)
                                      : wgmma_advance(wgmma_k_major(a + tile * kATile), inside * 32);
      if constexpr (F::kBf16)
        wgmma_bf16<kN, F::kAMn, F::kBMn>(d, a_desc, b_desc, step > 0);
      else
        wgmma_e4m3<kN>(d, a_desc, b_desc, step > 0);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_pin(d);
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    const int row = 16 * warp + 8 * ((i >> 1) & 1) + lane / 4;
    const int column = 8 * (i >> 2) + 2 * (lane % 4) + (i & 1);
    d_out[row * kN + column] = d[i];
  }
  if constexpr (kN % 64 == 0) {
    if (!store_bf16) return;
    // Matrices 0 and 1 are rows 0–7 and 8–15 of the warp at 8 columns; matrices 2 and 3 are the next 8
    // columns.
    const int row = 16 * warp + lane % 16;
#pragma unroll
    for (int j = 0; j < kN / 16; ++j) {
      const uint32_t at = shared_address(staged + (j / 4) * 8192) + swizzle_128(row, 2 * (j % 4) + lane / 16);
      store_matrix_x4(at, pack_bf16(d[8 * j], d[8 * j + 1]), pack_bf16(d[8 * j + 2], d[8 * j + 3]),
                      pack_bf16(d[8 * j + 4], d[8 * j + 5]), pack_bf16(d[8 * j + 6], d[8 * j + 7]));
    }
    fence_proxy_async_shared();
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 0; i < kN / 64; ++i) tma_store_2d(&d_map, staged + i * 8192, i * 64, 0);
      bulk_store_commit();
      bulk_store_wait<0>();
    }
  }
}

template <WgmmaForm kForm, int kN>
void run(const WgmmaProbeParams& p, const Launch& launch) {
  using F = Form<kForm>;
  using E = typename F::Element;
  const auto* a = static_cast<const E*>(p.a);
  const auto* b = static_cast<const E*>(p.b);
  const CUtensorMap a_map = F::kAMn ? make_tensor_map<2>(a, {64, F::kDepth}, {64}, {64, F::kDepth})
                                    : make_tensor_map<2>(a, {F::kDepth, 64}, {F::kDepth}, {F::kPerRow, 64});
  const CUtensorMap b_map = F::kBMn ? make_tensor_map<2>(b, {kN, F::kDepth}, {kN}, {64, F::kDepth})
                                    : make_tensor_map<2>(b, {F::kDepth, kN}, {F::kDepth}, {F::kPerRow, kN});
  const CUtensorMap d_map =
      p.d_bf16 == nullptr ? a_map : make_tensor_map<2>(p.d_bf16, {kN, 64}, {kN}, {64, 64});
  launch_kernel<wgmma_probe_kernel<kForm, kN>>(launch, dim3(1), dim3(128), kOperandBytes * 2 + 1024, a_map,
                                               b_map, d_map, p.d, p.d_bf16 != nullptr);
}

template <WgmmaForm kForm>
void run_width(const WgmmaProbeParams& p, const Launch& launch) {
  switch (p.n) {
    case 64:
      return run<kForm, 64>(p, launch);
    case 128:
      return run<kForm, 128>(p, launch);
    case 192:
      return run<kForm, 192>(p, launch);
    case 256:
      return run<kForm, 256>(p, launch);
    default:
      break;
  }
  if constexpr (!Form<kForm>::kBMn) {
    if (p.n == 8) return run<kForm, 8>(p, launch);
    if (p.n == 96) return run<kForm, 96>(p, launch);
  }
  HADAL_CHECK(false, "wgmma_probe does not support n {}", p.n);
}

}  // namespace

void wgmma_probe(const WgmmaProbeParams& p, const Launch& launch) {
  switch (p.form) {
    case WgmmaForm::kBf16:
      return run_width<WgmmaForm::kBf16>(p, launch);
    case WgmmaForm::kBf16BMnMajor:
      return run_width<WgmmaForm::kBf16BMnMajor>(p, launch);
    case WgmmaForm::kBf16AMnMajor:
      return run_width<WgmmaForm::kBf16AMnMajor>(p, launch);
    case WgmmaForm::kBf16BothMnMajor:
      return run_width<WgmmaForm::kBf16BothMnMajor>(p, launch);
    case WgmmaForm::kBf16Registers:
      return run_width<WgmmaForm::kBf16Registers>(p, launch);
    case WgmmaForm::kBf16RegistersBMnMajor:
      return run_width<WgmmaForm::kBf16RegistersBMnMajor>(p, launch);
    case WgmmaForm::kE4m3:
      return run_width<WgmmaForm::kE4m3>(p, launch);
    case WgmmaForm::kE4m3Registers:
      return run_width<WgmmaForm::kE4m3Registers>(p, launch);
  }
}

}  // namespace hadal::cuda
