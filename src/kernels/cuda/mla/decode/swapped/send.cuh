// Sends the results of a block of the swapped decode kernel at the end of a piece: its values as units of
// float32, and its rows' maxima and sums. They go to the blocks of the cluster or to the slot of the split
// (mla/decode/swapped/join.cuh describes when).
#pragma once

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode/swapped/page.cuh"

namespace hadal::cuda::swapped {

inline constexpr int kMaxCluster = 16;
inline constexpr int kUnits = 2 * kMTiles;

// Holds the place of this block in the grid.
struct Member {
  int part;
  int tile;
  int first_row;
  int rank;
  int cluster;
  int cluster_log2;
};

// Returns true for a whole sequence of at most one page. Only the cluster's first block works on it, and the
// other blocks skip the piece, because they would have no keys.
__device__ __forceinline__ bool is_for_one_block(const DecodePiece& piece, const Member& member) {
  return member.cluster > 1 && piece.slot < 0 && piece.end_page <= 1;
}

struct BlockFacts {
  float maximum, sum;
};

template <int kN>
struct alignas(16) JoinShared {
  alignas(16) float maximum[kWarpgroups][kN];
  float sums[kWarpgroups][4][kN];
  BlockFacts blocks[kMaxCluster][kN];  // exchange_facts replaces `sum` by the block's weight
  Mbarrier summed;
  Mbarrier weighed;
  Mbarrier received;
  Mbarrier facts_received;
  Mbarrier released;
};

// The slot of a split that this kernel merges holds kPartialValues bytes of values, as units in ascending
// order, and then each row's maximum and sum.
template <int kN>
inline constexpr int kPartialValues = kN* kKvLatentDim * 4;
template <int kN>
__device__ __forceinline__ std::byte* partial_of(const DecodeArgs& args, int slot, int tile) {
  return reinterpret_cast<std::byte*>(args.partial_out) +
         (int64_t{slot} * args.num_tiles + tile) * (kN * kDecodePartialRowBytes);
}

__device__ __forceinline__ uint32_t address_in_block(uint32_t address, uint32_t block) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
  return remote;
}
// Stores four values of a thread in the shared memory of a block of the cluster.
__device__ __forceinline__ void store_async(uint32_t address, const float4& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_async_facts(uint32_t address, const BlockFacts& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "f"(v.maximum), "f"(v.sum), "r"(barrier)
      : "memory");
}

template <int kN>
__device__ __forceinline__ void store_partial_facts(std::byte* partial, int n, const BlockFacts& facts) {
  reinterpret_cast<BlockFacts*>(partial + kPartialValues<kN>)[n] = facts;
}

// Joins the maxima and sums of row n of both warpgroups, and computes the factor for each warpgroup's values.
template <int kN>
__device__ __forceinline__ BlockFacts joined_facts(const JoinShared<kN>& shared, int n,
                                                   float (&factors)[kWarpgroups]) {
  const float top = fmaxf(shared.maximum[0][n], shared.maximum[1][n]);
  const float base = top == -INFINITY ? 0.0F : top;
  float total = 0.0F;
#pragma unroll
  for (int w = 0; w < kWarpgroups; ++w) {
    factors[w] = exp2_fast(shared.maximum[w][n] - base);
    total += factors[w] *
             ((shared.sums[w][0][n] + shared.sums[w][1][n]) + (shared.sums[w][2][n] + shared.sums[w][3][n]));
  }
  return {top, total};
}

// Sends a block's results at the end of a piece, to the cluster or to the split's slot. `joins` is the number
// of earlier pieces on which all blocks of the cluster worked.
template <int kN>
struct Sender {
  static constexpr int kQuads = kN / 16;  // quads of a unit: four values per thread
  static constexpr int kThreadBytes = 16 * kQuads;
  static constexpr int kUnitBytes = 128 * kThreadBytes;
  const Member& member;
  int num_blocks;  // blocks that work on the piece: the whole cluster, or 1
  JoinShared<kN>& shared;
  std::byte* receive;
  std::byte* partial;  // null: the piece is not a split, or this kernel does not merge it
  uint32_t joins;
  bool early;  // m-tiles are sent while the next ones are being computed, because there is nothing to join

  // A thread's values of a unit are two halves, one for each of its dims. In half of the threads the halves
  // are swapped, so that threads that read the same half at once read from all banks.
  static __device__ __forceinline__ bool turned() { return (threadIdx.x / (8 / kQuads)) % 2 != 0; }

  // Stores the sums of a warp's threads and the maxima of the warpgroup, for joined_facts.
  __device__ __forceinline__ void facts(State<kN>& state, int warpgroup) const {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int column = 2 * (lane % 4);
#pragma unroll
    for (int d = 4; d < 32; d *= 2) {
#pragma unroll
      for (float& v : state.sum) v += __shfl_xor_sync(0xffffffffU, v, d);
    }
    if (lane < 4) {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        *reinterpret_cast<float2*>(&shared.sums[warpgroup][warp][8 * j + column]) = {state.sum[2 * j],
                                                                                     state.sum[2 * j + 1]};
        if (warp == 0) {
          *reinterpret_cast<float2*>(&shared.maximum[warpgroup][8 * j + column]) = {state.maximum[2 * j],
                                                                                    state.maximum[2 * j + 1]};
        }
      }
    }
    if (num_blocks > 1) mbarrier_arrive(&shared.summed);
  }
  // Waits until the cluster's blocks can receive values. It is called by all consumers, after facts() and
  // before the first call of values().
  __device__ __forceinline__ void open() const {
    if (num_blocks == 1) return;
    __syncwarp();
    if (joins == 0) {
      wait_for_cluster();  // every block has begun
    } else {
      mbarrier_wait(&shared.released, (joins - 1) & 1U);
    }
    if (threadIdx.x == 0) mbarrier_arrive_expect_tx(&shared.received, kUnits * kUnitBytes);
  }
  // Sends m-tile m.
  __device__ __forceinline__ void values(int m, const float (&v)[kN / 2]) const {
    const int units_log2 = 4 - member.cluster_log2;
    const uint32_t own = shared_address(receive) + threadIdx.x % 128 * kThreadBytes;
    const bool turn = turned();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = 2 * m + half;
      const int target = unit >> units_log2;
      const int place = (member.rank << units_log2) + (unit & ((1 << units_log2) - 1));
      // Registers 0 and 1 of a quad belong to the first dim, 2 and 3 to the second.
      const auto pair = [&](bool second, int q) {
        const float* from = v + 4 * (half * kQuads + q);
        return second ? make_float2(from[2], from[3]) : make_float2(from[0], from[1]);
      };
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float2 front = kQuads == 1 ? pair(turn, 0) : pair((i != 0) != turn, 0);
        const float2 back = kQuads == 1 ? pair(!turn, 0) : pair((i != 0) != turn, 1);
        const float4 values = {front.x, front.y, back.x, back.y};
        if (num_blocks == 1) {
          std::byte* at = partial + unit * kUnitBytes + threadIdx.x % 128 * kThreadBytes;
          reinterpret_cast<float4*>(at)[i] = values;
        } else {
          store_async(address_in_block(own + place * kUnitBytes + 16 * i, target), values,
                      address_in_block(shared_address(&shared.received), target));
        }
      }
    }
  }
};

}  // namespace hadal::cuda::swapped
