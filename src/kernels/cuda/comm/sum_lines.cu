// Adds small parts of all ranks in one kernel that exchanges them itself.
//
// A line is 16 bytes: two words of 8 bytes, each with 4 bytes of a part and the number of the exchange. A
// word is stored and loaded at once (8 bytes, aligned), so whoever reads the number has the data too, and
// neither a fence nor a flag of its own is needed; the price is twice the bytes. A rank stores its lines in
// the memory of all others and looks in its own memory for theirs.
//
// Grid: a thread has eight consecutive elements, which are two lines. It sends them to each other rank, then
// looks for the lines of all others at once until it has them, and adds in order of rank. Blocks wait for the
// same block of other ranks, and for nothing else. The last block to end counts the exchange.
//
// Lines have two slots, which exchanges use by turns of their number. A rank that sends in exchange n + 2 has
// received something in n + 1 from every rank, so all have ended n, and nobody reads the lines of n any more.
// A line holds the low 32 bits of the number: one from another time could be mistaken only if it had not been
// replaced for exactly 2^32 exchanges.
#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/comm/preload.cuh"
#include "kernels/cuda/comm/waiting.cuh"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/elementwise/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLineBytes = 8;                            // of a part
constexpr int64_t kLines = kMaxLinesBytes / kLineBytes;  // of one rank's part
constexpr int kOwnLines = kVec * 2 / kLineBytes;         // of a thread

struct Line {
  uint64_t words[2];
};

__device__ __forceinline__ void store_line(Line* target, const Line& line) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(target), "l"(line.words[0]),
               "l"(line.words[1])
               : "memory");
}
__device__ __forceinline__ Line load_line(const Line* source) {
  Line line;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
               : "=l"(line.words[0]), "=l"(line.words[1])
               : "l"(source)
               : "memory");
  return line;
}
__device__ __forceinline__ uint64_t line_word(uint32_t data, uint32_t number) {
  return uint64_t{number} << 32 | data;
}
__device__ __forceinline__ uint32_t number_of(uint64_t word) {
  return static_cast<uint32_t>(word >> 32);
}
__device__ __forceinline__ bool has_number(const Line& line, uint32_t number) {
  return number_of(line.words[0]) == number && number_of(line.words[1]) == number;
}

__device__ __forceinline__ uint4 data_of(const Line (&lines)[kOwnLines]) {
  return {static_cast<uint32_t>(lines[0].words[0]), static_cast<uint32_t>(lines[0].words[1]),
          static_cast<uint32_t>(lines[1].words[0]), static_cast<uint32_t>(lines[1].words[1])};
}

// The lines that rank `sender` sends to rank `receiver`.
__device__ __forceinline__ Line* lines_of(const ExchangeParams& p, int receiver, int sender,
                                          uint64_t number) {
  return static_cast<Line*>(p.lines[receiver]) + ((number & 1) * kMaxRanks + sender) * kLines;
}

// kMost is 2, 4 or 8, and at least num_ranks.
template <typename T, int kMost>
__global__ void __launch_bounds__(kThreads) sum_lines_kernel(const __grid_constant__ SumLinesParams params) {
  const ExchangeParams& p = params.exchange;
  if (p.early_dependents) pdl_launch_dependents();
  pdl_wait();
  ExchangeFlags* const own = p.flags[p.rank];
  const uint64_t number = load_relaxed_system(&own->num_exchanges) + 1;
  const auto tag = static_cast<uint32_t>(number);
  const bool waits = load_relaxed_system(&own->given_up) == 0;
  const int64_t vector = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (vector < params.count / kVec) {
    const uint4 mine = static_cast<const uint4*>(params.part)[vector];
    const Line sent[kOwnLines] = {{line_word(mine.x, tag), line_word(mine.y, tag)},
                                  {line_word(mine.z, tag), line_word(mine.w, tag)}};
    const int64_t first = vector * kOwnLines;
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r >= p.num_ranks || r == p.rank) continue;
      Line* const target = lines_of(p, r, p.rank, number) + first;
      for (int i = 0; i < kOwnLines; ++i) store_line(target + i, sent[i]);
    }
    Line received[kMost][kOwnLines];
    int missing = 0;  // the first rank whose lines the last look has not found
    const auto came = [&] {
      bool all = true;
#pragma unroll
      for (int r = kMost - 1; r >= 0; --r) {
        if (r >= p.num_ranks || r == p.rank) continue;
        const Line* const source = lines_of(p, p.rank, r, number) + first;
        for (int i = 0; i < kOwnLines; ++i) received[r][i] = load_line(source + i);
      }
#pragma unroll
      for (int r = kMost - 1; r >= 0; --r) {
        if (r >= p.num_ranks || r == p.rank) continue;
        if (has_number(received[r][0], tag) && has_number(received[r][1], tag)) continue;
        all = false;
        missing = r;
      }
      return all;
    };
    if (!came() && waits) {
      const Waited waited = wait_for_rank(p, came);
      // Every rank has come to the last exchange, because this one has ended it.
      if (waited != Waited::kCame) give_up(p, waited, missing, number, number - 1);
    }
    Floats8 sum{};
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r >= p.num_ranks) break;
      const uint4 bits = r == p.rank ? mine : data_of(received[r]);
      const Floats8 x = widen8<T>(bits);
#pragma unroll
      for (int j = 0; j < kVec; ++j) sum.v[j] = r == 0 ? x.v[j] : sum.v[j] + x.v[j];
    }
    store8(static_cast<T*>(params.sums) + vector * kVec, sum);
  }
  __syncthreads();
  if (threadIdx.x == 0 && atomicAdd(&own->blocks_ended, 1U) == gridDim.x - 1) {
    own->blocks_ended = 0;
    own->num_exchanges = number;
  }
}

template <typename T>
void launch_sum(const SumLinesParams& p, dim3 grid, const Launch& launch) {
  const int num_ranks = p.exchange.num_ranks;
  if (num_ranks <= 2) return launch_kernel<sum_lines_kernel<T, 2>>(launch, grid, kThreads, 0, p);
  if (num_ranks <= 4) return launch_kernel<sum_lines_kernel<T, 4>>(launch, grid, kThreads, 0, p);
  launch_kernel<sum_lines_kernel<T, 8>>(launch, grid, kThreads, 0, p);
}

template <typename T>
void preload_sums() {
  preload<sum_lines_kernel<T, 2>>();
  preload<sum_lines_kernel<T, 4>>();
  preload<sum_lines_kernel<T, 8>>();
}

}  // namespace

static_assert(kLinesMemory == 2 * kMaxRanks * kLines * int64_t{sizeof(Line)});

void sum_lines(const SumLinesParams& params, const Launch& launch) {
  HADAL_CHECK(params.exchange.num_ranks >= 1 && params.exchange.num_ranks <= kMaxRanks, "{} ranks",
              params.exchange.num_ranks);
  HADAL_CHECK(params.count > 0 && params.count % kVec == 0 && params.count * 2 <= kMaxLinesBytes,
              "a small part has {} elements, allowed are multiples of {} up to {}", params.count, kVec,
              kMaxLinesBytes / 2);
  HADAL_CHECK(on_16_bytes(params.part) && on_16_bytes(params.sums), "parts or sums are not on 16 bytes");
  const dim3 grid(static_cast<unsigned>((params.count / kVec + kThreads - 1) / kThreads));
  if (params.f16) {
    launch_sum<f16>(params, grid, launch);
  } else {
    launch_sum<bf16>(params, grid, launch);
  }
}

void preload_sum_lines() {
  preload_sums<bf16>();
  preload_sums<f16>();
}

}  // namespace hadal::cuda
