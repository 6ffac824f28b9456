// Ends a piece in the swapped decode kernel. The two warpgroups of a block join their results in scratch
// tiles of the ring, and the blocks of a cluster join theirs over distributed shared memory. The result goes
// to `out` or to the piece's slot.
//
// Warpgroup w keeps the m-tiles 4·w … 4·w + 3 and hands over the others, so each warpgroup writes half of the
// output. Each of the eight m-tiles has two halves of rows, which gives sixteen units. A unit is the values
// of 128 threads as they lie in registers, unnormalised float32. In a cluster of C blocks, block b receives
// the 16 / C units from unit 16 / C · b on from all blocks, and the blocks' maxima and sums, by stores that
// complete bytes on its barriers. Block b adds these units. The slot of a split that this kernel merges
// (mla/decode/swapped/merge.cuh) holds units as well, followed by the rows' maxima and sums.
//
// If a block has one page, which both warpgroups share, the warpgroups have nothing to join, and units are
// sent while the next m-tiles are being computed (`early`). Meanwhile two idle warps of the loading warpgroup
// exchange the cluster's maxima and sums and compute weights from them.
//
// A piece that belongs to one block (is_for_one_block) needs none of these barriers.
//
// barrier         arrivals     guards                                                 phase
// summed          256          the block's maxima and sums are in shared memory       each piece
// facts_received  1 + bytes    all blocks' maxima and sums                            each piece
// weighed         64           the weights computed from them                         each piece
// received        1 + bytes    all blocks' units for this block                       each piece
// released        C            all blocks have read their units, which may be         each piece but the last
//                              overwritten
//
// A block arrives at `released` when it begins its next piece, so no block arrives at the barrier of a block
// that has ended.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/cluster.cuh"
#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/mla/decode/swapped/store.cuh"

namespace hadal::cuda::swapped {

// Adds the kCluster blocks' values of this block's units. Warpgroup h has the dims of half h. A thread makes
// sixteen reads with any cluster size, all of them in flight at once.
template <typename Format, int kN, int kCluster>
__device__ __forceinline__ void add_units(const DecodeArgs& args, const DecodePiece& piece,
                                          const Member& member, JoinShared<kN>& shared,
                                          const std::byte* receive, std::byte* partial, uint32_t joins) {
  using Values = Sender<kN>;
  constexpr int kQuads = Values::kQuads;
  constexpr int kPlaces = kMaxCluster / kCluster;
  constexpr int kHalves = kPlaces > 1 ? 2 : 1;  // halves of rows
  using Pairs = std::conditional_t<kQuads == 1, float2, float4>;
  const int thread = static_cast<int>(threadIdx.x);
  const int h = thread / 128;
  const int first_unit = member.rank * kPlaces;
  const int first_half = kHalves == 1 ? first_unit % 2 : 0;
  float2 weights[kHalves][kQuads][kCluster];
#pragma unroll
  for (int half = 0; half < kHalves; ++half) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const BlockFacts* facts = &shared.blocks[0][8 * ((first_half + half) * kQuads + q) + 2 * (thread % 4)];
#pragma unroll
      for (int block = 0; block < kCluster; ++block) {
        const float4 pair = *reinterpret_cast<const float4*>(facts + block * kN);
        weights[half][q][block] = make_float2(pair.y, pair.w);
      }
    }
  }
  const PairStore<Format> result(args, piece, member.first_row, h);
  const int offset = thread % 128 * Values::kThreadBytes + ((h != 0) != Values::turned() ? 8 * kQuads : 0);
  const std::byte* pairs = receive + offset;
  mbarrier_wait(&shared.received, joins & 1U);
  Pairs values[kPlaces][kCluster];
#pragma unroll
  for (int place = 0; place < kPlaces; ++place) {
#pragma unroll
    for (int block = 0; block < kCluster; ++block) {
      values[place][block] =
          *reinterpret_cast<const Pairs*>(pairs + (block * kPlaces + place) * Values::kUnitBytes);
    }
  }
#pragma unroll
  for (int place = 0; place < kPlaces; ++place) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      float2 sum = {0.0F, 0.0F};
#pragma unroll
      for (int block = 0; block < kCluster; ++block) {
        const Pairs& of_block = values[place][block];
        float2 v = {of_block.x, of_block.y};
        if constexpr (kQuads == 2) {
          if (q == 1) v = {of_block.z, of_block.w};
        }
        const float2 w = weights[place % kHalves][q][block];
        sum = {sum.x + w.x * v.x, sum.y + w.y * v.y};
      }
      const int unit = first_unit + place;
      if (partial != nullptr) {
        *reinterpret_cast<float2*>(partial + unit * Values::kUnitBytes + offset + 8 * q) = sum;
      } else {
        result.store(unit / 2, unit % 2 * kQuads + q, sum);
      }
    }
  }
}

// Waits until the barrier's phase is done, by try_wait with a long suspend time, because these warps wait for
// a whole piece while the other warps are busy.
__device__ __forceinline__ void sleep_until(Mbarrier* barrier, uint32_t parity) {
  const SpinDeadline deadline;
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2, %3;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity), "r"(10'000'000U)
        : "memory");
    if (deadline.has_passed()) __trap();
  }
}

// Sends the block's maxima and sums to the cluster, and computes the blocks' weights from the received maxima
// and sums while the values are being sent. It is called by the kFactThreads threads of the idle warps.
inline constexpr int kFactThreads = 64;
template <typename Format, int kN>
__device__ __forceinline__ void exchange_facts(const DecodeArgs& args, const DecodePiece& piece,
                                               const Member& member, JoinShared<kN>& shared, uint32_t joins,
                                               int thread) {
  sleep_until(&shared.summed, joins & 1U);
  __syncwarp();
  // The wait comes only here, because it invalidates the L1, from which other warps read the plan and page
  // ids.
  if (joins == 0) {
    wait_for_cluster();
  } else {
    mbarrier_wait(&shared.released, (joins - 1) & 1U);
  }
  if (thread == 0) mbarrier_arrive_expect_tx(&shared.facts_received, member.cluster * kN * 8);
  {
    const int n = thread % kN;
    float factors[kWarpgroups];
    const BlockFacts facts = joined_facts(shared, n, factors);
    const uint32_t at = shared_address(&shared.blocks[member.rank][n]);
    const uint32_t barrier = shared_address(&shared.facts_received);
#pragma unroll 1
    for (int block = thread / kN; block < member.cluster; block += kFactThreads / kN)
      store_async_facts(address_in_block(at, block), facts, address_in_block(barrier, block));
  }
  mbarrier_wait(&shared.facts_received, joins & 1U);
  constexpr int kLanes = kFactThreads / kN;  // lanes of a row
  constexpr int kEach = kMaxCluster / kLanes;
  const int n = thread / kLanes;
  BlockFacts facts[kEach];
  float top = -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int block = thread % kLanes + i * kLanes;
    facts[i] = block < member.cluster ? shared.blocks[block][n] : BlockFacts{-INFINITY, 0.0F};
    top = fmaxf(top, facts[i].maximum);
  }
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffU, top, d));
  const float base = top == -INFINITY ? 0.0F : top;
  float total = 0.0F;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    facts[i].maximum = exp2_fast(facts[i].maximum - base);
    total += facts[i].maximum * facts[i].sum;
  }
#pragma unroll
  for (int d = kLanes / 2; d > 0; d /= 2) total += __shfl_xor_sync(0xffffffffU, total, d);
  const bool merged = piece.slot >= 0 && args.merge_inside;  // the merge divides by the total of all splits
  const float inverse = merged ? 1.0F : total > 0.0F ? __fdividef(1.0F, total) : 0.0F;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int block = thread % kLanes + i * kLanes;
    if (block < member.cluster) shared.blocks[block][n].sum = facts[i].maximum * inverse;
  }
  if (member.rank == 0 && thread % kLanes == 0) {
    if (merged) {
      store_partial_facts<kN>(partial_of<kN>(args, piece.slot, member.tile), n, {top, total});
    } else {
      store_lse<Format>(args, piece, member.first_row + n, {top, total});
    }
  }
  mbarrier_arrive(&shared.weighed);
}

// Adds this block's units from all blocks of the cluster.
template <typename Format, int kN>
__device__ __forceinline__ void join_cluster(const DecodeArgs& args, const DecodePiece& piece,
                                             const Sender<kN>& sender) {
  const Member& member = sender.member;
  JoinShared<kN>& shared = sender.shared;
  mbarrier_wait(&shared.weighed, sender.joins & 1U);
  switch (member.cluster_log2) {
    case 1:
      return add_units<Format, kN, 2>(args, piece, member, shared, sender.receive, sender.partial,
                                      sender.joins);
    case 2:
      return add_units<Format, kN, 4>(args, piece, member, shared, sender.receive, sender.partial,
                                      sender.joins);
    case 3:
      return add_units<Format, kN, 8>(args, piece, member, shared, sender.receive, sender.partial,
                                      sender.joins);
    default:
      return add_units<Format, kN, 16>(args, piece, member, shared, sender.receive, sender.partial,
                                       sender.joins);
  }
}

// The consumers use this many tiles of the ring in a join.
template <int kN>
inline constexpr int kScratchTiles = kN / 4;

// Frees the tiles that the other warpgroup wrote, after this warpgroup has read them.
template <int kN>
__device__ __forceinline__ void free_read_scratch(const TileRing& ring, const TileCursor& scratch) {
  const int warpgroup = static_cast<int>(threadIdx.x) / 128;
  fence_proxy_async_shared();
  __syncwarp();
  ring.free(scratch, (warpgroup ^ 1) * (kScratchTiles<kN> / 2), kScratchTiles<kN> / 2);
}

// Ends a piece; called by all consumers. `scratch` is the first of their kScratchTiles tiles of the ring.
// `mixed` means that each warpgroup has values of the other warpgroup's m-tiles.
template <typename Format, int kN>
__device__ __forceinline__ void join(const DecodeArgs& args, const DecodePiece& piece,
                                     const Sender<kN>& sender, const TileRing& ring,
                                     const TileCursor& scratch, State<kN>& state, bool mixed) {
  constexpr int kQuads = kN / 8;  // 16-byte quads of an m-tile per thread
  constexpr int kHalf = kMTiles / 2;
  const Member& member = sender.member;
  JoinShared<kN>& shared = sender.shared;
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = thread / 128;
  const int lane = thread % 32;
  const int column = 2 * (lane % 4);
  const bool to_units = sender.num_blocks > 1 || sender.partial != nullptr;
  const auto store_facts = [&] {
    if (sender.num_blocks == 1 && sender.partial != nullptr && thread < kN) {
      float factors[kWarpgroups];
      store_partial_facts<kN>(sender.partial, thread, joined_facts(shared, thread, factors));
    }
  };
  if (sender.early) {  // the next piece frees this piece's scratch tiles
    if (sender.num_blocks == 1) {
      named_barrier_sync(kAllConsumers, kConsumers);
      store_facts();
    }
  } else {
    sender.facts(state, warpgroup);
    // The warpgroup's own m-tiles go to registers 0 … 3, the other's to 4 … 7.
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
      const int block = (giver * kHalf + i) * kQuads + q;  // block of 2 KB
      return reinterpret_cast<float4*>(ring.tiles + ring.ahead(scratch, block / 4).slot * kTileBytes +
                                       block % 4 * 2048 + thread % 128 * 16);
    };
    ring.wait_scratch(scratch, kScratchTiles<kN>);
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

    sender.open();
    store_facts();
    BlockFacts facts[kN / 4];
    if (mixed || !to_units) {  // otherwise both warpgroups' values are relative to the same maximum
      float own_factor[kN / 4], other_factor[kN / 4];
#pragma unroll
      for (int r = 0; r < kN / 4; ++r) {
        float factors[kWarpgroups];
        facts[r] = joined_facts(shared, r / 2 * 8 + column + r % 2, factors);
        const float inverse = to_units ? 1.0F : facts[r].sum > 0.0F ? __fdividef(1.0F, facts[r].sum) : 0.0F;
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
    free_read_scratch<kN>(ring, scratch);
    if (to_units) {
#pragma unroll
      for (int i = 0; i < kHalf; ++i) sender.values(warpgroup * kHalf + i, state.output[i]);
    }
    if (!to_units) {
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
  }
  if (sender.num_blocks > 1) join_cluster<Format, kN>(args, piece, sender);
}

}  // namespace hadal::cuda::swapped
