// Copies rows into the order of experts: y[i] = x[token_of[i]] (permute_rows), or y[row_of[t, j]] = x[t]
// (spread_rows).
//
// In permute_rows a block has eight rows and one warp for each; a lane copies 16 bytes at a time with four
// loads in flight. Scales are [group, row], so the eight rows of a block fill whole 32-byte sectors of each
// group. The kernel uses no shared memory. The plain kernel copies single values. In spread_rows a block has
// eight tokens and one warp for each. A lane reads eight times 16 bytes and writes them to each of the
// token's rows, so the time is limited by the bandwidth of writes.
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/experts/experts.h"

namespace hadal::cuda {
namespace {

constexpr int kRows = 8;

__device__ __forceinline__ void copy_scales(const PermuteRowsParams& p, int64_t row, int64_t source,
                                            int first, int step) {
  for (int64_t group = first; group < p.y_quantized.scale_runs(); group += step) {
    p.y_quantized.scales[group * p.y_quantized.scale_stride + row] =
        p.x_quantized.scales[group * p.x_quantized.scale_stride + source];
  }
}

__global__ void __launch_bounds__(32 * kRows) permute_rows_kernel(const PermuteRowsParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int64_t row = int64_t{blockIdx.x} * kRows + threadIdx.x / 32;
  if (row >= (p.num_used != nullptr ? *p.num_used : p.num_rows)) return;
  const int lane = threadIdx.x % 32;
  const int64_t source = p.token_of[row];
  const bool fp8 = static_cast<bool>(p.x_quantized);
  const int chunks = static_cast<int>((fp8 ? p.x_quantized.stride : p.n * 2) / 16);
  const auto* from = fp8 ? reinterpret_cast<const uint4*>(p.x_quantized.codes + source * p.x_quantized.stride)
                         : reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) + source * p.n);
  auto* to = fp8 ? reinterpret_cast<uint4*>(p.y_quantized.codes + row * p.y_quantized.stride)
                 : reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.y) + row * p.n);
  for (int first = lane; first < chunks; first += 32 * 4) {
    uint4 words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + 32 * i < chunks) words[i] = from[first + 32 * i];
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + 32 * i < chunks) to[first + 32 * i] = words[i];
    }
  }
  if (fp8) copy_scales(p, row, source, lane, 32);
}

__global__ void __launch_bounds__(32 * kRows) spread_rows_kernel(const SpreadRowsParams p) {
  constexpr int kChunks = 8;
  pdl_launch_dependents();
  pdl_wait();
  const int64_t token = int64_t{blockIdx.x} * kRows + threadIdx.x / 32;
  if (token >= p.m) return;
  const int lane = threadIdx.x % 32;
  const int chunks = static_cast<int>(p.n / 8);
  const auto* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) + token * p.n);
  const int32_t* rows = p.row_of + token * p.num_slots;
  for (int first = lane; first < chunks; first += 32 * kChunks) {
    uint4 words[kChunks];
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      if (first + 32 * i < chunks) words[i] = from[first + 32 * i];
    }
    for (int j = 0; j < p.top_k; ++j) {
      if (rows[j] < 0) continue;
      auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.y) + rows[j] * p.n);
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        if (first + 32 * i < chunks) to[first + 32 * i] = words[i];
      }
    }
  }
}

__device__ __forceinline__ void copy_value(void* y, int64_t to, const void* x, int64_t from) {
  static_cast<uint16_t*>(y)[to] = static_cast<const uint16_t*>(x)[from];
}

__global__ void plain_spread_kernel(const SpreadRowsParams p) {
  pdl_wait();
  const int64_t token = blockIdx.x;
  for (int j = 0; j < p.top_k; ++j) {
    const int64_t row = p.row_of[token * p.num_slots + j];
    if (row < 0) continue;
    for (int64_t c = threadIdx.x; c < p.n; c += blockDim.x)
      copy_value(p.y, row * p.n + c, p.x, token * p.n + c);
  }
}

__global__ void plain_permute_kernel(const PermuteRowsParams p) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  if (p.num_used != nullptr && row >= *p.num_used) return;
  const int64_t source = p.token_of[row];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  if (!p.x_quantized) {
    for (int64_t c = thread; c < p.n; c += threads) copy_value(p.y, row * p.n + c, p.x, source * p.n + c);
    return;
  }
  for (int64_t c = thread; c < p.y_quantized.stride; c += threads) {
    p.y_quantized.codes[row * p.y_quantized.stride + c] =
        c < p.n ? p.x_quantized.codes[source * p.x_quantized.stride + c] : fp8_e4m3{};
  }
  copy_scales(p, row, source, thread, threads);
}

}  // namespace

namespace reference {
void permute_rows(const PermuteRowsParams& p, const Launch& launch) {
  launch_kernel<plain_permute_kernel>(launch, static_cast<unsigned>(p.num_rows), 128, 0, p);
}
void spread_rows(const SpreadRowsParams& p, const Launch& launch) {
  launch_kernel<plain_spread_kernel>(launch, static_cast<unsigned>(p.m), 128, 0, p);
}
}  // namespace reference

void permute_rows(const PermuteRowsParams& p, const Launch& launch) {
  HADAL_CHECK((p.x != nullptr && p.y != nullptr) || (p.x_quantized && p.y_quantized),
              "permute_rows supports rows of 16 bits or FP8 rows");
  if (p.x_quantized) {
    HADAL_CHECK_LE(p.n, p.x_quantized.stride);
    HADAL_CHECK(p.y_quantized.format == p.x_quantized.format, "the formats {} and {} of the rows differ",
                static_cast<int>(p.x_quantized.format), static_cast<int>(p.y_quantized.format));
    HADAL_CHECK(p.y_quantized.stride == p.x_quantized.stride && p.y_quantized.scale_stride >= p.num_rows,
                "strides {} and {}, scales {}", p.x_quantized.stride, p.y_quantized.stride,
                p.y_quantized.scale_stride);
  }
  const bool wide = p.x_quantized ? p.x_quantized.stride % kQuantGroup == 0 &&
                                        on_16_bytes(p.x_quantized.codes) && on_16_bytes(p.y_quantized.codes)
                                  : p.n % 8 == 0 && on_16_bytes(p.x) && on_16_bytes(p.y);
  if (launch.reference || !wide) return reference::permute_rows(p, launch);
  launch_kernel<permute_rows_kernel>(launch, static_cast<unsigned>((p.num_rows + kRows - 1) / kRows),
                                     32 * kRows, 0, p);
}

void spread_rows(const SpreadRowsParams& p, const Launch& launch) {
  HADAL_CHECK(p.top_k >= 1 && p.top_k <= p.num_slots, "top_k is {}; must be 1 to {}", p.top_k, p.num_slots);
  if (launch.reference || p.n % 8 != 0 || !on_16_bytes(p.x) || !on_16_bytes(p.y))
    return reference::spread_rows(p, launch);
  launch_kernel<spread_rows_kernel>(launch, static_cast<unsigned>((p.m + kRows - 1) / kRows), 32 * kRows, 0,
                                    p);
}

}  // namespace hadal::cuda
