// Computes MLA decode with the keys on the M side of wgmma, in tiles of 16 or 32 query rows, for any cache
// format (a Format, see mla/decode/swapped/page.cuh). It is memory-bound, or latency-bound at small batches.
// Query rows are the N side, where wgmma allows any multiple of 8, so few rows waste little of a product.
//
// Grid: it has num_parts × num_tiles × cluster blocks of two consuming warpgroups and a loading warp. The
// blocks of a cluster share the pages of each piece of their part: block r has the pages r, r + cluster, ….
// The two warpgroups of a block process its pages alternately, each with its own output in registers. So the
// softmax of one runs during the products of the other, and they are joined only at the end of the piece
// (mla/decode/swapped/join.cuh). If a sequence is split over parts, all blocks with one of its splits merge
// the splits at the end (mla/decode/swapped/merge.cuh).
//
// Warp 8 loads tiles into the ring as soon as slots are free, also across the ends of pieces. At the end of a
// piece it hands over kScratchTiles empty tiles for the join. With settled inputs it calls pdl_wait() only
// before the first page with records that are not settled, and never for up to kFreshRecords queries. Warps 9
// and 10 exchange a cluster's maxima and sums at a piece's end (mla/decode/swapped/join.cuh); 11 is idle.
//
// barrier        arrivals                 guards                                       phase
// full[slot]     1 + bytes                a tile has arrived                           each use of the slot
// empty[slot]    4, a warpgroup's warps   the slot's tile has been read                each use of the slot
// five more                               mla/decode/swapped/join.cuh                      each piece
// named 1        256                      queries written; join
// named 2, 3     128                      within a warpgroup: maxima, weights          each page
//
// With 16-bit caches, shared memory holds 9 KB of queries per eight rows and 128 bytes of weights per row and
// warpgroup. With clusters it also has 2 KB per row to receive results. The ring uses the rest, which is 14
// to 25 tiles. A thread has kN · 4 registers of output and kN / 2 of scores.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/mla/decode/swapped/join.cuh"
#include "kernels/cuda/mla/decode/swapped/merge.cuh"

namespace hadal::cuda::swapped {

inline constexpr int kThreads =
    kConsumers + 128;  // a third warpgroup, whose registers go to the consumers; one of its warps loads
inline constexpr int kMaxSlots = 32;

template <int kN>
struct SmallShared {
  MergeNotes notes;
  alignas(16) float exchange[kWarpgroups][4][kN];
  JoinShared<kN> join;
  Mbarrier full[kMaxSlots];
  Mbarrier empty[kMaxSlots];
  uint32_t issued;
};

// Describes the layout of shared memory: ring | weights | received values | queries | small | aux.
template <typename Format, int kN>
struct SharedLayout {
  static constexpr int kQueryBytes = Format::template query_bytes<kN>();
  static constexpr int kWeightBytes = Format::template weight_bytes<kN>();
  static constexpr int kSmallBytes = (sizeof(SmallShared<kN>) + 127) / 128 * 128;
  static_assert(kQueryBytes % 1024 == 0 && kWeightBytes % 1024 == 0);
  static_assert(kQueryBytes >= static_cast<int>(sizeof(MergeShared)), "the merge works where queries were");
  int receive_bytes;
  int slots;
  int num_aux;

  constexpr explicit __host__ __device__ SharedLayout(int cluster)
      : receive_bytes(cluster > 1 ? kUnits * Sender<kN>::kUnitBytes : 0), slots(0), num_aux(0) {
    const int rest = kMaxSharedBytes - kQueryBytes - kWarpgroups * kWeightBytes - kSmallBytes - receive_bytes;
    // A page's buffer is free again when the slot for its first tile is free.
    slots = rest / kTileBytes < kMaxSlots ? rest / kTileBytes : kMaxSlots;
    num_aux = (slots + 2 * (Format::kTiles - 1)) / Format::kTiles;
    while (slots * kTileBytes + num_aux * Format::kAuxBytes > rest) --slots;
  }
  constexpr __host__ __device__ int bytes() const {
    return slots * kTileBytes + kWarpgroups * kWeightBytes + receive_bytes + kQueryBytes + kSmallBytes +
           num_aux * Format::kAuxBytes;
  }
};

template <typename Format>
constexpr bool supports_pairs() {
  if constexpr (requires { Format::kPairs; }) {
    return Format::kPairs;
  } else {
    return false;
  }
}

struct NoFresh {};
template <typename Format>
struct FreshType {
  using Type = NoFresh;
};
template <typename Format>
requires requires {
  Format::kFreshRecords;
}
struct FreshType<Format> {
  using Type = typename Format::Fresh;
};
template <typename Format>
using FreshOf = typename FreshType<Format>::Type;
template <typename Format>
constexpr int fresh_records() {
  if constexpr (requires { Format::kFreshRecords; }) {
    return Format::kFreshRecords;
  } else {
    return 0;
  }
}

// Returns the number of pages of a piece that block `rank` of a cluster has.
__device__ __forceinline__ int pages_of_member(const DecodePiece& piece, const Member& member) {
  return (piece.end_page - piece.begin_page - member.rank + member.cluster - 1) >> member.cluster_log2;
}

// Reads the plan ahead of its use, to bring it into the L1. It is called by the loading warp, with settled
// inputs. The first page ids of a part are reached by three dependent reads, which run here while the block's
// barriers are initialised.
__device__ __forceinline__ void touch_plan(const DecodeArgs& args, const Member& member) {
  const DecodePart& range = args.plan.parts[member.part];
  if (range.begin_seq >= args.num_seqs || range.num_keys <= 0) return;
  const int page = range.begin_page + member.rank + (static_cast<int>(threadIdx.x) % 32) * member.cluster;
  if (page * kPageSize >= range.num_keys) return;
  const int32_t* id = args.page_table + args.seq_idx[range.begin_seq] * args.page_table_stride + page;
  [[maybe_unused]] int32_t unused;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(unused) : "l"(id));
}

// Loads the pages of all pieces. It is called by the loading warp, whose lane 0 issues the copies.
template <typename Format, int kN>
__device__ __forceinline__ void produce(const DecodeArgs& args, const typename Format::Maps& maps,
                                        const Member& member, const TileRing& ring) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // With one tile records are read once; with several, the blocks of the other tiles read them as well.
  const L2Policy policy = args.num_tiles > 1 ? L2Policy::kNormal : L2Policy::kEvictFirst;
  if (lane == 0) tma_prefetch_map(reinterpret_cast<const CUtensorMap*>(&maps));
  bool waited = !args.settled || args.q_len <= fresh_records<Format>();
  uint32_t aux = 0;
  TileCursor cursor;
  for_each_piece(args, member.part, [&](const DecodePiece& piece) {
    if (member.rank > 0 && is_for_one_block(piece, member)) return;
    const int count = pages_of_member(piece, member);
    const int first_page = piece.begin_page + member.rank;
    const int32_t* table =
        count > 0 ? args.page_table + args.seq_idx[piece.seq] * args.page_table_stride : nullptr;
    int32_t ids = 0;
    for (int i = 0; i < count; ++i) {
      const int page = first_page + i * member.cluster;
      if (i % 32 == 0) ids = i + lane < count ? table[page + lane * member.cluster] : 0;
      const int32_t id = __shfl_sync(0xffffffffU, ids, i % 32);
      if (!waited && (page + 1) * kPageSize > piece.num_keys - args.q_len) {
        pdl_wait();
        waited = true;
      }
      if (lane == 0) {
        for (int tile = 0; tile < Format::kTiles; ++tile) {
          const TileCursor at = ring.ahead(cursor, tile);
          mbarrier_wait(&ring.empty[at.slot], at.phase ^ 1U);
          Format::load(maps, tile, id, ring.tiles + at.slot * kTileBytes, ring.aux + aux * Format::kAuxBytes,
                       &ring.full[at.slot], policy);
          ring.note_issued();
        }
      }
      __syncwarp();
      cursor = ring.ahead(cursor, Format::kTiles);
      if (++aux == ring.num_aux) aux = 0;
    }
    if (lane == 0) {
      for (int tile = 0; tile < kScratchTiles<kN>; ++tile) {
        const TileCursor at = ring.ahead(cursor, tile);
        mbarrier_wait(&ring.empty[at.slot], at.phase ^ 1U);
        mbarrier_arrive(&ring.full[at.slot]);
        ring.note_issued();
      }
    }
    __syncwarp();
    cursor = ring.ahead(cursor, kScratchTiles<kN>);
  });
}

template <typename Format, int kN>
__device__ __forceinline__ void consume(const DecodeArgs& args, const Member& member, const TileRing& ring,
                                        std::byte* queries, std::byte* all_weights, std::byte* receive,
                                        SmallShared<kN>& small) {
  const int thread = static_cast<int>(threadIdx.x);
  const int warpgroup = __shfl_sync(0xffffffffU, thread / 128, 0);
  bool waited = !args.settled;
  uint32_t joins = 0;
  bool split = false;
  bool owes_scratch = false;
  TileCursor owed;
  uint32_t aux = 0;
  TileCursor cursor;
  if (thread == 0) small.notes.count = 0;
  if (waited) pdl_launch_dependents();
  const auto wait_once = [&] {
    if (waited) return;
    pdl_wait();
    pdl_launch_dependents();
    waited = true;
  };

  for_each_piece(args, member.part, [&](const DecodePiece& piece) {
    const bool alone = is_for_one_block(piece, member);
    if (alone && member.rank > 0) return;
    const int num_blocks = alone ? 1 : member.cluster;
    std::byte* partial =
        piece.slot >= 0 && args.merge_inside ? partial_of<kN>(args, piece.slot, member.tile) : nullptr;
    const int count = pages_of_member(piece, member);
    // With settled inputs, pages are already being loaded, and lack the records that the previous kernel
    // writes.
    const int fresh_from = piece.num_keys - args.q_len;
    const bool patched = args.settled && args.q_len <= fresh_records<Format>();
    const int fresh_page = max(fresh_from, 0) / kPageSize;
    const bool owns_fresh = patched && count > 0 && fresh_page < piece.end_page &&
                            (piece.num_keys - 1) / kPageSize >= piece.begin_page;
    if (owes_scratch) {  // the previous piece has not freed its scratch tiles yet
      ring.wait_scratch(owed, kScratchTiles<kN>);
      free_read_scratch<kN>(ring, owed);
    }
    int32_t fresh_ids[2] = {0, 0};
    if (owns_fresh) {
      const int32_t* table = args.page_table + args.seq_idx[piece.seq] * args.page_table_stride;
      fresh_ids[0] = table[fresh_page];
      fresh_ids[1] = table[(piece.num_keys - 1) / kPageSize];
    }
    [[maybe_unused]] FreshOf<Format> fresh{};
    if constexpr (fresh_records<Format>() > 0) {
      if (owns_fresh) Format::find_fresh(args, piece, fresh_ids, fresh_page, fresh);
    }
    wait_once();
    uint32_t before = 0;
    if (thread == 0 && partial != nullptr) before = read_arrivals(args, piece, member.tile);
    if constexpr (fresh_records<Format>() > 0) Format::load_fresh(fresh);
    if (count > 0) {
      // The queries may be overwritten here, because the join of the previous piece has synchronised all
      // consumers after their last read of its queries.
      Format::template prepare_queries<kN>(args, piece.seq, member.first_row, queries, thread);
      fence_proxy_async_shared();
    }
    named_barrier_sync(kAllConsumers, kConsumers);
    // All threads of this block have read the values received for the previous piece.
    if (joins > 0 && thread < num_blocks && num_blocks > 1)
      mbarrier_arrive_remote(&small.join.released, thread);
    [[maybe_unused]] const auto facts = Format::template row_facts<kN>(args, queries);

    State<kN> state;
#pragma unroll
    for (auto& tile : state.output) {
#pragma unroll
      for (float& v : tile) v = 0.0F;
    }
#pragma unroll
    for (int r = 0; r < kN / 4; ++r) {
      state.maximum[r] = -INFINITY;
      state.sum[r] = 0.0F;
    }
    PageWork<kN> work;
    work.args = &args;
    work.seq = piece.seq;
    work.queries = queries;
    work.weights = all_weights + warpgroup * Format::template weight_bytes<kN>();
    work.exchange = small.exchange[warpgroup][0];
    work.scale_log2 = args.scale_log2;
    work.barrier = 2 + warpgroup;
    const int seen_by_all = piece.num_keys - most_hidden<Format::kMasks>(args);
    // Both warpgroups share an odd page at the end.
    const bool odd = supports_pairs<Format>() && count % kWarpgroups != 0;
    const bool early = (num_blocks > 1 || partial != nullptr) && odd && count == 1;
    const Sender<kN> sender{member, num_blocks, small.join, receive, partial, joins, early};
    for (int i = 0; i < count; ++i) {
      const bool both = odd && i == count - 1;
      if (both || i % kWarpgroups == warpgroup) {
        const int first_key = (piece.begin_page + member.rank + i * member.cluster) * kPageSize;
        work.valid = piece.num_keys - first_key;
        find_seen<Format::kMasks>(args, member.first_row, first_key, seen_by_all, work);
        work.fresh_begin = patched ? fresh_from - first_key : kPageSize;
        const Page page{ring, cursor, ring.aux + aux * Format::kAuxBytes, ring.num_issued()};
        const TileCursor scratch = ring.ahead(cursor, Format::kTiles);
        const auto half_of = [&](int number) {
          const TileCursor at = ring.ahead(scratch, number * (kScratchTiles<kN> / kWarpgroups));
          ring.wait_issued(at);
          if constexpr (kSanitized) ring.wait_full(at);
          return ring.tiles + at.slot * kTileBytes;
        };
        // A warpgroup writes its scores to the tiles that the other warpgroup will write in the join, after
        // reading the scores.
        if constexpr (fresh_records<Format>() > 0) {
          std::byte* given = both ? half_of(warpgroup ^ 1) : nullptr;
          std::byte* taken = both ? half_of(warpgroup) : nullptr;
          Format::template attend_either<kN>(state, page, work, fresh, both, warpgroup, given, taken, sender);
        } else if (!both) {
          Format::template attend<kN>(state, facts, page, work);
        } else if constexpr (supports_pairs<Format>()) {
          Format::template attend_pair<kN>(state, facts, page, work, warpgroup, half_of(warpgroup ^ 1),
                                           half_of(warpgroup), sender);
        }
      }
      cursor = ring.ahead(cursor, Format::kTiles);
      if (++aux == ring.num_aux) aux = 0;
    }
    join<Format, kN>(args, piece, sender, ring, cursor, state, !supports_pairs<Format>() || count > 1);
    owes_scratch = sender.early;
    owed = cursor;
    cursor = ring.ahead(cursor, kScratchTiles<kN>);
    if (num_blocks > 1) ++joins;
    if (piece.slot >= 0 && args.merge_inside) {
      split = true;
      arrive_split(args, piece, member, kN, before, small.notes);
    }
  });
  wait_once();
  if (split) {
    merge_splits_noted<Format, kN>(args, thread, small.notes, *reinterpret_cast<MergeShared*>(queries));
  }
}

template <typename Format, int kN>
__global__ void __launch_bounds__(kThreads, 1)
    mla_decode_swapped_kernel(const __grid_constant__ DecodeArgs args,
                              const __grid_constant__ typename Format::Maps maps, int cluster) {
  using Layout = SharedLayout<Format, kN>;
  static_assert(Layout(kMaxCluster).slots >=
                    Format::kTiles + (supports_pairs<Format>() ? kScratchTiles<kN> / 2 + 1 : 0),
                "a page, and what its warpgroups give each other meanwhile");
  extern __shared__ __align__(1024) std::byte shared[];
  const Layout layout(cluster);
  std::byte* weights = shared + layout.slots * kTileBytes;
  std::byte* receive = weights + kWarpgroups * Layout::kWeightBytes;
  std::byte* queries = receive + layout.receive_bytes;
  auto& small = *reinterpret_cast<SmallShared<kN>*>(queries + Layout::kQueryBytes);
  const TileRing ring{shared,
                      queries + Layout::kQueryBytes + Layout::kSmallBytes,
                      small.full,
                      small.empty,
                      &small.issued,
                      static_cast<uint32_t>(layout.slots),
                      static_cast<uint32_t>(layout.num_aux)};
  const int cluster_log2 = __ffs(cluster) - 1;
  const int block = static_cast<int>(blockIdx.x) >> cluster_log2;
  const int tile = block % args.num_tiles;
  const Member member{block / args.num_tiles,
                      tile,
                      tile * kN,
                      static_cast<int>(blockIdx.x) & (cluster - 1),
                      cluster,
                      cluster_log2};

  if (threadIdx.x == 0) {
    for (int s = 0; s < layout.slots; ++s) {
      mbarrier_init(&small.full[s], 1);
      mbarrier_init(&small.empty[s], 4 * kWarpArrivals);
    }
    small.issued = 0;
    mbarrier_init(&small.join.summed, kConsumers);
    mbarrier_init(&small.join.weighed, kFactThreads);
    mbarrier_init(&small.join.received, 1);
    mbarrier_init(&small.join.facts_received, 1);
    mbarrier_init(&small.join.released, cluster);
    if (cluster > 1) {
      mbarrier_init_fence();
    } else {
      fence_proxy_async_shared();  // without a cluster this suffices for the copy engine, and costs less
    }
  } else if (threadIdx.x >= kConsumers && threadIdx.x < kConsumers + 32 && args.settled) {
    touch_plan(args, member);
  }
  __syncthreads();
  if (cluster > 1) cluster_arrive();              // waited for before the first join
  if (kSanitized && cluster > 1) cluster_wait();  // see wait_for_cluster
  if (!args.settled) pdl_wait();
  if (threadIdx.x < kConsumers) {
    set_max_registers_up<kN == 16 ? 224 : 232>();
    consume<Format, kN>(args, member, ring, queries, weights, receive, small);
  } else {
    set_max_registers_down<kN == 16 ? 56 : 40>();
    if (threadIdx.x < kConsumers + 32) {
      produce<Format, kN>(args, maps, member, ring);
    } else if (cluster > 1 && threadIdx.x < kConsumers + 32 + kFactThreads) {
      uint32_t joins = 0;
      for_each_piece(args, member.part, [&](const DecodePiece& piece) {
        if (is_for_one_block(piece, member)) return;
        exchange_facts<Format, kN>(args, piece, member, small.join, joins++,
                                   static_cast<int>(threadIdx.x) - kConsumers - 32);
      });
    }
  }
}

template <typename Format, int kN>
void launch_rows(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  const SharedLayout<Format, kN> layout(geometry.cluster);
  const int blocks = geometry.num_parts * geometry.num_tiles * geometry.cluster;
  launch_clusters<mla_decode_swapped_kernel<Format, kN>>(
      launch, geometry.cluster, dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
      static_cast<size_t>(layout.bytes()), args, Format::maps(args), geometry.cluster);
}

template <typename Format>
void launch_swapped(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  const int c = geometry.cluster;
  HADAL_CHECK(c >= 1 && c <= kMaxCluster && (c & (c - 1)) == 0, "cluster is {}; must be 1, 2, 4, 8 or 16", c);
  if (geometry.tile_rows == 16) {
    launch_rows<Format, 16>(args, geometry, launch);
  } else {
    HADAL_CHECK_EQ(geometry.tile_rows, 32);
    launch_rows<Format, 32>(args, geometry, launch);
  }
}

// Returns how many clusters of `cluster` blocks the device runs at once. The result is the same for every
// format, because the blocks of all formats fill a multiprocessor's shared memory.
template <typename Format>
int capacity(int cluster) {
  return resident_clusters<mla_decode_swapped_kernel<Format, 16>>(
      cluster, dim3(kThreads), static_cast<size_t>(SharedLayout<Format, 16>(cluster).bytes()));
}

}  // namespace hadal::cuda::swapped
