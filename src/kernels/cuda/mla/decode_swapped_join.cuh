// The end of a piece in the swapped decode kernel: the two warpgroups of a block join their results in
// scratch tiles of the ring, the blocks of a cluster theirs over distributed shared memory, and the result
// goes to `out` or to the piece's slot.
//
// Warpgroup w keeps the m-tiles 4·w … 4·w + 3 and gives the others away, so both write half of the output.
// In a cluster of C blocks an m-tile's two halves of rows are sixteen units; block b gets those from 16 / C ·
// b on from all blocks, unnormalised bf16, with the blocks' maxima and sums, and writes them. Values travel
// as they lie in registers, by stores that complete bytes on the receiver's barrier.
//
// barrier    arrivals     guards                                                 phase
// received   1 + bytes    all blocks' units and facts for this block             each piece
// released   C            all blocks have read theirs; they may be overwritten   each piece
#pragma once

#include <type_traits>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode_merge.cuh"
#include "kernels/cuda/mla/decode_swapped_page.cuh"

namespace hadal::cuda::swapped {

inline constexpr int kMaxCluster = 16;
inline constexpr int kUnits = 2 * kMTiles;
inline constexpr float kLn2 = 0.6931471805599453F;

// Which block this is.
struct Member {
  int part;
  int tile;
  int first_row;
  int rank;
  int cluster;
  int cluster_log2;
};

struct BlockFacts {
  float maximum, sum;
};

template <int kN>
struct alignas(16) JoinShared {
  alignas(16) float maximum[kWarpgroups][kN];
  float sums[kWarpgroups][4][kN];
  BlockFacts blocks[kMaxCluster][kN];  // `sum` becomes the block's weight
  Mbarrier received;
  Mbarrier released;
};

__device__ __forceinline__ uint32_t address_in_block(uint32_t address, uint32_t block) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
  return remote;
}
// Four or eight bf16 of a thread, packed.
__device__ __forceinline__ void store_async(uint32_t address, const uint2& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "r"(v.x), "r"(v.y), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_async(uint32_t address, const uint4& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          address),
      "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void store_async_facts(uint32_t address, const BlockFacts& v, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
          address),
      "f"(v.maximum), "f"(v.sum), "r"(barrier)
      : "memory");
}

template <typename Out>
__device__ __forceinline__ uint32_t pack_out(float low, float high) {
  if constexpr (std::is_same_v<Out, f16>) {
    const __half2 packed = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&packed);
  } else {
    return pack_bf16(low, high);
  }
}
// Of an 8×8 matrix of 16-bit values as accumulators lie.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t a) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Where a thread's values of the m-tiles from `m` on and of the rows from 8 · j on go, and which rows exist.
template <typename Format>
class ResultStore {
 public:
  __device__ __forceinline__ ResultStore(const DecodeArgs& args, const DecodePiece& piece, int first_row,
                                         int m, int j)
      : in_slot_(piece.slot >= 0) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const bool by_pairs = in_slot_ || Format::kPairedDims;  // of rows, else of dims
    const int row = first_row + 8 * j + (by_pairs ? 2 * (lane % 4) : lane / 4);
    int dim = 64 * m + 16 * warp;
    if (Format::kPairedDims) {
      dim += 2 * (lane / 4);
    } else {
      dim += in_slot_ ? lane / 4 : 2 * (lane % 4);
    }
    rows_left_ = args.rows - row;
    const int64_t at =
        ((in_slot_ ? int64_t{piece.slot} : int64_t{piece.seq}) * args.rows + row) * kKvLatentDim + dim;
    target_ = in_slot_ ? static_cast<void*>(args.partial_out + at)
                       : static_cast<void*>(static_cast<typename Format::Out*>(args.out) + at);
  }
  // Registers 4·j … 4·j + 3 of m-tile m, normalised, both counted from the first. By whole warps.
  __device__ __forceinline__ void store(int m, int j, const float4& v) const {
    const int offset = 8 * j * kKvLatentDim + 64 * m;
    const bool first = rows_left_ > 8 * j;
    const bool second = rows_left_ > 8 * j + 1;
    if (in_slot_) {
      float* at = static_cast<float*>(target_) + offset;
      if constexpr (Format::kPairedDims) {
        if (first) *reinterpret_cast<float2*>(at) = {v.x, v.z};
        if (second) *reinterpret_cast<float2*>(at + kKvLatentDim) = {v.y, v.w};
      } else {
        if (first) {
          at[0] = v.x;
          at[8] = v.z;
        }
        if (second) {
          at[kKvLatentDim] = v.y;
          at[kKvLatentDim + 8] = v.w;
        }
      }
      return;
    }
    using Out = typename Format::Out;
    auto* at = reinterpret_cast<uint32_t*>(static_cast<Out*>(target_) + offset);
    if constexpr (Format::kPairedDims) {
      if (first) at[0] = pack_out<Out>(v.x, v.z);
      if (second) at[kKvLatentDim / 2] = pack_out<Out>(v.y, v.w);
    } else {
      const uint32_t low = transpose_matrix(pack_out<Out>(v.x, v.y));   // dims 0…7 of the warp's sixteen
      const uint32_t high = transpose_matrix(pack_out<Out>(v.z, v.w));  // 8…15
      if (first) {
        at[0] = low;
        at[4] = high;
      }
    }
  }

 private:
  bool in_slot_;
  int rows_left_;
  void* target_;
};

template <typename Format>
__device__ __forceinline__ void store_lse(const DecodeArgs& args, const DecodePiece& piece, int row,
                                          const BlockFacts& facts) {
  if (row >= args.rows) return;
  const float lse = facts.sum > 0.0F ? facts.maximum + log2f(facts.sum) - Format::kWeightLog2 : -INFINITY;
  if (piece.slot >= 0) {
    args.partial_lse[int64_t{piece.slot} * args.rows + row] = lse;
  } else if (args.lse != nullptr) {
    args.lse[int64_t{piece.seq} * args.rows + row] = lse * kLn2;
  }
}

// Both warpgroups' facts of row n joined, and what each one's values are multiplied by.
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

// The units of this block, from all blocks of the cluster. `joins` pieces came before.
template <typename Format, int kN>
__device__ __forceinline__ void join_cluster(const DecodeArgs& args, const DecodePiece& piece,
                                             const Member& member, JoinShared<kN>& shared, std::byte* receive,
                                             State<kN>& state, uint32_t joins) {
  constexpr int kQuads = kN / 16;  // of a unit: four values a thread
  constexpr int kThreadBytes =
      8 * kQuads;  // and bf16 on the way: half of the traffic, which is what it costs
  constexpr int kUnitBytes = 128 * kThreadBytes;
  using Packed = std::conditional_t<kQuads == 1, uint2, uint4>;
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = thread / 128;
  const int units_log2 = 4 - member.cluster_log2;
  const int units = 1 << units_log2;  // of a block
  if (joins == 0) {
    cluster_wait();  // every block has begun
  } else {
    mbarrier_wait(&shared.released, (joins - 1) & 1U);
  }
  if (thread == 0) mbarrier_arrive_expect_tx(&shared.received, kUnits * kUnitBytes + member.cluster * kN * 8);
  const uint32_t own = shared_address(receive) + thread % 128 * kThreadBytes;
  const uint32_t received = shared_address(&shared.received);
#pragma unroll
  for (int i = 0; i < kMTiles / 2; ++i) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = 2 * (warpgroup * (kMTiles / 2) + i) + half;
      const int target = unit >> units_log2;
      const int place = (member.rank << units_log2) + (unit & (units - 1));
      const uint32_t barrier = address_in_block(received, target);
      const float* v = state.output[i] + 4 * half * kQuads;
      Packed packed;
      packed.x = pack_bf16(v[0], v[1]);
      packed.y = pack_bf16(v[2], v[3]);
      if constexpr (kQuads == 2) {
        packed.z = pack_bf16(v[4], v[5]);
        packed.w = pack_bf16(v[6], v[7]);
      }
      store_async(address_in_block(own + place * kUnitBytes, target), packed, barrier);
    }
  }
#pragma unroll 1
  for (int k = thread; k < member.cluster * kN; k += kConsumers) {
    float factors[kWarpgroups];
    const BlockFacts facts = joined_facts(shared, k % kN, factors);
    store_async_facts(address_in_block(shared_address(&shared.blocks[member.rank][k % kN]), k / kN), facts,
                      address_in_block(received, k / kN));
  }
  mbarrier_wait(&shared.received, joins & 1U);

  // A block's weight for each row: sixteen threads a row.
  const int source = thread % kMaxCluster;
#pragma unroll
  for (int n = thread / kMaxCluster; n < kN; n += kConsumers / kMaxCluster) {
    const BlockFacts facts = source < member.cluster ? shared.blocks[source][n] : BlockFacts{-INFINITY, 0.0F};
    float top = facts.maximum;
#pragma unroll
    for (int d = kMaxCluster / 2; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, d));
    const float weight = exp2_fast(facts.maximum - (top == -INFINITY ? 0.0F : top));
    float total = weight * facts.sum;
#pragma unroll
    for (int d = kMaxCluster / 2; d > 0; d /= 2) total += __shfl_xor_sync(0xffffffffU, total, d);
    shared.blocks[source][n].sum = total > 0.0F ? __fdividef(weight, total) : 0.0F;
    if (source == 0 && member.rank == 0) store_lse<Format>(args, piece, member.first_row + n, {top, total});
  }
  named_barrier_sync(kAllConsumers, kConsumers);
  const int column = 2 * (thread % 4);
#pragma unroll 1
  for (int place = warpgroup; place < units; place += kWarpgroups) {
    const int unit = (member.rank << units_log2) + place;
    const std::byte* values = receive + place * kUnitBytes + thread % 128 * kThreadBytes;
    const BlockFacts* facts = &shared.blocks[0][8 * (unit % 2 * kQuads) + column];
    float4 sum[kQuads] = {};
#pragma unroll 4
    for (int block = 0; block < member.cluster; ++block) {
      const Packed packed = *reinterpret_cast<const Packed*>(values);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        float2 low = unpack_bf16(packed.x);
        float2 high = unpack_bf16(packed.y);
        if constexpr (kQuads == 2) {
          if (q == 1) {
            low = unpack_bf16(packed.z);
            high = unpack_bf16(packed.w);
          }
        }
        const float4 w = *reinterpret_cast<const float4*>(facts + 8 * q);
        sum[q] = {sum[q].x + w.y * low.x, sum[q].y + w.w * low.y, sum[q].z + w.y * high.x,
                  sum[q].w + w.w * high.y};
      }
      values += units * kUnitBytes;
      facts += kN;
    }
    const ResultStore<Format> result(args, piece, member.first_row, unit / 2, unit % 2 * kQuads);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) result.store(0, q, sum[q]);
  }
  named_barrier_sync(kAllConsumers, kConsumers);
  if (thread < member.cluster) mbarrier_arrive_remote(&shared.released, thread);
}

// `scratch`: where kScratchTiles tiles of the ring begin that are the consumers' for this join. `mixed`: the
// warpgroups have something of each other's m-tiles.
template <int kN>
inline constexpr int kScratchTiles = kN / 4;

template <typename Format, int kN>
__device__ __forceinline__ void join(const DecodeArgs& args, const DecodePiece& piece, const Member& member,
                                     JoinShared<kN>& shared, const TileRing& ring, const TileCursor& scratch,
                                     std::byte* receive, State<kN>& state, uint32_t joins, bool mixed) {
  constexpr int kQuads = kN / 8;  // of an m-tile: 16 bytes a thread
  constexpr int kHalf = kMTiles / 2;
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = thread / 128;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  const int column = 2 * (lane % 4);

#pragma unroll
  for (float& v : state.sum) {
#pragma unroll
    for (int d = 4; d < 32; d *= 2) v += __shfl_xor_sync(0xffffffffU, v, d);
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
  // The warpgroup's own m-tiles to the registers 0 … 3, the others' to 4 … 7.
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
#pragma unroll
    for (int k = 0; k < kN / 2; ++k) {
      const float low = state.output[i][k];
      const float high = state.output[i + kHalf][k];
      state.output[i][k] = warpgroup == 0 ? low : high;
      state.output[i + kHalf][k] = warpgroup == 0 ? high : low;
    }
  }
  const auto scratch_at = [&](int giver, int i, int q) {
    const int block = (giver * kHalf + i) * kQuads + q;  // of 2 KB
    return reinterpret_cast<float4*>(ring.tiles + ring.ahead(scratch, block / 4).slot * kTileBytes +
                                     block % 4 * 2048 + thread % 128 * 16);
  };
  ring.wait_issued(ring.ahead(scratch, kScratchTiles<kN> - 1));
  if (mixed) {
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float* v = state.output[kHalf + i] + 4 * q;
        *scratch_at(warpgroup, i, q) = {v[0], v[1], v[2], v[3]};
      }
    }
  }
  named_barrier_sync(kAllConsumers, kConsumers);

  BlockFacts facts[kN / 4];
  if (mixed || member.cluster == 1) {  // else both warpgroups' values have one maximum
    float own_factor[kN / 4], other_factor[kN / 4];
#pragma unroll
    for (int r = 0; r < kN / 4; ++r) {
      float factors[kWarpgroups];
      facts[r] = joined_facts(shared, r / 2 * 8 + column + r % 2, factors);
      const float inverse = member.cluster > 1    ? 1.0F
                            : facts[r].sum > 0.0F ? __fdividef(1.0F, facts[r].sum)
                                                  : 0.0F;
      own_factor[r] = (warpgroup == 0 ? factors[0] : factors[1]) * inverse;
      other_factor[r] = (warpgroup == 0 ? factors[1] : factors[0]) * inverse;
    }
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float4 other = mixed ? *scratch_at(warpgroup ^ 1, i, q) : float4{0.0F, 0.0F, 0.0F, 0.0F};
        float* v = state.output[i] + 4 * q;
        v[0] = v[0] * own_factor[2 * q] + other.x * other_factor[2 * q];
        v[1] = v[1] * own_factor[2 * q + 1] + other.y * other_factor[2 * q + 1];
        v[2] = v[2] * own_factor[2 * q] + other.z * other_factor[2 * q];
        v[3] = v[3] * own_factor[2 * q + 1] + other.w * other_factor[2 * q + 1];
      }
    }
  }
  // The tiles that the other warpgroup wrote are read.
  fence_proxy_async_shared();
  __syncwarp();
  if (lane < kScratchTiles<kN> / 2)
    mbarrier_arrive(&ring.empty[ring.ahead(scratch, (warpgroup ^ 1) * (kScratchTiles<kN> / 2) + lane).slot]);

  if (member.cluster > 1) {
    join_cluster<Format, kN>(args, piece, member, shared, receive, state, joins);
    return;
  }
  const ResultStore<Format> result(args, piece, member.first_row, warpgroup * kHalf, 0);
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float* v = state.output[i] + 4 * q;
      result.store(i, q, {v[0], v[1], v[2], v[3]});
    }
  }
  if (thread < 4) {
#pragma unroll
    for (int r = 0; r < kN / 4; ++r)
      store_lse<Format>(args, piece, member.first_row + r / 2 * 8 + column + r % 2, facts[r]);
  }
}

}  // namespace hadal::cuda::swapped
