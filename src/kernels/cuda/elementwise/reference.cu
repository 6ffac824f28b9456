// Implements the plain kernels (reference.h). Grid: one thread per value if values are independent, otherwise
// one block of 128 threads per row, with a serial sum in thread order. The kernels use no vector accesses and
// assume no alignment.
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/reference.h"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = 128;
static_assert(kThreads == kQuantGroup);  // each thread handles one value of a group

// Returns element `idx` of a part. It loads the whole 32-bit word that holds the element.
__device__ float exchanged_value(const void* part, int64_t idx, bool is_f16) {
  const uint32_t word = load_part(static_cast<const uint32_t*>(part) + idx / 2);
  const auto bits = static_cast<uint16_t>(idx % 2 == 0 ? word : word >> 16);
  return load_16_bit(&bits, 0, is_f16);
}

__device__ float added(const NormInput& input, int64_t row, int64_t n, int64_t column, bool is_f16) {
  if (input.dense != nullptr) return load_16_bit(input.dense, row * input.x_stride + column, is_f16);
  float sum = 0.0F;
  for (int r = 0; r < input.exchanged.num_ranks; ++r)
    sum += exchanged_value(input.exchanged.parts[r], row * n + column, is_f16);
  for (int j = 0; input.expert_rows != nullptr && j < input.top_k; ++j) {
    const int64_t source = input.row_of[row * input.top_k + j];
    if (source < 0) continue;
    sum = fmaf(input.weights[row * input.top_k + j],
               load_16_bit(input.expert_rows, source * n + column, is_f16), sum);
  }
  return sum;
}

// Returns the block's sum or maximum of one value per thread, to all threads.
__device__ float block_sum(float value) {
  __shared__ float values[kThreads];
  __syncthreads();
  values[threadIdx.x] = value;
  __syncthreads();
  float sum = 0.0F;
  for (float v : values) sum += v;
  return sum;
}
__device__ float block_max(float value) {
  __shared__ float values[kThreads];
  __syncthreads();
  values[threadIdx.x] = value;
  __syncthreads();
  float most = 0.0F;
  for (float v : values) most = fmaxf(most, v);
  return most;
}

// Returns the code of v / scale.
__device__ fp8_e4m3 code_of(const QuantizedRows& y, float v, float scale) {
  const float quotient = __fdiv_rn(v, scale);
  if (!is_int8(y.format)) return to_e4m3(quotient);
  return {static_cast<uint8_t>(max(-128, min(127, __float2int_rn(quotient))))};
}

// Quantises value(column) of a row for columns below n, one group at a time.
template <typename Value>
__device__ void quantize_row(const QuantizedRows& y, int64_t row, int64_t n, Value value) {
  const bool per_token = is_per_token(y.format);
  float amax = 0.0F;
  if (per_token) {
    for (int64_t c = threadIdx.x; c < n; c += kThreads) amax = fmaxf(amax, fabsf(value(c)));
    amax = block_max(amax);
    if (threadIdx.x == 0) y.scales[row] = scale_of(y, amax);
  }
  for (int64_t group = 0; group < y.stride / kQuantGroup; ++group) {
    const int64_t column = group * kQuantGroup + threadIdx.x;
    const float v = column < n ? value(column) : 0.0F;
    if (!per_token) amax = block_max(fabsf(v));
    const float scale = scale_of(y, amax);
    y.codes[row * y.stride + column] = code_of(y, v, scale);
    if (!per_token && threadIdx.x == 0) y.scales[group * y.scale_stride + row] = scale;
  }
}

__global__ void embedding_kernel(const EmbeddingParams p) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  const int64_t id = p.ids[row];
  for (int64_t c = threadIdx.x; c < p.hidden; c += kThreads) {
    p.y[row * p.hidden + c] = id >= 0 && id < p.vocab ? load_16_bit(p.table, id * p.hidden + c, p.f16) : 0.0F;
  }
}

__global__ void add_rms_norm_kernel(const AddRmsNormParams p) {
  pdl_wait();
  const int64_t out_row = blockIdx.x;
  const int64_t row = p.rows != nullptr ? p.rows[out_row] : out_row;
  const bool adds =
      p.input.dense != nullptr || p.input.expert_rows != nullptr || p.input.exchanged.num_ranks > 0;
  float sum = 0.0F;
  for (int64_t c = threadIdx.x; c < p.n; c += kThreads) {
    float x = 0.0F;
    if (row >= 0) x = p.residual[row * p.n + c] + (adds ? added(p.input, row, p.n, c, p.f16) : 0.0F);
    if (adds && p.rows == nullptr) p.residual[row * p.n + c] = x;
    if (p.residual_out != nullptr) p.residual_out[out_row * p.n + c] = x;
    sum = fmaf(x, x, sum);
  }
  const float factor = norm_factor(block_sum(sum), p.n, p.eps);
  const auto normed = [&](int64_t c) {
    if (row < 0) return 0.0F;
    // x is the sum that this thread wrote above or, where nothing was written, the same sum again.
    const bool in_place = adds && p.rows == nullptr;
    const float x =
        p.residual[row * p.n + c] + (adds && !in_place ? added(p.input, row, p.n, c, p.f16) : 0.0F);
    return x * factor * p.weight[c];
  };
  for (int64_t c = threadIdx.x; p.y != nullptr && c < p.n; c += kThreads) {
    store_16_bit(p.y, out_row * p.n + c, normed(c), p.f16);
  }
  if (p.y_quantized) quantize_row(p.y_quantized, out_row, p.n, normed);
}

__global__ void add_residual_kernel(const NormInput input, float* residual, int64_t n, bool is_f16) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < n; c += kThreads)
    residual[row * n + c] += added(input, row, n, c, is_f16);
}

__global__ void combine_rows_kernel(const CombineRowsParams p) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < p.n; c += kThreads) {
    const float shared = p.added != nullptr ? load_16_bit(p.added, row * p.n + c, p.f16) : 0.0F;
    store_16_bit(p.y, row * p.n + c, added(p.experts, row, p.n, c, p.f16) + shared, p.f16);
  }
}

__global__ void quantize_rows_kernel(const QuantizeParams p) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  quantize_row(p.y, row, p.n, [&](int64_t c) { return load_16_bit(p.x, row * p.x_stride + c, false); });
}

__global__ void silu_mul_kernel(const SiluMulParams p) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  if (p.num_used != nullptr && row >= *p.num_used) return;
  const auto value = [&](int64_t c) {
    const float gate = load_16_bit(p.x, row * 2 * p.n + c, p.f16);
    return gate / (1.0F + expf(-gate)) * load_16_bit(p.x, row * 2 * p.n + p.n + c, p.f16);
  };
  for (int64_t c = threadIdx.x; p.y != nullptr && c < p.n; c += kThreads)
    store_16_bit(p.y, row * p.n + c, value(c), p.f16);
  if (p.y_quantized) quantize_row(p.y_quantized, row, p.n, value);
}

__device__ void write_record(const MlaPrologueParams& p, int64_t row) {
  const bool is_f16 = p.layout.format == KvFormat::kF16;
  const auto x = [&](int64_t c) { return load_16_bit(p.x, row * p.x_stride + p.kv_begin + c, is_f16); };
  float sum = 0.0F;
  for (int c = threadIdx.x; c < kKvLatentDim; c += kThreads) sum = fmaf(x(c), x(c), sum);
  const float factor = norm_factor(block_sum(sum), kKvLatentDim, p.eps);
  const auto latent = [&](int c) { return x(c) * factor * p.kv_norm[c]; };
  float token_amax = 0.0F;
  for (int c = threadIdx.x; c < kKvLatentDim; c += kThreads) token_amax = fmaxf(token_amax, fabsf(latent(c)));
  token_amax = block_max(token_amax);

  const int64_t slot = p.slots[row];
  if (slot < 0) return;  // the whole block returns
  std::byte* record = p.pool + slot * p.layout.row_bytes();
  for (int group = 0; group < kKvNumScales; ++group) {
    const int c = group * kKvScaleGroup + static_cast<int>(threadIdx.x);
    const float v = latent(c);
    const float group_amax = block_max(fabsf(v));
    if (is_f16 || p.layout.format == KvFormat::kBF16) {
      store_16_bit(record, c, v, is_f16);
    } else if (p.layout.format == KvFormat::kFp8E5M2) {
      reinterpret_cast<fp8_e5m2*>(record)[c] = to_e5m2(v);
    } else {
      const float scale =
          group_scale(p.layout.scales == KvScales::kPerToken ? token_amax : group_amax, false);
      reinterpret_cast<fp8_e4m3*>(record)[c] = to_e4m3(__fdiv_rn(v, scale));
      if (threadIdx.x == 0) reinterpret_cast<float*>(record + kKvFp8ScaleOffset)[group] = scale;
    }
  }
  if (threadIdx.x >= kKvRopeDim / 2) return;
  const int pair = static_cast<int>(threadIdx.x);
  const float* table = p.cos_sin + int64_t{p.positions[row]} * kKvRopeDim;
  const float2 rope =
      rotate(x(kKvLatentDim + 2 * pair), x(kKvLatentDim + 2 * pair + 1), table[pair], table[32 + pair]);
  if (p.layout.format == KvFormat::kFp8E5M2) {
    auto* out = reinterpret_cast<fp8_e5m2*>(record + kKvLatentDim) + 2 * pair;
    out[0] = to_e5m2(rope.x);
    out[1] = to_e5m2(rope.y);
    return;
  }
  const int offset = p.layout.format == KvFormat::kFp8E4M3 ? kKvFp8RopeOffset : kKvLatentDim * 2;
  store_16_bit(record + offset, 2 * pair, rope.x, is_f16);
  store_16_bit(record + offset, 2 * pair + 1, rope.y, is_f16);
}

__global__ void mla_prologue_kernel(const MlaPrologueParams p) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  if (p.q_norm != nullptr) {
    const bool is_f16 = p.layout.format == KvFormat::kF16;
    const auto x = [&](int64_t c) { return load_16_bit(p.x, row * p.x_stride + c, is_f16); };
    float sum = 0.0F;
    for (int64_t c = threadIdx.x; c < p.q_width; c += kThreads) sum = fmaf(x(c), x(c), sum);
    const float factor = norm_factor(block_sum(sum), p.q_width, p.eps);
    const auto normed = [&](int64_t c) { return x(c) * factor * p.q_norm[c]; };
    for (int64_t c = threadIdx.x; p.q != nullptr && c < p.q_width; c += kThreads) {
      store_16_bit(p.q, row * p.q_width + c, normed(c), is_f16);
    }
    if (p.q_quantized) quantize_row(p.q_quantized, row, p.q_width, normed);
  }
  write_record(p, row);
}

__global__ void q_rope_kernel(const QRopeParams p) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  const float* table = p.cos_sin + int64_t{p.positions[row]} * kKvRopeDim;
  for (int i = static_cast<int>(threadIdx.x); i < p.num_heads * 32; i += kThreads) {
    const int head = i / 32;
    const int pair = i % 32;
    const int64_t q = row * p.q_row_stride + head * p.q_head_stride + 2 * pair;
    const int64_t y = row * p.y_row_stride + head * p.y_head_stride + 2 * pair;
    const float2 turned =
        rotate(load_16_bit(p.q, q, p.f16), load_16_bit(p.q, q + 1, p.f16), table[pair], table[32 + pair]);
    store_16_bit(p.y, y, turned.x, p.f16);
    store_16_bit(p.y, y + 1, turned.y, p.f16);
  }
}

__global__ void copy_pages_kernel(const CopyPagesParams p) {
  pdl_wait();
  const PageCopyEntry entry = p.copies[blockIdx.x];
  std::byte* pool = p.pools[blockIdx.y];
  const int64_t page_bytes = p.layout.page_bytes();
  for (int64_t i = threadIdx.x; i < int64_t{entry.num_rows} * p.layout.row_bytes(); i += kThreads) {
    pool[entry.target * page_bytes + i] = pool[entry.source * page_bytes + i];
  }
  if (p.layout.index == KvIndex::kNone) return;
  const std::byte* from = p.index_pools[blockIdx.y] + entry.source * p.layout.index_page_bytes();
  std::byte* to = p.index_pools[blockIdx.y] + entry.target * p.layout.index_page_bytes();
  for (int i = static_cast<int>(threadIdx.x); i < entry.num_rows * kKvIndexDim; i += kThreads)
    to[i] = from[i];
  for (int i = static_cast<int>(threadIdx.x); i < entry.num_rows * 4; i += kThreads)
    to[kKvIndexScalesOffset + i] = from[kKvIndexScalesOffset + i];
}

}  // namespace

void embedding(const EmbeddingParams& p, const Launch& launch) {
  launch_kernel<embedding_kernel>(launch, static_cast<unsigned>(p.m), kThreads, 0, p);
}
void add_rms_norm(const AddRmsNormParams& p, const Launch& launch) {
  launch_kernel<add_rms_norm_kernel>(launch, static_cast<unsigned>(p.m), kThreads, 0, p);
}
void add_residual(const NormInput& input, float* residual, int64_t m, int64_t n, const Launch& launch,
                  bool is_f16) {
  launch_kernel<add_residual_kernel>(launch, static_cast<unsigned>(m), kThreads, 0, input, residual, n,
                                     is_f16);
}
void combine_rows(const CombineRowsParams& p, const Launch& launch) {
  launch_kernel<combine_rows_kernel>(launch, static_cast<unsigned>(p.m), kThreads, 0, p);
}
void quantize_rows(const QuantizeParams& p, const Launch& launch) {
  launch_kernel<quantize_rows_kernel>(launch, static_cast<unsigned>(p.m), kThreads, 0, p);
}
void silu_mul(const SiluMulParams& p, const Launch& launch) {
  launch_kernel<silu_mul_kernel>(launch, static_cast<unsigned>(p.m), kThreads, 0, p);
}
void mla_prologue(const MlaPrologueParams& p, const Launch& launch) {
  launch_kernel<mla_prologue_kernel>(launch, static_cast<unsigned>(p.m), kThreads, 0, p);
}
void q_rope(const QRopeParams& p, const Launch& launch) {
  launch_kernel<q_rope_kernel>(launch, static_cast<unsigned>(p.m), kThreads, 0, p);
}
void copy_pages(const CopyPagesParams& p, const Launch& launch) {
  launch_kernel<copy_pages_kernel>(launch, dim3(p.num_copies, p.num_layers), kThreads, 0, p);
}

}  // namespace hadal::cuda::reference
