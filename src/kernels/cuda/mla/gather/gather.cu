// Gathers the keys of a prefill pass for the expansion by kv_b: it copies paged records to dense rows, with
// latents and roped parts in separate buffers.
//
// Grid: x covers the rows of the longest run, y is the run. One warp reads kRowsPerWarp records with all
// their loads in flight; lane l holds the latents 16·l … 16·l + 15, so that eight lanes hold one group of
// 128. The kernel is memory-bound: its accesses have 16 bytes (4 for scales), and it uses no shared memory.
#include <cuda_runtime.h>

#include "base/check.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/common/fp8.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/gather/gather.h"

namespace hadal::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kRowsPerWarp = 2;
constexpr int kRowsPerBlock = kWarps * kRowsPerWarp;
constexpr int kLanePart = kKvLatentDim / 32;  // latents per lane

__device__ __forceinline__ float byte_of(const uint4& words, int i, KvFormat format) {
  const uint32_t word = i / 4 == 0 ? words.x : i / 4 == 1 ? words.y : i / 4 == 2 ? words.z : words.w;
  const auto bits = static_cast<uint8_t>(word >> (i % 4 * 8));
  return format == KvFormat::kFp8E4M3 ? to_f32(fp8_e4m3{bits}) : to_f32(fp8_e5m2{bits});
}
__device__ __forceinline__ uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

template <KvFormat kFormat>
constexpr bool kIs16Bit = kFormat == KvFormat::kBF16 || kFormat == KvFormat::kF16;

// Holds the part of a record that one lane has loaded.
template <KvFormat kFormat>
struct LaneRecord {
  uint4 latent[kIs16Bit<kFormat> ? 2 : 1];
  uint4 rope;          // lanes 0…7 (16 bits) or 0…3 (e5m2)
  float scale = 1.0F;  // kFp8E4M3
  int64_t row = -1;    // row of the pass; −1: none
};

template <KvFormat kFormat>
__device__ __forceinline__ void load_record(LaneRecord<kFormat>& lane_record, const std::byte* record,
                                            int lane) {
  constexpr int kRopeOffset = kIs16Bit<kFormat>               ? kKvLatentDim * 2
                              : kFormat == KvFormat::kFp8E4M3 ? kKvFp8RopeOffset
                                                              : kKvLatentDim;
  constexpr int kRopeLanes = kFormat == KvFormat::kFp8E5M2 ? 4 : 8;
  if constexpr (kIs16Bit<kFormat>) {
    lane_record.latent[0] = load_once(record + lane * 32);
    lane_record.latent[1] = load_once(record + lane * 32 + 16);
  } else {
    lane_record.latent[0] = load_once(record + lane * 16);
  }
  if (lane < kRopeLanes) lane_record.rope = load_once(record + kRopeOffset + lane * 16);
  if constexpr (kFormat == KvFormat::kFp8E4M3) {
    lane_record.scale = *reinterpret_cast<const float*>(record + kKvFp8ScaleOffset + lane / 8 * 4);
  }
}

template <KvFormat kFormat>
__device__ __forceinline__ void store_record(const GatherKeysParams& p, const LaneRecord<kFormat>& from,
                                             int lane) {
  using T = std::conditional_t<kFormat == KvFormat::kF16, f16, bf16>;
  float latents[kLanePart];
#pragma unroll
  for (int i = 0; i < kLanePart; ++i) {
    if constexpr (kIs16Bit<kFormat>) {
      const float2 pair = unpack_two<T>(word_of(from.latent[i / 8], i % 8 / 2));
      latents[i] = i % 2 == 0 ? pair.x : pair.y;
    } else {
      latents[i] = byte_of(from.latent[0], i, kFormat) * from.scale;
    }
  }
  if (p.latent != nullptr) {
    auto* out =
        reinterpret_cast<uint4*>(static_cast<T*>(p.latent) + from.row * kKvLatentDim + lane * kLanePart);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float* part = latents + 8 * i;
      out[i] = {pack_two<T>(part[0], part[1]), pack_two<T>(part[2], part[3]), pack_two<T>(part[4], part[5]),
                pack_two<T>(part[6], part[7])};
    }
  }
  if constexpr (kFormat == KvFormat::kFp8E5M2) {
    if (lane < 4) {
      auto* out = reinterpret_cast<uint4*>(static_cast<T*>(p.rope) + from.row * kKvRopeDim + lane * 16);
      uint32_t words[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        words[i] = pack_bf16(byte_of(from.rope, 2 * i, kFormat), byte_of(from.rope, 2 * i + 1, kFormat));
      }
      out[0] = {words[0], words[1], words[2], words[3]};
      out[1] = {words[4], words[5], words[6], words[7]};
    }
  } else if (lane < 8) {
    *reinterpret_cast<uint4*>(static_cast<T*>(p.rope) + from.row * kKvRopeDim + lane * 8) = from.rope;
  }
  if (p.latent_fp8.codes != nullptr) {
    float most = 0.0F;
#pragma unroll
    for (int i = 0; i < kLanePart; ++i) most = fmaxf(most, fabsf(latents[i]));
#pragma unroll
    for (int distance = 1; distance < 8; distance *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffU, most, distance));
    }
    const float scale = group_scale(most, p.latent_fp8.power_of_two);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words[i] = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        words[i] |= static_cast<uint32_t>(to_e4m3(__fdiv_rn(latents[4 * i + b], scale)).bits) << (8 * b);
      }
    }
    fp8_e4m3* codes = p.latent_fp8.codes + from.row * p.latent_fp8.stride;
    *reinterpret_cast<uint4*>(codes + lane * kLanePart) = {words[0], words[1], words[2], words[3]};
    for (int64_t i = kKvLatentDim + lane * 16; i < p.latent_fp8.stride; i += 32 * 16) {
      *reinterpret_cast<uint4*>(codes + i) = uint4{0, 0, 0, 0};
    }
    if (lane % 8 == 0) p.latent_fp8.scales[lane / 8 * p.latent_fp8.scale_stride + from.row] = scale;
  }
}

template <KvFormat kFormat>
__global__ void __launch_bounds__(kWarps * 32) gather_keys_kernel(GatherKeysParams p) {
  pdl_wait();
  const KeyRun run = p.runs[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(blockIdx.x) * kRowsPerBlock + static_cast<int>(threadIdx.x) / 32;
  constexpr int kRowBytes = KvLayout{kFormat}.row_bytes();
  LaneRecord<kFormat> records[kRowsPerWarp];
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int row = first + i * kWarps;
    if (row < run.count) {
      const int position = run.begin + row;
      const int64_t page = p.kv.page_table[run.seq_idx * p.kv.page_table_stride + position / kPageSize];
      load_record<kFormat>(records[i], p.kv.pool + (page * kPageSize + position % kPageSize) * kRowBytes,
                           lane);
      records[i].row = int64_t{run.out_begin} + row;
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    if (records[i].row >= 0) store_record<kFormat>(p, records[i], lane);
  }
}

template <KvFormat kFormat>
void launch_gather(const GatherKeysParams& p, const Launch& launch) {
  const auto blocks = static_cast<unsigned>((p.max_count + kRowsPerBlock - 1) / kRowsPerBlock);
  launch_kernel<gather_keys_kernel<kFormat>>(launch, dim3(blocks, static_cast<unsigned>(p.num_runs)),
                                             dim3(kWarps * 32), 0, p);
}

}  // namespace

void gather_keys(const GatherKeysParams& p, const Launch& launch) {
  HADAL_CHECK(p.latent != nullptr || p.latent_fp8.codes != nullptr,
              "neither 16-bit nor FP8 latents are wanted");
  HADAL_CHECK(p.latent_fp8.codes == nullptr || p.kv.layout.format != KvFormat::kF16,
              "codes are not made from a float16 cache");
  HADAL_CHECK(p.latent_fp8.codes == nullptr ||
                  (p.latent_fp8.stride >= kKvLatentDim && p.latent_fp8.stride % kQuantGroup == 0),
              "the stride of the codes is {}; must be a multiple of {}, at least {}", p.latent_fp8.stride,
              kQuantGroup, kKvLatentDim);
  if (launch.reference) return reference::gather_keys(p, launch);
  switch (p.kv.layout.format) {
    case KvFormat::kBF16:
      return launch_gather<KvFormat::kBF16>(p, launch);
    case KvFormat::kF16:
      return launch_gather<KvFormat::kF16>(p, launch);
    case KvFormat::kFp8E4M3:
      return launch_gather<KvFormat::kFp8E4M3>(p, launch);
    case KvFormat::kFp8E5M2:
      return launch_gather<KvFormat::kFp8E5M2>(p, launch);
    default:
      HADAL_CHECK(false, "KV format is {}; the device supports bf16, f16, fp8_e4m3 and fp8_e5m2",
                  static_cast<int>(p.kv.layout.format));
  }
}

}  // namespace hadal::cuda
