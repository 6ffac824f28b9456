// Does the work between the first projections and attention: q_a_layernorm (with quantisation),
// kv_a_layernorm, RoPE of k_pe, and the KV write.
//
// Grid: with a q norm there is one block per row. Its last warp makes the row's KV record. The other warps
// (eight values per thread) normalise the q part and synchronise at named barrier 1, with 32 partial sums in
// shared memory. Without a q norm, a block has four rows, one warp each, and needs no barrier and no shared
// memory. In the record's warp, lane l holds latents [16l, 16l + 16), and pair l of k_pe; a quantisation
// group is eight lanes. Norm weights are loaded before pdl_wait. A thread has at most 64 registers.
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/reference.h"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kRowsPerBlock = 4;  // without a q norm

__device__ __forceinline__ void named_barrier(int threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}

// Writes the KV record of `row`; one warp calls it. T is bf16, or f16 for float16 records.
template <typename T>
__device__ __forceinline__ void write_kv_record(const MlaPrologueParams& p, int64_t row,
                                                const Floats8 (&weight)[2]) {
  const int lane = threadIdx.x % 32;
  const int64_t slot = p.slots[row];
  if (slot < 0) return;
  const T* x = static_cast<const T*>(p.x) + row * p.x_stride + p.kv_begin;
  Floats8 latent[2] = {load8(x + 16 * lane), load8(x + 16 * lane + 8)};
  const float2 pair = unpack_two<T>(*reinterpret_cast<const uint32_t*>(x + kKvLatentDim + 2 * lane));
  const float* table = p.cos_sin + int64_t{p.positions[row]} * kKvRopeDim;
  const float2 rope = rotate(pair.x, pair.y, table[lane], table[32 + lane]);

  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum = fmaf(latent[i / 8].v[i % 8], latent[i / 8].v[i % 8], sum);
  const float factor = norm_factor(lanes_sum(sum), kKvLatentDim, p.eps);
#pragma unroll
  for (int i = 0; i < 16; ++i)
    latent[i / 8].v[i % 8] = latent[i / 8].v[i % 8] * factor * weight[i / 8].v[i % 8];

  std::byte* record = p.pool + slot * p.layout.row_bytes();
  if (std::is_same_v<T, f16> || p.layout.format == KvFormat::kBF16) {
    auto* out = reinterpret_cast<T*>(record);
    store8(out + 16 * lane, latent[0]);
    store8(out + 16 * lane + 8, latent[1]);
    *reinterpret_cast<uint32_t*>(out + kKvLatentDim + 2 * lane) = pack_two<T>(rope.x, rope.y);
  } else if (p.layout.format == KvFormat::kFp8E4M3) {
    const float most = fmaxf(abs_max8(latent[0]), abs_max8(latent[1]));
    constexpr int kGroupLanes = kKvScaleGroup / 16;
    const float amax =
        p.layout.scales == KvScales::kPerToken ? lanes_max(most) : lanes_max<kGroupLanes>(most);
    const float scale = group_scale(amax, false);
    const uint2 low = e4m3_codes8(latent[0], scale);
    const uint2 high = e4m3_codes8(latent[1], scale);
    *reinterpret_cast<uint4*>(record + 16 * lane) = {low.x, low.y, high.x, high.y};
    if (lane % kGroupLanes == 0)
      reinterpret_cast<float*>(record + kKvFp8ScaleOffset)[lane / kGroupLanes] = scale;
    *reinterpret_cast<uint32_t*>(record + kKvFp8RopeOffset + 4 * lane) = pack_bf16(rope.x, rope.y);
  } else {
    const Floats8& a = latent[0];
    const Floats8& b = latent[1];
    *reinterpret_cast<uint4*>(record + 16 * lane) = {
        e5m2x4(a.v[0], a.v[1], a.v[2], a.v[3]), e5m2x4(a.v[4], a.v[5], a.v[6], a.v[7]),
        e5m2x4(b.v[0], b.v[1], b.v[2], b.v[3]), e5m2x4(b.v[4], b.v[5], b.v[6], b.v[7])};
    *reinterpret_cast<uint16_t*>(record + kKvLatentDim + 2 * lane) =
        __nv_cvt_float2_to_fp8x2(rope, __NV_SATFINITE, __NV_E5M2);
  }
}

__device__ __forceinline__ void load_kv_norm(const MlaPrologueParams& p, Floats8 (&weight)[2]) {
  const int lane = threadIdx.x % 32;
  weight[0] = load8(p.kv_norm + 16 * lane);
  weight[1] = load8(p.kv_norm + 16 * lane + 8);
}

template <typename T>
__global__ void __launch_bounds__(32 * kRowsPerBlock) kv_prologue_kernel(const MlaPrologueParams p) {
  Floats8 weight[2];
  load_kv_norm(p, weight);
  pdl_launch_dependents();
  pdl_wait();
  const int64_t row = int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / 32;
  if (row < p.m) write_kv_record<T>(p, row, weight);
}

template <typename T>
__global__ void __launch_bounds__(1024) mla_prologue_kernel(const MlaPrologueParams p) {
  __shared__ float partial[32];
  __shared__ float peaks[32];  // rows with one scale: a warp's largest |x · weight|
  const int64_t row = blockIdx.x;
  const int q_threads = static_cast<int>(blockDim.x) - 32;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread >= q_threads) {
    Floats8 weight[2];
    load_kv_norm(p, weight);
    pdl_launch_dependents();
    pdl_wait();
    write_kv_record<T>(p, row, weight);
    return;
  }
  const int column = thread * kVec;
  const bool inside = column < p.q_width;
  Floats8 weight{};
  if (inside) weight = load8(p.q_norm + column);
  pdl_launch_dependents();
  pdl_wait();
  Floats8 x{};
  if (inside) x = load8(static_cast<const T*>(p.x) + row * p.x_stride + column);
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum = fmaf(x.v[i], x.v[i], sum);
  sum = lanes_sum(sum);
  const bool per_token = p.q_quantized && is_per_token(p.q_quantized.format);
  float peak = 0.0F;
  if (per_token) {
#pragma unroll
    for (int i = 0; i < kVec; ++i) peak = fmaxf(peak, fabsf(x.v[i] * weight.v[i]));
    peak = lanes_max(peak);
  }
  const int lane = thread % 32;
  if (lane == 0) {
    partial[thread / 32] = sum;
    if (per_token) peaks[thread / 32] = peak;
  }
  named_barrier(q_threads);
  const bool has_warp = lane < q_threads / 32;
  sum = lanes_sum(has_warp ? partial[lane] : 0.0F);
  const float factor = norm_factor(sum, p.q_width, p.eps);
#pragma unroll
  for (int i = 0; i < kVec; ++i) x.v[i] = x.v[i] * factor * weight.v[i];
  if (p.q != nullptr && inside) store8(static_cast<T*>(p.q) + row * p.q_width + column, x);
  if (per_token) {
    const float scale = scale_of(p.q_quantized, lanes_max(has_warp ? peaks[lane] : 0.0F) * factor);
    store8_of_token(p.q_quantized, row, column, x, scale);
  } else if (p.q_quantized) {
    store8_quantized(p.q_quantized, row, column, x);
  }
}

}  // namespace

void mla_prologue(const MlaPrologueParams& params, const Launch& launch) {
  MlaPrologueParams p = params;
  if (p.kv_begin == 0) p.kv_begin = p.q_width;
  const KvFormat format = p.layout.format;
  HADAL_CHECK(format != KvFormat::kF32,
              "KV format is {}; the device supports bf16, f16, fp8_e4m3 and fp8_e5m2",
              static_cast<int>(format));
  HADAL_CHECK(format != KvFormat::kF16 || !p.q_quantized, "codes are made only from bf16 rows");
  HADAL_CHECK_GE(p.kv_begin, p.q_width);
  HADAL_CHECK_GE(p.x_stride, p.kv_begin + kKvRowDim);
  const int64_t q_columns = p.q_quantized ? p.q_quantized.stride : p.q_width;
  const bool wide =
      p.x_stride % kVec == 0 && p.q_width % kVec == 0 && p.kv_begin % kVec == 0 && on_16_bytes(p.x) &&
      on_16_bytes(p.kv_norm) && on_16_bytes(p.pool) &&
      (p.q_norm == nullptr || (q_columns <= 31 * 32 * kVec && q_columns >= p.q_width &&
                               on_16_bytes(p.q_norm) && on_16_bytes(p.q) && on_16_bytes(p.q_quantized)));
  if (launch.reference || !wide) return reference::mla_prologue(p, launch);
  if (p.q_norm == nullptr) {
    const auto blocks = static_cast<unsigned>((p.m + kRowsPerBlock - 1) / kRowsPerBlock);
    return format == KvFormat::kF16
               ? launch_kernel<kv_prologue_kernel<f16>>(launch, blocks, 32 * kRowsPerBlock, 0, p)
               : launch_kernel<kv_prologue_kernel<bf16>>(launch, blocks, 32 * kRowsPerBlock, 0, p);
  }
  const auto threads = static_cast<unsigned>(round_up(q_columns / kVec, 32) + 32);
  if (format == KvFormat::kF16)
    return launch_kernel<mla_prologue_kernel<f16>>(launch, static_cast<unsigned>(p.m), threads, 0, p);
  launch_kernel<mla_prologue_kernel<bf16>>(launch, static_cast<unsigned>(p.m), threads, 0, p);
}

}  // namespace hadal::cuda
