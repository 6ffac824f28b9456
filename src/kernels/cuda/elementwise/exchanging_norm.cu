// Computes fused norms of few rows that exchange the ranks' partial sums themselves.
//
// Grid: x has the blocks of a row, which are a cluster, y the rows. A thread has eight consecutive values. It
// sends this rank's part of them to all other ranks, waits for the parts of the others, adds all parts in
// order of rank, and continues as in norm.cu. So one kernel replaces the exchange of flags and a norm that
// reads the parts over the link. Because it transfers twice the bytes, it is used only for small parts.
#include "kernels/cuda/comm/device_scope.cuh"
#include "kernels/cuda/comm/lines.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/elementwise/exchanging_norm.h"
#include "kernels/cuda/elementwise/norm_row.cuh"

namespace hadal::cuda {
namespace {

constexpr int kMostThreads = 512;

// In lines a rank receives twice the bytes. If it receives more than this number of bytes (1.8 µs at 380
// GB/s), that costs more than the saved exchange of flags.
constexpr int64_t kMostReceivedBytes = 640 << 10;

struct Args {
  AddRmsNormParams norm;
  ExchangeParams exchange;
};

// Gives norm_row the sums over ranks. kMost is 2, 4 or 8, and at least the number of ranks. With kCombines,
// this rank's part is the weighted sum of its experts' rows.
template <int kMost, bool kCombines>
class SumsOverRanks {
 public:
  __device__ __forceinline__ explicit SumsOverRanks(const Args& args) : args_(args), lines_(args.exchange) {}

  // See ExchangeParams::early_dependents.
  __device__ __forceinline__ bool lets_dependents_begin() const { return args_.exchange.early_dependents; }
  __device__ __forceinline__ void begin() { lines_.begin(); }
  template <typename T>
  __device__ __forceinline__ Floats8 sum8(int64_t row, int column) const {
    const int64_t vector = (row * args_.norm.n + column) / kVec;
    uint4 all[kMost];
    lines_.exchange<kMost>(vector, own8<T>(row, column, vector), all);
    Floats8 sum{};
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r >= args_.exchange.num_ranks) break;
      const Floats8 x = widen8<T>(all[r]);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum.v[i] += x.v[i];
    }
    return sum;
  }
  __device__ __forceinline__ void end() const {
    lines_.end();
  }

 private:
  template <typename T>
  __device__ __forceinline__ uint4 own8(int64_t row, int column, int64_t vector) const {
    const NormInput& input = args_.norm.input;
    if constexpr (!kCombines) return static_cast<const uint4*>(input.part)[vector];
    // The arithmetic is that of combine_rows.
    Floats8 sum = norm::combine8<T, 9, true>(input, row, args_.norm.n, column, true);
    if (input.dense != nullptr) {
      const Floats8 added = load8(static_cast<const T*>(input.dense) + row * input.x_stride + column);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum.v[i] += added.v[i];
    }
    return narrow8<T>(sum);
  }

  const Args& args_;
  LinesExchange lines_;
};

template <int kBlocks, int kMost, bool kCombines>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kMostThreads)
    exchanging_norm_kernel(const __grid_constant__ Args args) {
  SumsOverRanks<kMost, kCombines> sums(args);
  norm::norm_row<bf16, kMostThreads, 1, norm::Input::kLines, true, kBlocks>(
      args.norm, blockIdx.y, static_cast<int>(blockIdx.x), sums);
  sums.end();
}

int threads_of(int64_t n) {
  return static_cast<int>(n / kVec);
}

// Calls work.operator()<kBlocks, kMost, kCombines>().
template <int kBlocks, bool kCombines, typename Work>
void for_ranks(int num_ranks, const Work& work) {
  if (num_ranks <= 2) return work.template operator()<kBlocks, 2, kCombines>();
  if (num_ranks <= 4) return work.template operator()<kBlocks, 4, kCombines>();
  work.template operator()<kBlocks, 8, kCombines>();
}
template <int kBlocks, typename Work>
void for_kernel(int num_ranks, bool combines, const Work& work) {
  if (combines) return for_ranks<kBlocks, true>(num_ranks, work);
  for_ranks<kBlocks, false>(num_ranks, work);
}

}  // namespace

bool norm_exchanges(int64_t m, int64_t n, bool f16, int num_ranks, const Launch& launch) {
  const int64_t bytes = m * n * 2;
  if (launch.reference || f16 || m <= 0 || n % 256 != 0 || n > 8192) return false;
  if (bytes > kMaxLinesBytes || (num_ranks - 1) * bytes > kMostReceivedBytes) return false;
  const int blocks = cluster_blocks(m, threads_of(n), false, launch);
  return m * blocks <= launch.num_sms && threads_of(n) / blocks <= kMostThreads;
}

void exchanging_norm(const AddRmsNormParams& p, const Launch& launch) {
  const ExchangeParams& exchange = *p.input.exchange;
  HADAL_CHECK(p.n % 256 == 0 && p.m * p.n * 2 <= kMaxLinesBytes && !p.f16,
              "a norm of {} rows of {} values exchanges no parts itself", p.m, p.n);
  HADAL_CHECK(!p.y_quantized || p.y_quantized.stride == p.n, "codes are {} apart for {} values",
              p.y_quantized.stride, p.n);
  const int blocks = cluster_blocks(p.m, threads_of(p.n), false, launch);
  const auto run = [&]<int kBlocks, int kMost, bool kCombines>() {
    launch_kernel<exchanging_norm_kernel<kBlocks, kMost, kCombines>>(
        launch, dim3(kBlocks, static_cast<unsigned>(p.m)), threads_of(p.n) / kBlocks, 0,
        Args{.norm = p, .exchange = exchange});
  };
  const bool combines = p.input.part == nullptr;
  if (blocks == 7) return for_kernel<7>(exchange.num_ranks, combines, run);
  if (blocks == 4) return for_kernel<4>(exchange.num_ranks, combines, run);
  HADAL_CHECK(blocks == 1 && threads_of(p.n) <= kMostThreads, "a norm of {} values exchanges no parts itself",
              p.n);
  for_kernel<1>(exchange.num_ranks, combines, run);
}

void load_exchanging_norms(int device) {
  const DeviceScope scope(device);
  const auto load = [&]<int kBlocks, int kMost, bool kCombines>() {
    preload<exchanging_norm_kernel<kBlocks, kMost, kCombines>>();
  };
  for (const int num_ranks : {2, 4, 8}) {
    for (const bool combines : {false, true}) {
      for_kernel<7>(num_ranks, combines, load);
      for_kernel<4>(num_ranks, combines, load);
      for_kernel<1>(num_ranks, combines, load);
    }
  }
}

}  // namespace hadal::cuda
