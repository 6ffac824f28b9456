// Implements the plain kernel of MLA decode, with one block of 128 threads per query row and no plan, for any
// shape and any architecture from sm_80. It processes keys in chunks of 128: each thread computes one score
// from the record in the cache, the block computes a softmax over the chunk, and then each thread computes
// four columns of the output. All arithmetic is in float32 or, for tests of large shapes, in double.
#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode/decode.h"
#include "kernels/params/draft_tree.h"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = 128;
constexpr int kColumns = kKvLatentDim / kThreads;

template <KvFormat kFormat, typename Real>
__device__ Real record_value(const std::byte* record, int d) {
  if constexpr (kFormat == KvFormat::kBF16) {
    return to_f32(reinterpret_cast<const bf16*>(record)[d]);
  } else if constexpr (kFormat == KvFormat::kF16) {
    return __half2float(reinterpret_cast<const __half*>(record)[d]);
  } else if constexpr (kFormat == KvFormat::kFp8E5M2) {
    return to_f32(reinterpret_cast<const fp8_e5m2*>(record)[d]);
  } else {
    if (d >= kKvLatentDim)
      return to_f32(reinterpret_cast<const bf16*>(record + kKvFp8RopeOffset)[d - kKvLatentDim]);
    const auto* scales = reinterpret_cast<const float*>(record + kKvFp8ScaleOffset);
    return Real{to_f32(reinterpret_cast<const fp8_e4m3*>(record)[d])} * scales[d / kKvScaleGroup];
  }
}

// Loads a query value; queries and outputs are float16 with a float16 cache, otherwise bf16.
template <KvFormat kFormat>
__device__ float load_query(const void* q, int64_t at) {
  if constexpr (kFormat == KvFormat::kF16) return __half2float(static_cast<const __half*>(q)[at]);
  return to_f32(static_cast<const bf16*>(q)[at]);
}
template <KvFormat kFormat>
__device__ void store_output(void* out, int64_t at, float value) {
  if constexpr (kFormat == KvFormat::kF16) {
    static_cast<__half*>(out)[at] = __float2half_rn(value);
  } else {
    static_cast<bf16*>(out)[at] = to_bf16_rn(value);
  }
}
template <KvFormat kFormat>
__device__ void store_output(void* out, int64_t at, double value) {
  static_cast<double*>(out)[at] = value;
}

template <typename Real, typename Join>
__device__ Real block_reduce(Real value, Real* scratch, Join join) {
  for (int distance = 16; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffU, value, distance));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return join(join(scratch[0], scratch[1]), join(scratch[2], scratch[3]));
}

// Computes one query row. If Real is double, the outputs are double as well.
template <KvFormat kFormat, typename Real>
__global__ void __launch_bounds__(kThreads) mla_decode_kernel(DeviceDecodeParams p, void* out, Real* lse) {
  __shared__ Real q[kKvRowDim];
  __shared__ Real probabilities[kThreads];
  __shared__ const std::byte* records[kThreads];  // null: the query does not see the record
  __shared__ Real scratch[kThreads / 32];
  pdl_wait();
  const int t = static_cast<int>(threadIdx.x);
  const int rows = p.shape.q_len * p.shape.num_heads;
  const int64_t row = blockIdx.x;
  const auto seq = row / rows;
  const int query = static_cast<int>(row % rows) / p.shape.num_heads;
  const int kv_len = p.kv_len[seq];
  const bool masked = p.newest_seen != nullptr;
  const uint64_t newest = masked ? p.newest_seen[seq * p.shape.q_len + query] : 0;
  const int visible = max(0, p.causal && !masked ? kv_len - p.shape.q_len + 1 + query : kv_len);
  const bool selected = p.shape.index_topk > 0 && selects_keys(kv_len, p.shape.index_topk);
  const int32_t* slots = p.selection.slots + seq * p.shape.index_topk;
  const int num_keys = selected ? p.selection.counts[seq] : visible;
  const int32_t* table =
      p.kv.page_table + (kv_len > 0 && !selected ? p.seq_idx[seq] * p.kv.page_table_stride : 0);
  const int64_t record_stride = p.kv.record_stride > 0 ? p.kv.record_stride : p.kv.layout.row_bytes();
  const int64_t page_stride = p.kv.page_stride > 0 ? p.kv.page_stride : kPageSize * record_stride;

  for (int d = t; d < kKvRowDim; d += kThreads) q[d] = load_query<kFormat>(p.q, row * kKvRowDim + d);
  __syncthreads();
  Real maximum = -INFINITY;
  Real sum = 0;
  Real values[kColumns] = {};
  for (int begin = 0; begin < num_keys; begin += kThreads) {
    const int count = min(kThreads, num_keys - begin);
    Real score = -INFINITY;
    records[t] = nullptr;
    const int key = begin + t;
    const int bit = key - kv_len + kMaxDraftNodes;  // of the mask; below 0: the record is older
    if (t < count && (!masked || bit < 0 || (newest >> bit & 1) != 0)) {
      const int page = selected ? slots[key] / kPageSize : table[key / kPageSize];
      const int offset = (selected ? slots[key] : key) % kPageSize;
      const std::byte* record = p.kv.pool + page * page_stride + offset * record_stride;
      records[t] = record;
      score = 0;
      for (int d = 0; d < kKvRowDim; ++d) score += q[d] * record_value<kFormat, Real>(record, d);
      score *= p.softmax_scale;
    }
    const Real new_maximum =
        max(maximum, block_reduce(score, scratch, [](Real a, Real b) { return max(a, b); }));
    const Real base = new_maximum == -INFINITY ? Real{0} : new_maximum;  // the query sees none of the records
    const Real rescale = exp(maximum - base);
    const Real probability = exp(score - base);
    probabilities[t] = probability;
    sum = sum * rescale + block_reduce(probability, scratch, [](Real a, Real b) { return a + b; });
    for (Real& value : values) value *= rescale;
    for (int k = 0; k < count; ++k) {
      if (records[k] == nullptr) continue;
      for (int c = 0; c < kColumns; ++c) {
        values[c] += probabilities[k] * record_value<kFormat, Real>(records[k], t + c * kThreads);
      }
    }
    maximum = new_maximum;
    __syncthreads();
  }
  for (int c = 0; c < kColumns; ++c) {
    store_output<kFormat>(out, row * kKvLatentDim + t + c * kThreads, sum == 0 ? Real{0} : values[c] / sum);
  }
  if (lse != nullptr && t == 0) lse[row] = sum == 0 ? Real{-INFINITY} : maximum + log(sum);
}

template <typename Real>
void launch_decode(const DeviceDecodeParams& p, void* out, Real* lse, const Launch& launch) {
  const dim3 grid(static_cast<unsigned>(p.shape.num_seqs * p.shape.q_len * p.shape.num_heads));
  const auto run = [&]<KvFormat kFormat>() {
    launch_kernel<mla_decode_kernel<kFormat, Real>>(launch, grid, dim3(kThreads), 0, p, out, lse);
  };
  switch (p.kv.layout.format) {
    case KvFormat::kBF16:
      return run.template operator()<KvFormat::kBF16>();
    case KvFormat::kF16:
      return run.template operator()<KvFormat::kF16>();
    case KvFormat::kFp8E4M3:
      return run.template operator()<KvFormat::kFp8E4M3>();
    case KvFormat::kFp8E5M2:
      return run.template operator()<KvFormat::kFp8E5M2>();
    default:
      HADAL_CHECK(false, "KV format is {}; the device supports bf16, f16, fp8_e4m3 and fp8_e5m2",
                  static_cast<int>(p.kv.layout.format));
  }
}

}  // namespace

void mla_decode(const DeviceDecodeParams& p, const Launch& launch) {
  launch_decode<float>(p, p.out, p.lse, launch);
}

void mla_decode_double(const DeviceDecodeParams& p, double* out, double* lse, const Launch& launch) {
  launch_decode<double>(p, out, lse, launch);
}

}  // namespace hadal::cuda::reference
