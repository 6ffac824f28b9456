// Computes the absorbed products of MLA for few tokens, one small matrix per head: absorb_query [512 × 128]
// and expand_value [128 × 512].
//
// The instruction is mma.sync m16n8k16 in bf16 or float16, with 16 tokens × 8 outputs. The assignment of k to
// the instruction's slots is free as long as both operands agree, so each lane loads its share of 64
// consecutive k in whole 16-byte pieces directly from global memory into the fragments, without shared memory
// or shuffles. FP8 codes are exact in bf16; a block's scale multiplies its float32 sum. The order of a warp's
// 16 outputs is free too, and is chosen so that a lane has four neighbouring outputs.
//
// absorb_query. Grid: x is the head and its tile of 64 outputs (8 per head), y the run of tokens. A block has
// 4 warps with 16 outputs each. A warp's weights (all 128 of k) are loaded before pdl_wait and kept in
// registers for all tokens of the run. For RoPE each of a head's blocks rotates four pairs, with one thread
// per token; with settled positions the cosines and sines are loaded before pdl_wait.
//
// expand_value. Grid: x is the head, y the tile of 16 tokens. A block has 8 warps with 16 outputs each, so it
// computes a token's whole quantisation group. The loads of all weights are issued before pdl_wait. The rows
// of o, which all warps read, are loaded into shared memory, with all loads in flight at once. FP8 codes are
// widened while o is being loaded, or before pdl_wait if there are few blocks, whose weights arrive long
// before pdl_wait returns (kEarly). Barrier `arrived` has one phase: each of the 256 threads makes a cp.async
// arrival, and all threads wait for the phase.
#include <algorithm>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/cp_async.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/common/rope.cuh"
#include "kernels/cuda/gemm/absorbed/choice.h"
#include "kernels/cuda/gemm/absorbed/tiled.cuh"
#include "kernels/cuda/gemm/plain_dot.cuh"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {
namespace {

constexpr int kFewHeads = 64;  // heads of expand_value whose blocks fit beside those of the previous kernel

// Returns the offset, in 64 consecutive k, of half `half` of the share of lanes with lane % 4 = t. With
// 16-bit weights such a lane loads 8 k at 8·t and 8 k at 32 + 8·t, with FP8 weights 16 k at 16·t.
template <WeightType kType>
__device__ __forceinline__ int share(int t, int half) {
  return kType == WeightType::kFp8Block ? 16 * t + 8 * half : 32 * half + 8 * t;
}

// Holds one lane's weights of one row, 128 of k.
template <WeightType kType>
struct WeightRun {
  static constexpr int kLoads = kType == WeightType::kFp8Block ? 2 : 4;
  uint4 v[kLoads];

  __device__ __forceinline__ void load(const void* row, int64_t k, int t) {
    if constexpr (kType == WeightType::kFp8Block) {
      const uint8_t* p = static_cast<const uint8_t*>(row) + k + 16 * t;
#pragma unroll
      for (int i = 0; i < 2; ++i) v[i] = load_stream(p + 64 * i);
    } else {
      const uint16_t* p = static_cast<const uint16_t*>(row) + k + 8 * t;
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = load_stream(p + 32 * i);
    }
  }
  // Returns the operand of step s (0 … 7) of 16 k.
  __device__ __forceinline__ void fragment(int s, uint32_t& b0, uint32_t& b1) const {
    if constexpr (kType == WeightType::kFp8Block) {
      const uint32_t codes = word(v[s / 4], s % 4);
      b0 = absorbed::widen_codes(codes);
      b1 = absorbed::widen_codes(codes >> 16);
    } else {
      b0 = word(v[s / 2], s % 2 * 2);
      b1 = word(v[s / 2], s % 2 * 2 + 1);
    }
  }
};

// Holds FP8 weights of one row, 128 of k, as operands in bf16.
struct WidenedRun {
  uint32_t operands[8][2];

  __device__ __forceinline__ void widen(const WeightRun<WeightType::kFp8Block>& codes) {
#pragma unroll
    for (int s = 0; s < 8; ++s) codes.fragment(s, operands[s][0], operands[s][1]);
  }
  __device__ __forceinline__ void fragment(int s, uint32_t& b0, uint32_t& b1) const {
    b0 = operands[s][0];
    b1 = operands[s][1];
  }
  __device__ __forceinline__ uint32_t all() const {
    uint32_t bits = 0;
#pragma unroll
    for (int s = 0; s < 8; ++s) bits ^= operands[s][0] ^ operands[s][1];
    return bits;
  }
};

// Holds one lane's activations of token rows g and g + 8, 128 of k.
template <WeightType kType>
struct TokenRun {
  uint4 low[4], high[4];

  __device__ __forceinline__ void load(const Row16<kType>* row_low, const Row16<kType>* row_high, int64_t k,
                                       int t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t at = k + i / 2 * 64 + share<kType>(t, i % 2);
      low[i] = *reinterpret_cast<const uint4*>(row_low + at);
      high[i] = *reinterpret_cast<const uint4*>(row_high + at);
    }
  }
  __device__ __forceinline__ void multiply(float (&d)[4], int s, uint32_t b0, uint32_t b1) const {
    const int pair = s % 2 * 2;
    mma_16_bit<Row16<kType>>(d, word(low[s / 2], pair), word(high[s / 2], pair), word(low[s / 2], pair + 1),
                             word(high[s / 2], pair + 1), b0, b1);
  }
};

// Returns which of a warp's outputs (0 … 15) is column g of the warp's tile j. In this order, lanes with lane
// % 4 = t have the outputs 4·t … 4·t + 3 over both tiles.
__device__ __forceinline__ int output_of(int g, int j) {
  return g / 2 * 4 + 2 * j + g % 2;
}

// Holds the cosines and sines of the four pairs that a block of absorb_query rotates.
struct Angles {
  float4 cosines, sines;
};
__device__ __forceinline__ Angles load_angles(const AbsorbQueryParams& p, int64_t row) {
  const float* table = p.cos_sin + int64_t{p.positions[max(row, int64_t{0})]} * 64 + blockIdx.x % 8 * 4;
  return {*reinterpret_cast<const float4*>(table), *reinterpret_cast<const float4*>(table + 32)};
}

template <WeightType kType>
__global__ void __launch_bounds__(128) absorb_kernel(AbsorbQueryParams p, int tokens_a_block) {
  using T = Row16<kType>;
  const T* const all_q = static_cast<const T*>(p.q);
  T* const all_y = static_cast<T*>(p.y);
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int head = blockIdx.x / 8;
  const int out0 = blockIdx.x % 8 * 64 + threadIdx.x / 32 * 16;
  constexpr int kSize = kType == WeightType::kFp8Block ? 1 : 2;
  WeightRun<kType> weights[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t row = head * 512 + out0 + output_of(g, j);
    weights[j].load(static_cast<const char*>(p.w_uk.data) + row * p.w_uk.row_stride * kSize, 0, t);
  }
  float scale = 1.0F;
  if constexpr (kType == WeightType::kFp8Block)
    scale = p.w_uk.scales[(head * 4 + out0 / 128) * p.w_uk.scale_stride];
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * tokens_a_block;
  const int64_t end = min(begin + tokens_a_block, p.m);
  const auto source = [&](int64_t m) { return p.rows != nullptr ? int64_t{p.rows[m]} : m; };
  Angles angles;
  const bool early = p.positions != nullptr && p.settled && begin + threadIdx.x < end;
  if (early) angles = load_angles(p, source(begin + threadIdx.x));
  pdl_launch_dependents();
  pdl_wait();

  const auto load_tokens = [&](TokenRun<kType>& tokens, int64_t m0) {
    const auto row_of = [&](int64_t m) {
      return all_q + max(source(min(m, p.m - 1)), int64_t{0}) * p.q_row_stride + head * p.q_head_stride;
    };
    tokens.load(row_of(m0 + g), row_of(m0 + g + 8), 0, t);
  };
  const auto multiply = [&](const TokenRun<kType>& tokens, int64_t m0) {
    float acc[2][4] = {};
#pragma unroll
    for (int s = 0; s < 8; ++s) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t b0;
        uint32_t b1;
        weights[j].fragment(s, b0, b1);
        tokens.multiply(acc[j], s, b0, b1);
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t m = m0 + g + 8 * h;
      if (m >= end) continue;
      T* y = all_y + (m * p.num_heads + head) * 576 + out0 + 4 * t;
      uint2 packed = {pack_two<T>(acc[0][2 * h] * scale, acc[0][2 * h + 1] * scale),
                      pack_two<T>(acc[1][2 * h] * scale, acc[1][2 * h + 1] * scale)};
      if (p.rows != nullptr && p.rows[m] < 0) packed = {0, 0};
      *reinterpret_cast<uint2*>(y) = packed;
    }
  };
  // The next sixteen tokens are loaded while these are multiplied.
  TokenRun<kType> even;
  TokenRun<kType> odd;
  load_tokens(even, begin);
  if (p.positions != nullptr) {
    for (int64_t m = begin + threadIdx.x; m < end; m += blockDim.x) {
      const int64_t row = source(m);
      if (!early || m >= begin + blockDim.x) angles = load_angles(p, row);
      const T* q = all_q + max(row, int64_t{0}) * p.q_row_stride + head * p.q_head_stride + 128;
      const uint4 turned =
          rotate8<T>(*reinterpret_cast<const uint4*>(q + blockIdx.x % 8 * 8), angles.cosines, angles.sines);
      *reinterpret_cast<uint4*>(all_y + (m * p.num_heads + head) * 576 + 512 + blockIdx.x % 8 * 8) =
          row < 0 ? uint4{0, 0, 0, 0} : turned;
    }
  }
  for (int64_t m0 = begin; m0 < end; m0 += 32) {
    if (m0 + 16 < end) load_tokens(odd, m0 + 16);
    multiply(even, m0);
    if (m0 + 16 >= end) break;
    if (m0 + 32 < end) load_tokens(even, m0 + 32);
    multiply(odd, m0 + 16);
  }
}

template <WeightType kType, bool kEarly>
__global__ void __launch_bounds__(256) expand_kernel(ExpandValueParams p) {
  using T = Row16<kType>;
  constexpr bool kFp8 = kType == WeightType::kFp8Block;
  constexpr int kTokens = 16;
  constexpr int kPitch =
      1024 + (kFp8 ? 16 : 64);  // bytes per row of o: the lanes' pieces lie in different banks
  __shared__ alignas(16) uint8_t staged[kTokens * kPitch];
  __shared__ float warp_max[kTokens][8];
  __shared__ Mbarrier arrived;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int head = blockIdx.x;
  const int64_t m0 = static_cast<int64_t>(blockIdx.y) * kTokens;
  WeightRun<kType> weights[4][2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int64_t row = head * 256 + 128 + warp * 16 + output_of(g, j);
    const char* from = static_cast<const char*>(p.kv_b.data) + row * p.kv_b.row_stride * (kFp8 ? 1 : 2);
#pragma unroll
    for (int block = 0; block < 4; ++block) weights[block][j].load(from, block * 128, t);
  }
  float scales[4] = {};
  if constexpr (kFp8) {
#pragma unroll
    for (int block = 0; block < 4; ++block)
      scales[block] = p.kv_b.scales[(head * 2 + 1) * p.kv_b.scale_stride + block];
  }
  if (threadIdx.x == 0) {
    mbarrier_init(&arrived, 256);
    mbarrier_init_fence();
  }
  __syncthreads();  // the barrier is initialised
  pdl_launch_dependents();
  WidenedRun widened[kFp8 ? 4 : 1][2];
  const auto widen = [&] {
    if constexpr (kFp8) {
#pragma unroll
      for (int i = 0; i < 8; ++i) widened[i / 2][i % 2].widen(weights[i / 2][i % 2]);
    }
  };
  if constexpr (kEarly) {
    widen();
    // All widened codes are used here, before pdl_wait, because otherwise the compiler widens them after
    // pdl_wait.
    __shared__ uint32_t used[256];
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) bits ^= widened[i / 2][i % 2].all();
    *const_cast<volatile uint32_t*>(&used[threadIdx.x]) = bits;
  }
  pdl_wait();
  const int tokens = static_cast<int>(min(p.m - m0, int64_t{kTokens}));
  for (int i = threadIdx.x; i < tokens * 64; i += 256) {
    copy_async_16(shared_address(staged) + i / 64 * kPitch + i % 64 * 16,
                  static_cast<const T*>(p.o) + ((m0 + i / 64) * p.num_heads + head) * 512 + i % 64 * 8);
  }
  copy_async_arrive(&arrived);
  if constexpr (!kEarly) widen();
  mbarrier_wait(&arrived, 0);

  // Rows that do not exist repeat the last row.
  const auto row_of = [&](int row) {
    return reinterpret_cast<const T*>(staged + min(row, tokens - 1) * kPitch);
  };
  float acc[2][4] = {};
#pragma unroll
  for (int block = 0; block < 4; ++block) {
    TokenRun<kType> rows;
    rows.load(row_of(g), row_of(g + 8), block * 128, t);
    float part[2][4] = {};
#pragma unroll
    for (int s = 0; s < 8; ++s) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t b0;
        uint32_t b1;
        if constexpr (kFp8) {
          widened[block][j].fragment(s, b0, b1);
        } else {
          weights[block][j].fragment(s, b0, b1);
        }
        rows.multiply(kFp8 ? part[j] : acc[j], s, b0, b1);
      }
    }
    if constexpr (kFp8) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        acc[i / 4][i % 4] = fmaf(part[i / 4][i % 4], scales[block], acc[i / 4][i % 4]);
    }
  }

  const int out = head * 128 + warp * 16 + 4 * t;
  // Returns the row of y in which o's row m is stored; if the result is below 0, the row is not stored.
  const auto target = [&](int64_t m) { return m >= p.m ? -1 : p.rows != nullptr ? int64_t{p.rows[m]} : m; };
  if (p.y != nullptr) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int64_t m = target(m0 + g + 8 * h);
      if (m < 0) continue;
      T* y = static_cast<T*>(p.y) + m * p.y_stride + out;
      *reinterpret_cast<uint2*>(y) = {pack_two<T>(acc[0][2 * h], acc[0][2 * h + 1]),
                                      pack_two<T>(acc[1][2 * h], acc[1][2 * h + 1])};
    }
    return;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float amax = fmaxf(fmaxf(fabsf(acc[0][2 * h]), fabsf(acc[0][2 * h + 1])),
                       fmaxf(fabsf(acc[1][2 * h]), fabsf(acc[1][2 * h + 1])));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, 1));
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, 2));
    if (t == 0) warp_max[g + 8 * h][warp] = amax;
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t m = target(m0 + g + 8 * h);
    if (m < 0) continue;
    float amax = 0.0F;
#pragma unroll
    for (int other = 0; other < 8; ++other) amax = fmaxf(amax, warp_max[g + 8 * h][other]);
    const float scale = quant_scale(amax, p.y_quantized.power_of_two);
    const float inverse = absorbed::inverse_scale(scale);
    const auto pair = [&](const float(&v)[4]) {
      return static_cast<uint32_t>(absorbed::quotients_to_e4m3(v[2 * h], v[2 * h + 1], scale, inverse));
    };
    const uint32_t codes = pair(acc[0]) | pair(acc[1]) << 16;
    *reinterpret_cast<uint32_t*>(p.y_quantized.codes + m * p.y_quantized.stride + out) = codes;
    if (warp == 0 && t == 0) p.y_quantized.scales[head * p.y_quantized.scale_stride + m] = scale;
  }
}

template <WeightType kType>
void run_absorb(const AbsorbQueryParams& p, const Launch& launch) {
  // This gives about eight blocks per multiprocessor. The more tokens a block computes, the less often
  // weights are read from the L2.
  const int64_t most = std::max<int64_t>(1, int64_t{launch.num_sms} * 8 / (p.num_heads * 8));
  const int64_t runs = std::clamp<int64_t>(most, 1, (p.m + 15) / 16);
  const int64_t tokens = round_up((p.m + runs - 1) / runs, 16);
  const dim3 grid(p.num_heads * 8, static_cast<unsigned>((p.m + tokens - 1) / tokens));
  launch_kernel<absorb_kernel<kType>>(launch, grid, dim3(128), 0, p, static_cast<int>(tokens));
}

template <WeightType kType>
void run_expand(const ExpandValueParams& p, const Launch& launch) {
  const dim3 grid(p.num_heads, static_cast<unsigned>((p.m + 15) / 16));
  if constexpr (kType == WeightType::kFp8Block) {
    if (p.num_heads <= kFewHeads)
      return launch_kernel<expand_kernel<kType, true>>(launch, grid, dim3(256), 0, p);
  }
  launch_kernel<expand_kernel<kType, false>>(launch, grid, dim3(256), 0, p);
}

void check_type(const MatrixWeight& w) {
  HADAL_CHECK(w.type != WeightType::kInt8Block && !is_channel_scaled(w.type),
              "absorbed products support float32, 16-bit and FP8 block weights");
}

bool weights_aligned(const MatrixWeight& w) {
  return (is_16_bit(w.type) || w.type == WeightType::kFp8Block) && on_16_bytes(w.data) &&
         w.row_stride * (w.type == WeightType::kFp8Block ? 1 : 2) % 16 == 0;
}

}  // namespace

bool supports_absorb_query(const AbsorbQueryParams& p) {
  return p.m <= 65535 && on_16_bytes(p.q) && on_16_bytes(p.y) && p.q_row_stride % 8 == 0 &&
         p.q_head_stride % 8 == 0 && weights_aligned(p.w_uk) &&
         (p.positions == nullptr || on_16_bytes(p.cos_sin));
}

bool supports_expand_value(const ExpandValueParams& p) {
  const bool output = p.y != nullptr ? on_16_bytes(p.y) && p.y_stride % 4 == 0
                                     : on_16_bytes(p.y_quantized.codes) && p.y_quantized.stride % 4 == 0;
  return p.m <= 65535 * 16 && output && on_16_bytes(p.o) && weights_aligned(p.kv_b);
}

bool supports_expand_value_tiled(const ExpandValueParams& p) {
  return supports_expand_value(p) && (p.y != nullptr ? p.y_stride % 8 == 0 : p.y_quantized.stride % 16 == 0);
}

void absorb_query_few(const AbsorbQueryParams& p, const Launch& launch) {
  HADAL_CHECK(supports_absorb_query(p), "absorb_query does not support m {}, strides {} and {}", p.m,
              p.q_row_stride, p.q_head_stride);
  if (p.w_uk.type == WeightType::kBF16) return run_absorb<WeightType::kBF16>(p, launch);
  if (p.w_uk.type == WeightType::kF16) return run_absorb<WeightType::kF16>(p, launch);
  run_absorb<WeightType::kFp8Block>(p, launch);
}

void expand_value_few(const ExpandValueParams& p, const Launch& launch) {
  HADAL_CHECK(supports_expand_value(p), "expand_value does not support m {}, y's stride {}", p.m, p.y_stride);
  if (p.kv_b.type == WeightType::kBF16) return run_expand<WeightType::kBF16>(p, launch);
  if (p.kv_b.type == WeightType::kF16) return run_expand<WeightType::kF16>(p, launch);
  run_expand<WeightType::kFp8Block>(p, launch);
}

void absorb_query(const AbsorbQueryParams& p, const Launch& launch) {
  if (p.m <= 0) return;
  check_type(p.w_uk);
  if (launch.reference || !supports_absorb_query(p)) return reference::absorb_query(p, launch);
  if (choose_absorb_query(p.w_uk.type, p.m, p.num_heads) == AbsorbedKernel::kTiled)
    return absorb_query_tiled(p, launch);
  absorb_query_few(p, launch);
}

void expand_value(const ExpandValueParams& p, const Launch& launch) {
  if (p.m <= 0) return;
  check_type(p.kv_b);
  if (launch.reference || !supports_expand_value(p)) return reference::expand_value(p, launch);
  if (choose_expand_value(p.kv_b.type, p.m, p.num_heads) == AbsorbedKernel::kTiled &&
      supports_expand_value_tiled(p))
    return expand_value_tiled(p, launch);
  expand_value_few(p, launch);
}

}  // namespace hadal::cuda
