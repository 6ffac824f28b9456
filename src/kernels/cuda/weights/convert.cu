// Converts and quantises weights, and transposes W_UK. Each element is read and written once.
//
// convert: the grid is that of random.cu, without its 16-byte stores; a thread converts every 256th column of
//   a run of 2,048 columns.
// quantize: one block of 256 threads works on a 128×128 block of weights. Warp w holds rows w, w + 8, …, and
//   lane l columns l, l + 32, l + 64, l + 96. These 64 values per thread stay in registers between the two
//   passes (largest magnitude, codes). With a scale per row, a block works on one row and reads it twice.
// transpose: one block of 32×8 threads works on a 32×32 tile in shared memory, whose rows have 33 columns to
//   avoid bank conflicts.
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/weights/rounding.cuh"
#include "kernels/cuda/weights/weights.h"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 2048;
constexpr int kBlock = 128;
constexpr float kMinAmax = 0x1p-100F;  // kMinBlockAmax of model/quantize.h

template <typename Src, typename Dst>
__global__ void __launch_bounds__(kThreads) convert_kernel(ConvertWeightParams p, int64_t runs_per_row) {
  pdl_wait();
  const int64_t row = blockIdx.x / runs_per_row;
  const int64_t begin = (blockIdx.x % runs_per_row) * kRun;
  const int64_t end = begin + kRun < p.cols ? begin + kRun : p.cols;
  const Src* src = static_cast<const Src*>(p.src) + row * p.src_stride;
  Dst* dst = static_cast<Dst*>(p.dst) + row * p.dst_stride;
  for (int64_t col = begin + threadIdx.x; col < end; col += kThreads)
    dst[col] = rounded<Dst>(widened(src[col]));
}

constexpr int kWarps = kThreads / 32;

struct Scaling {
  float scale, inverse;
};
// Computes the scaling of a block or row from the largest magnitude in each thread, which is at least
// kMinAmax. With int8 the scale is NaN if any thread has found a NaN.
__device__ __forceinline__ Scaling scaling_of(float amax, bool has_nan, bool int8) {
  __shared__ float warp_amax[kWarps];
  for (int step = 16; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(~0U, amax, step));
  if (threadIdx.x % 32 == 0) warp_amax[threadIdx.x / 32] = amax;
  const bool any_nan = __syncthreads_or(has_nan ? 1 : 0) != 0;
  for (int i = 0; i < kWarps; ++i) amax = fmaxf(amax, warp_amax[i]);
  const float most = int8 ? 127.0F : kFp8E4m3Max;
  if (int8 && any_nan) amax = __uint_as_float(0x7fc00000U);
  return {__fdiv_rn(amax, most), __fdiv_rn(most, amax)};
}
__device__ __forceinline__ fp8_e4m3 code_of(float value, float inverse, bool int8) {
  const float scaled = __fmul_rn(value, inverse);
  if (!int8) return to_e4m3(scaled);
  if (scaled != scaled) return {};
  return {static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(scaled, -127.0F), 127.0F)))};
}

template <typename Src>
__global__ void __launch_bounds__(kThreads) quantize_rows_kernel(QuantizeWeightParams p) {
  pdl_wait();
  const bool int8 = p.type == WeightType::kInt8Channel;
  const int64_t row = blockIdx.x;
  const Src* src = static_cast<const Src*>(p.src) + row * p.src_stride;
  float amax = kMinAmax;
  bool has_nan = false;
  for (int64_t col = threadIdx.x; col < p.cols; col += kThreads) {
    const float value = widened(src[col]);
    amax = fmaxf(amax, fabsf(value));
    has_nan |= value != value;
  }
  const Scaling scaling = scaling_of(amax, has_nan, int8);
  if (threadIdx.x == 0) p.scales[row] = scaling.scale;
  for (int64_t col = threadIdx.x; col < p.code_cols; col += kThreads)
    p.codes[row * p.stride + col] = code_of(widened(src[p.first_code_col + col]), scaling.inverse, int8);
}

template <typename Src>
__global__ void __launch_bounds__(kThreads) quantize_kernel(QuantizeWeightParams p) {
  pdl_wait();
  const bool int8 = p.type == WeightType::kInt8Block;
  const int warp_idx = threadIdx.x / 32;
  const int lane_idx = threadIdx.x % 32;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kBlock;
  const int64_t first_col = static_cast<int64_t>(blockIdx.x) * kBlock;
  const Src* src = static_cast<const Src*>(p.src);

  float values[kBlock / kWarps][kBlock / 32];
  float amax = kMinAmax;
  bool has_nan = false;
#pragma unroll
  for (int i = 0; i < kBlock / kWarps; ++i) {
    const int64_t row = first_row + warp_idx + i * kWarps;
#pragma unroll
    for (int j = 0; j < kBlock / 32; ++j) {
      const int64_t col = first_col + lane_idx + j * 32;
      values[i][j] = row < p.rows && col < p.cols ? widened(src[row * p.src_stride + col]) : 0.0F;
      amax = fmaxf(amax, fabsf(values[i][j]));
      has_nan |= values[i][j] != values[i][j];
    }
  }
  const Scaling scaling = scaling_of(amax, has_nan, int8);
  if (threadIdx.x == 0) p.scales[blockIdx.y * p.scale_stride + blockIdx.x] = scaling.scale;
#pragma unroll
  for (int i = 0; i < kBlock / kWarps; ++i) {
    const int64_t row = first_row + warp_idx + i * kWarps;
#pragma unroll
    for (int j = 0; j < kBlock / 32; ++j) {
      const int64_t col = first_col + lane_idx + j * 32;
      if (row < p.code_rows && col < p.cols)
        p.codes[row * p.stride + col] = code_of(values[i][j], scaling.inverse, int8);
    }
  }
}

constexpr int kTile = 32;
constexpr int kTileRows = 8;
constexpr int kNope = 128;    // qk_nope_head_dim: rows of W_UK
constexpr int kLatent = 512;  // kv_lora_rank: columns
constexpr int kHeadRows = 256;

template <typename T>  // an unsigned integer of the elements' size
__global__ void __launch_bounds__(kTile* kTileRows) transpose_kernel(TransposeKeysParams p) {
  pdl_wait();
  __shared__ T tile[kTile][kTile + 1];
  const int64_t head = blockIdx.z;
  const int col0 = blockIdx.x * kTile;
  const int row0 = blockIdx.y * kTile;
  const T* src = static_cast<const T*>(p.kv_b) + head * kHeadRows * p.stride;
  T* dst = static_cast<T*>(p.w_uk) + head * kLatent * kNope;
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    tile[i][threadIdx.x] = src[(row0 + i) * p.stride + col0 + threadIdx.x];
  }
  __syncthreads();
  for (int i = threadIdx.y; i < kTile; i += kTileRows) {
    dst[static_cast<int64_t>(col0 + i) * kNope + row0 + threadIdx.x] = tile[threadIdx.x][i];
  }
  constexpr int kScales = kLatent / kBlock;
  if (p.kv_b_scales != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.y == 0 &&
      threadIdx.x < kScales) {
    p.w_uk_scales[head * kScales + threadIdx.x] =
        p.kv_b_scales[head * (kHeadRows / kBlock) * p.scale_stride + threadIdx.x];
  }
}

template <typename Src>
void convert_from(const ConvertWeightParams& params, const Launch& launch) {
  const int64_t runs = (params.cols + kRun - 1) / kRun;
  const dim3 grid(static_cast<unsigned>(params.rows * runs));
  if (params.dst_type == StoredType::kF32) {
    return launch_kernel<convert_kernel<Src, float>>(launch, grid, kThreads, 0, params, runs);
  }
  if (params.dst_type == StoredType::kF16) {
    return launch_kernel<convert_kernel<Src, f16>>(launch, grid, kThreads, 0, params, runs);
  }
  HADAL_CHECK(params.dst_type == StoredType::kBF16, "weights become float32, bf16 or float16");
  launch_kernel<convert_kernel<Src, bf16>>(launch, grid, kThreads, 0, params, runs);
}

}  // namespace

void convert_weight(const ConvertWeightParams& params, const Launch& launch) {
  switch (params.src_type) {
    case StoredType::kF32:
      return convert_from<float>(params, launch);
    case StoredType::kF16:
      return convert_from<f16>(params, launch);
    case StoredType::kBF16:
      return convert_from<bf16>(params, launch);
    case StoredType::kE4M3:
    case StoredType::kI8:
      HADAL_CHECK(false, "codes are never converted");
  }
}

namespace {

template <typename Src>
void quantize_from(const QuantizeWeightParams& params, const Launch& launch) {
  if (is_channel_scaled(params.type)) {
    HADAL_CHECK_EQ(params.code_rows, params.rows);
    return launch_kernel<quantize_rows_kernel<Src>>(launch, dim3(static_cast<unsigned>(params.rows)),
                                                    kThreads, 0, params);
  }
  HADAL_CHECK_EQ(params.code_cols, params.cols);
  const dim3 grid(static_cast<unsigned>((params.cols + kBlock - 1) / kBlock),
                  static_cast<unsigned>((params.rows + kBlock - 1) / kBlock));
  launch_kernel<quantize_kernel<Src>>(launch, grid, kThreads, 0, params);
}

}  // namespace

void quantize_weight(const QuantizeWeightParams& params, const Launch& launch) {
  switch (params.src_type) {
    case StoredType::kF32:
      return quantize_from<float>(params, launch);
    case StoredType::kF16:
      return quantize_from<f16>(params, launch);
    case StoredType::kBF16:
      return quantize_from<bf16>(params, launch);
    case StoredType::kE4M3:
    case StoredType::kI8:
      HADAL_CHECK(false, "codes are quantised already");
  }
}

void transpose_keys(const TransposeKeysParams& params, const Launch& launch) {
  const dim3 grid(kLatent / kTile, kNope / kTile, static_cast<unsigned>(params.num_heads));
  const dim3 block(kTile, kTileRows);
  if (params.type == StoredType::kE4M3) {
    return launch_kernel<transpose_kernel<uint8_t>>(launch, grid, block, 0, params);
  }
  HADAL_CHECK(params.type == StoredType::kBF16 || params.type == StoredType::kF16,
              "W_UK is bf16, float16 or e4m3");
  launch_kernel<transpose_kernel<uint16_t>>(launch, grid, block, 0, params);
}

}  // namespace hadal::cuda
