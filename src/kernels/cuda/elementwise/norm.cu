// Computes fused norms: residual += input; y = RMSNorm(residual) ⊙ weight, stored as rows of 16 bits, as FP8
// rows, or both.
//
// Grid: one block per row; while there are multiprocessors to spare, a wide row goes to a cluster of 2, 4 or
// 7 blocks instead, because one multiprocessor alone needs 1.5 µs to read V3's nine experts' rows. A thread
// holds eight consecutive values of the row in registers from load to store, so the row is read once; rows
// have at most 8,192 values. There is one barrier: warps sum squares by shuffle and leave 32 partial sums in
// shared memory (128 B, which is all that is used; in a cluster each warp writes its own to every block), and
// then every warp adds those for itself. A quantisation group is sixteen lanes, so it needs no barrier. With
// one scale per row, warps leave the largest |x · weight| with their sums, and the norm's factor multiplies
// it afterwards. With few rows, latency decides. Then the norm's weights are loaded before pdl_wait (into
// registers, or into 28 KB of shared memory if registers hold experts' rows), and nine experts' rows of a
// token are in flight at once, in up to 100 registers. With many rows, bandwidth decides. Then weights are
// read after the sum, from the L1, so that 1,536 threads and more fit on a multiprocessor, with 32 registers
// at width 7,168 and 40 at 2,048. All variants give the same bits.
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/reference.h"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kMaxTopK = 32;  // a lane holds one expert's row and weight

enum class Input : uint8_t { kDense, kExperts, kParts };  // the forms of NormInput

Input form_of(const NormInput& input) {
  if (input.expert_rows != nullptr) return Input::kExperts;
  return input.exchanged.num_ranks > 0 ? Input::kParts : Input::kDense;
}

// Returns Σ_j weights[row, j] · expert_rows[row_of[row, j], column …], j ascending. It is called by all
// lanes; lanes with !inside only supply their indices. kBatch rows are loaded before the first is used.
// kSkips: pairs without a row are skipped.
template <typename T, int kBatch, bool kSkips = false>
__device__ __forceinline__ Floats8 combine8(const NormInput& input, int64_t row, int64_t n, int column,
                                            bool inside) {
  const int lane = threadIdx.x % 32;
  int expert_row = 0;
  float weight = 0.0F;
  if (lane < input.top_k) {
    expert_row = input.row_of[row * input.top_k + lane];
    weight = input.weights[row * input.top_k + lane];
  }
  Floats8 sum{};
  for (int first = 0; first < input.top_k; first += kBatch) {
    uint4 rows[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int source = __shfl_sync(kAllLanes, expert_row, first + j);
      if (inside && first + j < input.top_k && (!kSkips || source >= 0)) {
        rows[j] =
            *reinterpret_cast<const uint4*>(static_cast<const T*>(input.expert_rows) + source * n + column);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const float w = __shfl_sync(kAllLanes, weight, first + j);
      const bool skipped = kSkips && __shfl_sync(kAllLanes, expert_row, first + j) < 0;
      if (!inside || first + j >= input.top_k || skipped) continue;
      const Floats8 x = widen8<T>(rows[j]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum.v[i] = fmaf(w, x.v[i], sum.v[i]);
    }
  }
  return sum;
}

// Returns Σ_r parts[r][row, column …], r ascending. kBatch parts are loaded before the first is used.
template <typename T, int kBatch>
__device__ __forceinline__ Floats8 sum_parts8(const NormInput& input, int64_t row, int64_t n, int column,
                                              bool inside) {
  Floats8 sum{};
#pragma unroll
  for (int first = 0; first < kMaxRanks; first += kBatch) {
    uint4 rows[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch && first + j < kMaxRanks; ++j) {
      if (inside && first + j < input.exchanged.num_ranks) {
        const T* part = static_cast<const T*>(input.exchanged.parts[first + j]);
        rows[j] = load_part(reinterpret_cast<const uint4*>(part + row * n + column));
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch && first + j < kMaxRanks; ++j) {
      if (!inside || first + j >= input.exchanged.num_ranks) continue;
      const Floats8 x = widen8<T>(rows[j]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum.v[i] += x.v[i];
    }
  }
  return sum;
}

template <typename T, Input kInput, int kBatch>
__device__ __forceinline__ Floats8 input8(const NormInput& input, int64_t row, int64_t n, int column,
                                          bool inside) {
  if constexpr (kInput == Input::kExperts) return combine8<T, kBatch>(input, row, n, column, inside);
  if constexpr (kInput == Input::kParts)
    return sum_parts8<T, (kBatch < kMaxRanks ? kBatch : kMaxRanks)>(input, row, n, column, inside);
  if (inside && input.dense != nullptr)
    return load8(static_cast<const T*>(input.dense) + row * input.x_stride + column);
  return {};
}

// Computes one row with the kBlocks blocks of a cluster (1: with this block alone). kAhead marks the kernel
// for few rows.
template <typename T, int kMaxThreads, int kMinBlocks, Input kInput, bool kAhead, int kBlocks>
__device__ __forceinline__ void norm_row(const AddRmsNormParams& p, int64_t out_row, int block) {
  constexpr bool kCombine = kInput == Input::kExperts;
  __shared__ float partial[32];  // a warp's sum of squares, of the whole row
  __shared__ float peaks[32];    // a warp's largest |x · weight|: rows with one scale
  // With experts' rows in registers there is no room for weights, so each thread keeps its own here, without
  // a barrier.
  constexpr bool kParkWeights = kCombine && kAhead && kBlocks == 1;
  __shared__ float4 own_weight[kParkWeights ? 2 * kMaxThreads : 1];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int column = (block * threads + thread) * kVec;
  const bool inside = column < p.n;
  Floats8 weight{};
  pdl_launch_dependents();
  if (kBlocks > 1) cluster_arrive();
  if (kAhead && inside) weight = load8(p.weight + column);
  if (kParkWeights) {
    own_weight[thread] = {weight.v[0], weight.v[1], weight.v[2], weight.v[3]};
    own_weight[kMaxThreads + thread] = {weight.v[4], weight.v[5], weight.v[6], weight.v[7]};
  }
  pdl_wait();

  const int64_t row = p.rows != nullptr ? p.rows[out_row] : out_row;
  const bool real = inside && row >= 0;
  Floats8 x{};
  // The weights are loaded ahead of the experts' rows, or after them to save registers.
  constexpr int kBatch = kAhead ? (kMaxThreads <= 896 ? 9 : 6) : (kMinBlocks * kMaxThreads <= 1536 ? 3 : 2);
  constexpr bool kResidualFirst = kAhead || !kCombine;
  if (kResidualFirst && real) x = load8(p.residual + row * p.n + column);
  if (row >= 0 && (kInput != Input::kDense || p.input.dense != nullptr)) {
    const Floats8 added = input8<T, kInput, kBatch>(p.input, row, p.n, column, inside);
    if (!kResidualFirst && real) x = load8(p.residual + row * p.n + column);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x.v[i] += added.v[i];
    if (inside && p.rows == nullptr) store8(p.residual + row * p.n + column, x);
  }
  if (inside && p.residual_out != nullptr) store8(p.residual_out + out_row * p.n + column, x);

  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kVec; ++i) sum = fmaf(x.v[i], x.v[i], sum);
  sum = lanes_sum(sum);
  const int lane = thread % 32;
  const int row_warp = (block * threads + thread) / 32;
  const bool per_token = p.y_quantized && is_per_token(p.y_quantized.format);
  const auto fetch_weight = [&] {
    if (!kAhead && inside) weight = load8(p.weight + column);
    if (kParkWeights) {
      const float4 low = own_weight[thread];
      const float4 high = own_weight[kMaxThreads + thread];
      weight = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    }
  };
  float peak = 0.0F;
  if (per_token) {
    fetch_weight();
#pragma unroll
    for (int i = 0; i < kVec; ++i) peak = fmaxf(peak, fabsf(x.v[i] * weight.v[i]));
    peak = lanes_max(peak);
  }
  if constexpr (kBlocks > 1) {
    cluster_wait();  // every block has started
    if (lane < kBlocks) {
      cluster_store(&partial[row_warp], sum, static_cast<uint32_t>(lane));
      if (per_token) cluster_store(&peaks[row_warp], peak, static_cast<uint32_t>(lane));
    }
    cluster_arrive();
    cluster_wait();
  } else {
    if (lane == 0) {
      partial[row_warp] = sum;
      if (per_token) peaks[row_warp] = peak;
    }
    __syncthreads();
  }
  const bool has_warp = lane < threads * kBlocks / 32;
  sum = lanes_sum(has_warp ? partial[lane] : 0.0F);
  const float factor = norm_factor(sum, p.n, p.eps);

  fetch_weight();
#pragma unroll
  for (int i = 0; i < kVec; ++i) x.v[i] = x.v[i] * factor * weight.v[i];
  if (p.y != nullptr && inside) store8(static_cast<T*>(p.y) + out_row * p.n + column, x);
  if (per_token) {
    const float scale = scale_of(p.y_quantized, lanes_max(has_warp ? peaks[lane] : 0.0F) * factor);
    store8_of_token(p.y_quantized, out_row, column, x, scale);
  } else if (p.y_quantized) {
    store8_quantized(p.y_quantized, out_row, column, x);
  }
}

template <typename T, int kMaxThreads, int kMinBlocks, Input kInput, bool kAhead>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks) add_rms_norm_kernel(const AddRmsNormParams p) {
  norm_row<T, kMaxThreads, kMinBlocks, kInput, kAhead, 1>(p, blockIdx.x, 0);
}
// Grid: x has the blocks of a row, y the rows.
template <typename T, int kBlocks, Input kInput>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(512)
    add_rms_norm_cluster_kernel(const AddRmsNormParams p) {
  norm_row<T, 512, 1, kInput, true, kBlocks>(p, blockIdx.y, static_cast<int>(blockIdx.x));
}

// Calls launch.operator()<form>() with the form of the input.
template <typename Launcher>
void dispatch_form(const NormInput& input, const Launcher& launch) {
  switch (form_of(input)) {
    case Input::kDense:
      return launch.template operator()<Input::kDense>();
    case Input::kExperts:
      return launch.template operator()<Input::kExperts>();
    case Input::kParts:
      return launch.template operator()<Input::kParts>();
  }
}

template <typename T, int kMaxThreads, int kMinBlocks, bool kAhead>
void launch_norm(const AddRmsNormParams& p, int threads, const Launch& launch) {
  dispatch_form(p.input, [&]<Input kInput>() {
    launch_kernel<add_rms_norm_kernel<T, kMaxThreads, kMinBlocks, kInput, kAhead>>(
        launch, dim3(static_cast<unsigned>(p.m)), threads, 0, p);
  });
}

template <typename T, int kBlocks>
void launch_norm_cluster(const AddRmsNormParams& p, int threads, const Launch& launch) {
  dispatch_form(p.input, [&]<Input kInput>() {
    launch_kernel<add_rms_norm_cluster_kernel<T, kBlocks, kInput>>(
        launch, dim3(kBlocks, static_cast<unsigned>(p.m)), threads / kBlocks, 0, p);
  });
}

// Returns the number of blocks per row: more than one while there are multiprocessors for them and the row's
// warps divide among them. Rows of up to 4,096 values are finished before a cluster's barrier would be; two
// blocks are faster only with experts' rows.
int cluster_blocks(const AddRmsNormParams& p, int threads, const Launch& launch) {
  if (threads < 640) return 1;
  for (const int blocks : {7, 4, 2}) {
    if (blocks == 2 && form_of(p.input) != Input::kExperts) break;
    if (threads / 32 % blocks == 0 && p.m * blocks <= launch.num_sms) return blocks;
  }
  return 1;
}

// Grid: x has the rows, y the blocks of columns; a thread has eight values.
template <typename T, Input kInput>
__global__ void __launch_bounds__(256)
    add_residual_kernel(const NormInput input, float* residual, int64_t n) {
  pdl_launch_dependents();
  pdl_wait();
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kVec;
  const bool inside = column < n;
  const int64_t row = blockIdx.x;
  Floats8 x{};
  if (inside) x = load8(residual + row * n + column);
  const Floats8 added = input8<T, kInput, 4>(input, row, n, column, inside);
#pragma unroll
  for (int i = 0; i < kVec; ++i) x.v[i] += added.v[i];
  if (inside) store8(residual + row * n + column, x);
}

// Grid and threads are those of add_residual_kernel.
template <typename T>
__global__ void __launch_bounds__(256) combine_rows_kernel(const CombineRowsParams p) {
  pdl_launch_dependents();
  pdl_wait();
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kVec;
  const bool inside = column < p.n;
  const int64_t row = blockIdx.x;
  Floats8 sum = combine8<T, 4, true>(p.experts, row, p.n, column, inside);
  if (!inside) return;
  if (p.added != nullptr) {
    const Floats8 added = load8(static_cast<const T*>(p.added) + row * p.n + column);
#pragma unroll
    for (int i = 0; i < kVec; ++i) sum.v[i] += added.v[i];
  }
  store8(static_cast<T*>(p.y) + row * p.n + column, sum);
}

void check_input(const NormInput& input, int64_t n) {
  const int forms = (input.dense != nullptr ? 1 : 0) + (input.expert_rows != nullptr ? 1 : 0) +
                    (input.exchanged.num_ranks > 0 ? 1 : 0);
  HADAL_CHECK(forms <= 1, "a norm adds dense rows, experts' rows or partial sums, not several of them");
  HADAL_CHECK(input.exchanged.num_ranks <= kMaxRanks, "{} partial sums; at most {} are added",
              input.exchanged.num_ranks, kMaxRanks);
  if (input.dense != nullptr) HADAL_CHECK_GE(input.x_stride, n);
  if (input.expert_rows != nullptr) {
    HADAL_CHECK(input.row_of != nullptr && input.weights != nullptr && input.top_k >= 1, "top_k is {}",
                input.top_k);
  }
}

bool wide_input(const NormInput& input) {
  for (int r = 0; r < input.exchanged.num_ranks; ++r)
    if (!on_16_bytes(input.exchanged.parts[r])) return false;
  return on_16_bytes(input.dense) && input.x_stride % kVec == 0 && on_16_bytes(input.expert_rows) &&
         input.top_k <= kMaxTopK;
}

}  // namespace

namespace {

template <typename T>
void run_norm(const AddRmsNormParams& p, int threads, const Launch& launch) {
  switch (cluster_blocks(p, threads, launch)) {
    case 7:
      return launch_norm_cluster<T, 7>(p, threads, launch);
    case 4:
      return launch_norm_cluster<T, 4>(p, threads, launch);
    case 2:
      return launch_norm_cluster<T, 2>(p, threads, launch);
    default:
      break;
  }
  if (p.m <= 2 * launch.num_sms) {
    if (threads <= 512) return launch_norm<T, 512, 1, true>(p, threads, launch);
    if (threads <= 896) return launch_norm<T, 896, 1, true>(p, threads, launch);
    return launch_norm<T, 1024, 1, true>(p, threads, launch);
  }
  if (threads <= 256) return launch_norm<T, 256, 6, false>(p, threads, launch);
  if (threads <= 896) return launch_norm<T, 896, 2, false>(p, threads, launch);
  return launch_norm<T, 1024, 1, false>(p, threads, launch);
}

dim3 row_grid(int64_t m, int64_t n) {
  return dim3(static_cast<unsigned>(m), static_cast<unsigned>((n / kVec + 255) / 256));
}

template <typename T>
void run_add(const NormInput& input, float* residual, int64_t m, int64_t n, const Launch& launch) {
  dispatch_form(input, [&]<Input kInput>() {
    launch_kernel<add_residual_kernel<T, kInput>>(launch, row_grid(m, n), 256, 0, input, residual, n);
  });
}

}  // namespace

void add_rms_norm(const AddRmsNormParams& p, const Launch& launch) {
  check_input(p.input, p.n);
  HADAL_CHECK(!p.f16 || !p.y_quantized, "codes are made only from bf16 rows");
  HADAL_CHECK(p.rows != nullptr || p.residual_out == nullptr, "residual_out is written only with rows");
  if (p.y_quantized)
    HADAL_CHECK(p.y_quantized.stride >= p.n && p.y_quantized.scale_stride >= p.m, "FP8 rows of stride {}",
                p.y_quantized.stride);
  const int64_t width = p.y_quantized ? p.y_quantized.stride : p.n;
  const bool wide = p.n % kVec == 0 && width <= 1024 * kVec && wide_input(p.input) &&
                    on_16_bytes(p.residual) && on_16_bytes(p.residual_out) && on_16_bytes(p.weight) &&
                    on_16_bytes(p.y) && on_16_bytes(p.y_quantized);
  if (launch.reference || !wide) return reference::add_rms_norm(p, launch);
  const int threads = static_cast<int>(round_up(width / kVec, 32));
  if (p.f16) return run_norm<f16>(p, threads, launch);
  run_norm<bf16>(p, threads, launch);
}

void add_residual(const NormInput& input, float* residual, int64_t m, int64_t n, const Launch& launch,
                  bool f16_rows) {
  check_input(input, n);
  if (launch.reference || n % kVec != 0 || !wide_input(input) || !on_16_bytes(residual)) {
    return reference::add_residual(input, residual, m, n, launch, f16_rows);
  }
  if (f16_rows) return run_add<f16>(input, residual, m, n, launch);
  run_add<bf16>(input, residual, m, n, launch);
}

void combine_rows(const CombineRowsParams& p, const Launch& launch) {
  check_input(p.experts, p.n);
  HADAL_CHECK(p.experts.expert_rows != nullptr, "combine_rows needs experts' rows");
  if (p.m == 0) return;
  if (launch.reference || p.n % kVec != 0 || !wide_input(p.experts) || !on_16_bytes(p.added) ||
      !on_16_bytes(p.y)) {
    return reference::combine_rows(p, launch);
  }
  if (p.f16) return launch_kernel<combine_rows_kernel<f16>>(launch, row_grid(p.m, p.n), 256, 0, p);
  launch_kernel<combine_rows_kernel<bf16>>(launch, row_grid(p.m, p.n), 256, 0, p);
}

}  // namespace hadal::cuda
