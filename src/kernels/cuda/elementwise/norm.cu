// Computes fused norms: residual += input; y = RMSNorm(residual) ⊙ weight, stored as rows of 16 bits, as FP8
// rows, or both.
//
// Grid: one block per row. If enough multiprocessors are free, a wide row has a cluster of 2, 4 or 7 blocks
// instead, because one multiprocessor alone needs 1.5 µs to read V3's nine experts' rows. A thread holds
// eight consecutive values of the row in registers from load to store, so the row is read once; rows have at
// most 8,192 values. There is one barrier: warps sum squares by shuffle and leave 32 partial sums in shared
// memory (128 bytes; in a cluster each warp writes its own sum to every block), and then every warp adds all
// of them. A quantisation group is sixteen lanes, so it needs no barrier. With one scale per row, warps leave
// their largest |x · weight| beside their sums, and the norm's factor is multiplied in afterwards.
//
// With few rows, latency is the limit. Then the norm's weights are loaded before pdl_wait (into registers, or
// into 28 KB of shared memory if registers hold experts' rows), and nine experts' rows of a token are in
// flight at once, in up to 100 registers. With many rows, bandwidth is the limit. Then weights are read after
// the sum, from the L1, so that 1,536 threads and more fit on a multiprocessor, with 32 registers at width
// 7,168 and 40 at 2,048. All variants give the same bits.
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/exchanging_norm.h"
#include "kernels/cuda/elementwise/norm_row.cuh"
#include "kernels/cuda/elementwise/reference.h"

namespace hadal::cuda {
namespace {

using norm::combine8;
using norm::form_of;
using norm::Input;
using norm::input8;
using norm::kMaxTopK;
using norm::norm_row;

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

// Calls launch.operator()<form>(), where form is the form of the input.
template <typename Launcher>
void dispatch_form(const NormInput& input, const Launcher& launch) {
  switch (form_of(input)) {
    case Input::kDense:
      return launch.template operator()<Input::kDense>();
    case Input::kExperts:
      return launch.template operator()<Input::kExperts>();
    case Input::kParts:
      return launch.template operator()<Input::kParts>();
    case Input::kLines:
      break;  // exchanging_norm.cu
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
  if (input.exchange != nullptr) {
    HADAL_CHECK((input.part != nullptr) != (input.expert_rows != nullptr) && input.exchanged.num_ranks == 0,
                "a norm exchanges a part, or what it makes of experts' rows");
  }
  const int forms = input.exchange != nullptr
                        ? 1
                        : (input.dense != nullptr ? 1 : 0) + (input.expert_rows != nullptr ? 1 : 0) +
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
  switch (cluster_blocks(p.m, threads, form_of(p.input) == Input::kExperts, launch)) {
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
  if (p.input.exchange != nullptr) {
    HADAL_CHECK(wide && on_16_bytes(p.input.part), "a norm that exchanges parts needs aligned rows");
    return exchanging_norm(p, launch);
  }
  if (launch.reference || !wide) return reference::add_rms_norm(p, launch);
  const int threads = static_cast<int>(round_up(width / kVec, 32));
  if (p.f16) return run_norm<f16>(p, threads, launch);
  run_norm<bf16>(p, threads, launch);
}

void add_residual(const NormInput& input, float* residual, int64_t m, int64_t n, const Launch& launch,
                  bool f16_rows) {
  check_input(input, n);
  HADAL_CHECK(input.exchange == nullptr, "only a norm exchanges parts itself");
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
