// What the swapped decode kernel (decode_swapped.cuh) and its cache formats share: the ring of tiles, and the
// contract of a Format.
//
// Everything of a page comes as tiles of [64 keys][128 bytes], one key a row, 128-byte swizzle, in one ring
// of 8 KB tiles: tile 0 the rope part, tiles 1 … kTiles − 1 the latents in order. A warpgroup works on whole
// pages: scores Sᵀ[64 keys × kN rows] = K·Qᵀ, weights, Oᵀ[512 × kN] += Vᵀ·Pᵀ. kN (16 or 32) is the number of
// rows of the tile; both products are of shape m64, their accumulators as wgmma.cuh says: register
// 4·j + 2·h + c of thread (warp w, lane l) is
//   scores   key 16·w + 8·h + l / 4 of the page                             of row 8·j + 2·(l % 4) + c
//   output   dim 64·m + 16·w + 8·h + l / 4 (kPairedDims: + 2·(l / 4) + h)   of the same row
//
// A Format is a struct of constants and static functions; a page's work is its own from scores to output:
//   kTiles               ring tiles of a page
//   kAuxBytes            more bytes of a page (0, or a multiple of 128), in a buffer of the page's own
//   kPairedDims          see above: how the rows of an m-tile of the output are permuted
//   kWeightLog2          weights, row sums and outputs are 2^kWeightLog2 times the true ones
//   Out                  bf16 or f16: of the queries and the output
//   Maps                 plain struct of CUtensorMap, a kernel parameter
//   query_bytes<kN>()    of the queries in shared memory with whatever belongs to them, a multiple of 1024
//   weight_bytes<kN>()   of one warpgroup's weights, a multiple of 1024
//   maps(args)           host: the tensor maps
//   load(maps, tile, page_id, target, aux, barrier, policy)
//                        one thread: barrier's one arrival with the bytes of the tile (tile 0: and of aux),
//                        then the copies
//   prepare_queries<kN>(args, seq, first_row, queries, thread)
//                        all kConsumers threads: rows first_row … + kN − 1 of a sequence, those from
//                        args.rows on zero. The caller fences (fence_proxy_async_shared) and joins them.
//   RowFacts<kN>         what a thread keeps of its rows for a piece; row_facts<kN>(args, queries) after that
//   attend<kN>(state, facts, page, work)
//                        a warpgroup, one page: updates the state. It waits for the tiles that it reads and
//                        frees every one of them, tile 0 too, as soon as it is read no more; no product is in
//                        flight at its end. Keys from work.valid on may hold anything, NaN too, and count
//                        for nothing. It has the named barrier work.barrier (128 threads) for itself.
//   kPairs               it has attend_pair<kN>(state, facts, page, work, warpgroup, given, taken): both
//                        warpgroups, one page, the last of a piece's odd number. Warpgroup w makes the scores
//                        of half of k, gives them to the other, and adds to the m-tiles 4·w … alone; it frees
//                        the tiles that it reads. Warpgroup 0 counts the weights in its sums. `given`: kN ·
//                        256 bytes to write, `taken`: those that the other one gave, after kAllConsumers.
#pragma once

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"

namespace hadal::cuda::swapped {

inline constexpr int kWarpgroups = 2;  // that consume pages, in turn
inline constexpr int kConsumers = kWarpgroups * 128;
inline constexpr int kAllConsumers = 1;  // named barriers; 2 and 3: within a warpgroup
inline constexpr int kTileBytes = kPageSize * 128;
inline constexpr int kMTiles = kKvLatentDim / 64;

// barrier   arrivals                       guards
// full[s]   1 + bytes                      the tile in slot s
// empty[s]  4, the warps of a warpgroup    slot s may be written again
struct TileRing {
  std::byte* tiles;  // [slots] of kTileBytes
  std::byte* aux;    // [num_aux] of Format::kAuxBytes
  Mbarrier* full;
  Mbarrier* empty;
  uint32_t slots;
  uint32_t num_aux;
};

// A place in the ring.
struct TileCursor {
  uint32_t slot = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ TileCursor at(const TileRing& ring, uint32_t ahead) const {
    const uint32_t next = slot + ahead;  // ahead ≤ slots
    return next >= ring.slots ? TileCursor{next - ring.slots, phase ^ 1U} : TileCursor{next, phase};
  }
};

// A page in the ring, for the 128 threads of the warpgroup that has it.
struct Page {
  const TileRing& ring;
  TileCursor first;
  std::byte* aux;

  __device__ __forceinline__ std::byte* tile(int i) const {
    return ring.tiles + first.at(ring, i).slot * kTileBytes;
  }
  // Until tile i has arrived.
  __device__ __forceinline__ void wait(int i) const {
    const TileCursor at = first.at(ring, i);
    mbarrier_wait(&ring.full[at.slot], at.phase);
  }
  // The same by names; each waits, and gives the address in shared memory.
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
  __device__ __forceinline__ void release_rope() const { free(0); }
  __device__ __forceinline__ void release_latent(int i) const { free(1 + i); }
  // Tile i is read no more by this warp. What threads wrote to it, they have fenced.
  __device__ __forceinline__ void free(int i) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&ring.empty[first.at(ring, i).slot]);
  }
};

// What a thread of a warpgroup knows after some pages, over the pages of its warpgroup.
template <int kN>
struct State {
  float output[kMTiles][kN / 2];
  // Of the thread's rows 8·j + 2·(l % 4) + c, number 2·j + c.
  float maximum[kN / 4];  // base 2, of score · scale_log2 (+ log2 of a key's scale), over all keys
  float sum[kN / 4];      // of exp2(score − maximum), over the thread's own keys
};

// A page's circumstances.
template <int kN>
struct PageWork {
  const std::byte* queries;
  std::byte* weights;  // of this warpgroup: weight_bytes<kN>()
  float* exchange;     // of this warpgroup: [4 warps][kN]
  float scale_log2;    // softmax_scale · log2 e
  int barrier;         // named barrier of this warpgroup
  int valid;           // keys that the page has, or more
  bool masked;         // some row of the tile may not see all 64 keys
  int seen[kN / 4];    // if masked: keys of this page that the thread's row sees (may be < 0 or > 64)
};

}  // namespace hadal::cuda::swapped
