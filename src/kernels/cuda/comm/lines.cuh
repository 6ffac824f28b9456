// Lets kernels exchange small parts of all ranks themselves, without flags.
//
// A line is 16 bytes: two words of 8 bytes, each with 4 bytes of a part and the number of the exchange. A
// word is stored and loaded at once (8 bytes, aligned), so a thread that reads the number has also read the
// data. Neither a fence nor a separate flag is needed, but twice the bytes are transferred. A rank stores its
// lines in the memory of all other ranks, and polls its own memory for the lines of the other ranks.
//
// A thread has eight consecutive elements, which are two lines. It sends them to every other rank, then polls
// the lines of all others until each has arrived. It waits only for the threads of other ranks that have the
// same place in their parts. The last block that ends counts the exchange.
//
// There are two slots of lines; exchanges with even and odd numbers alternate between them. A rank that sends
// in exchange n + 2 has received something from every rank in exchange n + 1, so all ranks have ended
// exchange n, and no rank reads its lines any more. A line holds only the low 32 bits of the number: an old
// line could be taken for a new one only if nothing had replaced it for exactly 2^32 exchanges.
#pragma once

#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/peer_memory.cuh"
#include "kernels/cuda/comm/waiting.cuh"

namespace hadal::cuda {

inline constexpr int kLineBytes = 8;                            // bytes of a part in one line
inline constexpr int64_t kLines = kMaxLinesBytes / kLineBytes;  // lines of one rank's part
inline constexpr int kOwnLines = 16 / kLineBytes;               // lines of a thread

struct Line {
  uint64_t words[2];
};
static_assert(kLinesMemory == 2 * kMaxRanks * kLines * int64_t{sizeof(Line)});

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

// Returns the lines that rank `sender` sends to rank `receiver`.
__device__ __forceinline__ Line* lines_of(const ExchangeParams& p, int receiver, int sender,
                                          uint64_t number) {
  return static_cast<Line*>(p.lines[receiver]) + ((number & 1) * kMaxRanks + sender) * kLines;
}

// Performs one exchange for a kernel. All threads of all blocks of the grid must call begin() and end().
class LinesExchange {
 public:
  __device__ __forceinline__ explicit LinesExchange(const ExchangeParams& p) : p_(p) {}

  // The caller must have returned from pdl_wait().
  __device__ __forceinline__ void begin() {
    number_ = load_relaxed_system(&p_.flags[p_.rank]->num_exchanges) + 1;
    waits_ = load_relaxed_system(&p_.flags[p_.rank]->given_up) == 0;
  }

  // Sends vector number `vector` (eight elements) of this rank's part, and returns the same vector of every
  // rank's part in `all`. kMost is 2, 4 or 8, and at least the number of ranks.
  template <int kMost>
  __device__ __forceinline__ void exchange(int64_t vector, const uint4& mine, uint4 (&all)[kMost]) const {
    const auto tag = static_cast<uint32_t>(number_);
    const Line sent[kOwnLines] = {{line_word(mine.x, tag), line_word(mine.y, tag)},
                                  {line_word(mine.z, tag), line_word(mine.w, tag)}};
    const int64_t first = vector * kOwnLines;
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r >= p_.num_ranks || r == p_.rank) continue;
      Line* const target = lines_of(p_, r, p_.rank, number_) + first;
      for (int i = 0; i < kOwnLines; ++i) store_line(target + i, sent[i]);
    }
    Line received[kMost][kOwnLines];
    int missing = 0;  // the first rank whose lines the last poll has not found
    const auto came = [&] {
      bool all_came = true;
#pragma unroll
      for (int r = kMost - 1; r >= 0; --r) {
        if (r >= p_.num_ranks || r == p_.rank) continue;
        const Line* const source = lines_of(p_, p_.rank, r, number_) + first;
        for (int i = 0; i < kOwnLines; ++i) received[r][i] = load_line(source + i);
      }
#pragma unroll
      for (int r = kMost - 1; r >= 0; --r) {
        if (r >= p_.num_ranks || r == p_.rank) continue;
        if (has_number(received[r][0], tag) && has_number(received[r][1], tag)) continue;
        all_came = false;
        missing = r;
      }
      return all_came;
    };
    if (!came() && waits_) {
      const Waited waited = wait_for_rank(p_, came);
      // Every rank has reached the previous exchange, because this rank has completed it.
      if (waited != Waited::kCame) give_up(p_, waited, missing, number_, number_ - 1);
    }
#pragma unroll
    for (int r = 0; r < kMost; ++r) {
      if (r < p_.num_ranks) all[r] = r == p_.rank ? mine : data_of(received[r]);
    }
  }

  // All threads of a block call this after their last exchange().
  __device__ __forceinline__ void end() const {
    __syncthreads();
    ExchangeFlags* const own = p_.flags[p_.rank];
    const unsigned num_blocks = gridDim.x * gridDim.y;
    if (threadIdx.x == 0 && atomicAdd(&own->blocks_ended, 1U) == num_blocks - 1) {
      own->blocks_ended = 0;
      own->num_exchanges = number_;
    }
  }

 private:
  const ExchangeParams& p_;
  uint64_t number_ = 0;
  bool waits_ = false;
};

}  // namespace hadal::cuda
