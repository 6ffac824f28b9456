// Defines the interface between the swapped decode kernel (mla/decode/swapped/kernel.cuh) and its cache
// formats: the ring of tiles, and the contract of a Format.
//
// The data of a page is loaded as tiles of [64 keys][128 bytes], one key per row, with the 128-byte swizzle,
// to one ring of 8 KB tiles. Tile 0 is the rope part, and tiles 1 … kTiles − 1 are the latents in order. A
// warpgroup works on whole pages: scores Sᵀ[64 keys × kN rows] = K·Qᵀ, weights, Oᵀ[512 × kN] += Vᵀ·Pᵀ. kN (16
// or 32) is the number of query rows. Both products have shape m64, and wgmma.cuh gives the layout of their
// accumulators: register 4·j + 2·h + c of thread (warp w, lane l) is
//   scores   key 16·w + 8·h + l / 4 of the page                             of row 8·j + 2·(l % 4) + c
//   output   dim 64·m + 16·w + 8·h + l / 4 (kPairedDims: + 2·(l / 4) + h)   of the same row
//
// A Format is a struct of constants and static functions; it does all work on a page, from scores to output:
//   kTiles               ring tiles of a page
//   kAuxBytes            additional bytes of a page (0, or a multiple of 128), in a separate buffer per page
//   kPairedDims          see above: how the rows of an m-tile of the output are permuted
//   kWeightLog2          weights, row sums and outputs are 2^kWeightLog2 times the true ones
//   Out                  bf16 or f16: the type of the queries and the output
//   Maps                 plain struct of CUtensorMap, a kernel parameter
//   query_bytes<kN>()    bytes of the queries and their scales in shared memory, a multiple of 1024
//   weight_bytes<kN>()   bytes of one warpgroup's weights, a multiple of 1024
//   maps(args)           makes the tensor maps, on the host
//   load(maps, tile, page_id, target, aux, barrier, policy)
//                        called by one thread: arrives once at the barrier with the bytes of the tile (tile
//                        0: and of aux), then issues the copies
//   prepare_queries<kN>(args, seq, first_row, queries, thread)
//                        called by all kConsumers threads: stores rows first_row … + kN − 1 of a sequence;
//                        rows from args.rows on are zeros. The caller fences (fence_proxy_async_shared) and
//                        synchronises the threads.
//   RowFacts<kN>         data on its rows that a thread keeps for a piece; after prepare_queries,
//                        row_facts<kN>(args, queries) returns it
//   attend<kN>(state, facts, page, work)
//                        called by a warpgroup for one page: updates the state. It waits for the tiles that
//                        it reads and frees each of them, also tile 0, as soon as it has read it; no product
//                        is in flight at its end. Keys from work.valid on, and keys that masks hide from
//                        all queries, may hold anything, also NaN, and are ignored. No other code uses the
//                        named barrier work.barrier (128 threads).
//   kPairs               true: there is attend_pair<kN>(state, facts, page, work, warpgroup, given, taken,
//                        sender), called by both warpgroups for one page, the last of an odd number of pages
//                        of a piece. Warpgroup w computes the scores over half of k, writes them to `given`
//                        (kN · 256 bytes), synchronises at kAllConsumers and reads the other warpgroup's
//                        scores from `taken`. It then adds only to the m-tiles 4·w … 4·w + 3, and frees the
//                        tiles that it reads. Only warpgroup 0 adds the weights to its sums. With
//                        sender.early it calls sender.facts and sender.open, and sends each m-tile when it
//                        is complete (mla/decode/swapped/send.cuh).
//   kFreshRecords        (with attend_either) with settled inputs of up to this many queries, all pages may
//                        be loaded before the previous kernel has ended. find_fresh(args, piece, ids,
//                        first_page, fresh) finds the records that the previous kernel may still write,
//                        which are those of the last q_len positions (ids are the ids of the pages
//                        first_page and first_page + 1, which hold them); load_fresh(fresh) reads them
//   attend_either<kN>(state, page, work, fresh, both, warpgroup, given, taken, sender)
//                        replaces attend and attend_pair by one function. Records of the page from
//                        work.fresh_begin on (if < 64) are read from `fresh`.
#pragma once

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/sanitize.cuh"
#include "kernels/cuda/common/spin.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/mla/decode/shared/newest.cuh"
#include "kernels/cuda/mla/decode/shared/pieces.cuh"

namespace hadal::cuda::swapped {

inline constexpr int kWarpgroups = 2;  // warpgroups that process pages alternately
inline constexpr int kConsumers = kWarpgroups * 128;
inline constexpr int kAllConsumers = 1;  // named barriers; 2 and 3: within a warpgroup
inline constexpr int kTileBytes = kPageSize * 128;
inline constexpr int kMTiles = kKvLatentDim / 64;

// Waits until every block of the cluster has begun. racecheck treats the cluster's wait as a barrier of all
// the block's threads, but the threads do not call this function together. So a sanitizing build waits at the
// beginning of the kernel instead.
__device__ __forceinline__ void wait_for_cluster() {
  if constexpr (!kSanitized) cluster_wait();
}

// Holds a place in the ring.
struct TileCursor {
  uint32_t slot = 0;
  uint32_t phase = 0;
  uint32_t number = 0;  // the tile's number, over all laps
};

// Holds the ring of tiles.
//
// barrier   arrivals                       guards
// full[s]   1 + bytes                      the tile in slot s
// empty[s]  4 warps of a warpgroup         slot s may be written again
// The warpgroups process pages alternately, so the tile that a slot held in the previous lap may belong to
// the other warpgroup and still be in flight. The slot's barrier then has the parity for which a waiter of
// this lap waits. So a waiter first checks that its tile has been issued, which happens only after the
// previous lap's tile was consumed.
struct TileRing {
  std::byte* tiles;  // [slots] of kTileBytes
  std::byte* aux;    // [num_aux] of Format::kAuxBytes
  Mbarrier* full;
  Mbarrier* empty;
  uint32_t* issued;  // tiles so far
  uint32_t slots;
  uint32_t num_aux;

  __device__ __forceinline__ TileCursor ahead(const TileCursor& from,
                                              uint32_t count) const {  // count ≤ slots
    const uint32_t next = from.slot + count;
    const bool wraps = next >= slots;
    return {wraps ? next - slots : next, wraps ? from.phase ^ 1U : from.phase, from.number + count};
  }
  // Returns the number of issued tiles; called by whole warps.
  __device__ __forceinline__ uint32_t num_issued() const {
    uint32_t count = 0;
    if (threadIdx.x % 32 == 0) {
      asm volatile("atom.acquire.cta.shared::cta.add.u32 %0, [%1], 0;"
                   : "=r"(count)
                   : "r"(shared_address(issued))
                   : "memory");
    }
    return __shfl_sync(0xffffffffU, count, 0);
  }
  // Waits until the tile is issued, and returns the number of issued tiles. If the tile is handed over empty,
  // the consumers may use it from then on.
  __device__ __forceinline__ uint32_t wait_issued(const TileCursor& at) const {
    uint32_t count;
    do {
      count = num_issued();
    } while (static_cast<int32_t>(count - at.number) <= 0);
    return count;
  }
  // Waits like mbarrier_wait, but with fewer instructions, because the kernel contains many such waits.
  __device__ __forceinline__ void wait_full(const TileCursor& at) const {
    spin_until_in_tries([&] { return mbarrier_try_wait(&full[at.slot], at.phase); }, [] { __trap(); });
  }
  // Arrives, for one warp, at the `empty` barriers of the `count` ≤ 32 tiles from the `first`-th after `at`
  // on. The warp's lanes have read these tiles and have synchronised.
  __device__ __forceinline__ void free(const TileCursor& at, int first, int count) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if constexpr (kSanitized) {
      for (int i = 0; i < count; ++i) mbarrier_arrive(&empty[ahead(at, first + i).slot]);
    } else if (lane < count) {
      mbarrier_arrive(&empty[ahead(at, first + lane).slot]);
    }
  }
  // Waits until `count` tiles from `at` on are handed over empty.
  __device__ __forceinline__ void wait_scratch(const TileCursor& at, uint32_t count) const {
    wait_issued(ahead(at, count - 1));
    // racecheck follows the tiles' barriers, but not the counter of issued tiles.
    if constexpr (kSanitized) {
      for (uint32_t i = 0; i < count; ++i) wait_full(ahead(at, i));
    }
  }
  // Counts one more issued tile. It is called by the loading thread after it has issued the tile's copies, or
  // has handed the tile over empty.
  __device__ __forceinline__ void note_issued() const {
    asm volatile("red.release.cta.shared::cta.add.u32 [%0], 1;" ::"r"(shared_address(issued)) : "memory");
  }
};

// Gives the 128 threads of a warpgroup access to its page in the ring.
struct Page {
  const TileRing& ring;
  TileCursor first;
  std::byte* aux;
  mutable uint32_t issued;  // tiles that were issued when last checked

  __device__ __forceinline__ std::byte* tile(int i) const {
    return ring.tiles + ring.ahead(first, i).slot * kTileBytes;
  }
  // Waits until tile i has arrived.
  __device__ __forceinline__ void wait(int i) const {
    const TileCursor at = ring.ahead(first, i);
    if (static_cast<int32_t>(issued - at.number) <= 0) issued = ring.wait_issued(at);
    ring.wait_full(at);
  }
  // These wait for the rope tile, the scales or latent tile i, and return the address in shared memory.
  __device__ __forceinline__ uint32_t rope() const {
    wait(0);
    return shared_address(tile(0));
  }
  __device__ __forceinline__ uint32_t scales() const {
    wait(0);
    return shared_address(aux);
  }
  __device__ __forceinline__ uint32_t latent(int i) const {
    wait(1 + i);
    return shared_address(tile(1 + i));
  }
  // Frees tile i, which this warp has read. Its threads must have fenced their writes to it.
  __device__ __forceinline__ void free(int i) const {
    __syncwarp();
    if (kSanitized || threadIdx.x % 32 == 0) mbarrier_arrive(&ring.empty[ring.ahead(first, i).slot]);
  }
  // Does the same for the tiles i … i + count − 1, count ≤ 32.
  __device__ __forceinline__ void free(int i, int count) const {
    __syncwarp();
    ring.free(first, i, count);
  }
};

// Holds the state of a thread after some of its warpgroup's pages.
template <int kN>
struct State {
  float output[kMTiles][kN / 2];
  // Entry 2·j + c belongs to the thread's row 8·j + 2·(l % 4) + c.
  float maximum[kN / 4];  // maximum of score · scale_log2 (+ log2 of a key's scale), over all keys
  float sum[kN / 4];      // sum of exp2(score − maximum), over the thread's own keys
};

// Describes the work on one page.
template <int kN>
struct PageWork {
  const DecodeArgs* args;
  int seq;
  const std::byte* queries;
  std::byte* weights;  // this warpgroup's: weight_bytes<kN>()
  float* exchange;     // this warpgroup's: [4 warps][kN]
  float scale_log2;    // softmax_scale · log2 e
  int barrier;         // named barrier of this warpgroup
  int valid;           // keys from the page's first key to the sequence's end; may be > 64
  int fresh_begin;     // records from this one on are fresh (see kFreshRecords); may be < 0; ≥ 64: none
  bool masked;         // some row of the tile may not see all 64 keys
  // If masked: how many keys of this page the thread's rows see (may be < 0 or > 64). If the call has masks,
  // bit h is set if the row does not see the h-th of the thread's keys.
  int seen[kN / 4];
};

// Returns the first of a thread's two keys of a page; the other one is 8 further on.
__device__ __forceinline__ int key_of_thread() {
  return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
}

// Sets work.masked and work.seen. `seen_by_all` is the number of the sequence's keys that all queries see,
// and `first_key` the page's first key.
template <bool kMasks, int kN>
__device__ __forceinline__ void find_seen(const DecodeArgs& args, int first_row, int first_key,
                                          int seen_by_all, PageWork<kN>& work) {
  work.masked = first_key + kPageSize > seen_by_all;
  if (!work.masked) return;
#pragma unroll
  for (int r = 0; r < kN / 4; ++r) {
    const int row = first_row + r / 2 * 8 + 2 * (static_cast<int>(threadIdx.x) % 4) + r % 2;
    const int query = args.q_len == 1 ? 0 : min(row / args.num_heads, args.q_len - 1);
    if constexpr (kMasks) {
      const auto seen = seen_by_query(args, work.seq, query, work.valid) >> key_of_thread();
      work.seen[r] = static_cast<int>(~seen & 1 | ((~seen >> 8 & 1) << 1));
    } else {
      work.seen[r] = seen_by_all - first_key + (args.causal ? query : 0);
    }
  }
}

// Returns true if the r-th of a thread's rows does not see the h-th of its keys.
template <bool kMasks, int kN>
__device__ __forceinline__ bool is_hidden(const PageWork<kN>& work, int r, int h) {
  if constexpr (kMasks) {
    return work.masked && (work.seen[r] >> h & 1) != 0;
  } else {
    return work.masked && key_of_thread() + 8 * h >= work.seen[r];
  }
}

// Begins a page's softmax: it updates the running maxima of a thread's rows over the warpgroup's 64 keys. All
// 128 threads call it; the four warps exchange their maxima through work.exchange. `top` is the largest score
// of each row over the thread's own keys. `base` receives the new maxima, with −∞ as 0, and `factor` the
// factors for older sums and outputs. This function multiplies state.sum by them, the caller state.output.
// Returns true if a maximum of the thread's rows has grown.
template <int kN>
__device__ __forceinline__ bool renew_maxima(State<kN>& state, float (&top)[kN / 4], const PageWork<kN>& work,
                                             float (&base)[kN / 4], float (&factor)[kN / 4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
  const int column = 2 * (lane % 4);
#pragma unroll
  for (int distance = 4; distance < 32; distance *= 2) {
#pragma unroll
    for (float& v : top) v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, distance));
  }
  if (lane < 4) {
#pragma unroll
    for (int j = 0; j < kN / 8; ++j)
      *reinterpret_cast<float2*>(work.exchange + warp * kN + 8 * j + column) = {top[2 * j], top[2 * j + 1]};
  }
  named_barrier_sync(work.barrier, 128);
  bool grown = false;
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    float2 m = {state.maximum[2 * j], state.maximum[2 * j + 1]};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 other = *reinterpret_cast<const float2*>(work.exchange + w * kN + 8 * j + column);
      m = {fmaxf(m.x, other.x), fmaxf(m.y, other.y)};
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int r = 2 * j + c;
      const float now = c == 0 ? m.x : m.y;
      base[r] = now == -INFINITY ? 0.0F : now;
      grown = grown || now > state.maximum[r];
      factor[r] = exp2_fast(state.maximum[r] - base[r]);
      state.maximum[r] = now;
      state.sum[r] *= factor[r];
    }
  }
  return grown;
}

}  // namespace hadal::cuda::swapped
