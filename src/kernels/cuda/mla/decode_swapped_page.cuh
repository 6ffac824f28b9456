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
// A Format is a struct of constants and static functions:
//   kTiles               ring tiles of a page
//   kAuxBytes            more bytes of a page (0, or a multiple of 128), in a buffer of the page's own
//   kScaled              keys have scales: scores() gives true products all the same, but weights are
//                        exp(score) · scale of the key
//   kPairedDims          see above: how the rows of an m-tile of the output are permuted
//   Out                  bf16 or f16: of the queries and the output
//   Maps                 plain struct of CUtensorMap, a kernel parameter
//   query_bytes<kN>()    of the queries in shared memory with whatever belongs to them, a multiple of 1024
//   weight_bytes<kN>()   of one warpgroup's weights, a multiple of 1024
//   maps(args)           host: the tensor maps
//   load(maps, args, tile, page_id, target, aux, barrier, policy)
//                        one thread: barrier's one arrival with the bytes of the tile (of what belongs to aux
//                        too, with tile 0 or any other; each byte announced is copied), then the copies
//   prepare_queries<kN>(args, seq, first_row, queries, thread)
//                        all kConsumers threads: rows first_row … + kN − 1 of a sequence, those from
//                        args.rows on zero. The caller fences and joins the threads.
//   scores<kN>(s, queries, page)
//                        a warpgroup: s = the products q · k, complete; waits for all tiles of the page
//   KeyScales            with kScaled: of the thread's two keys h = 0, 1: float log2[2] (of the scale that
//                        goes with the weights) and inverse[2]; anything else that store_weights wants.
//                        Finite for every key, also where records beyond `valid` hold NaN.
//   key_scales(page, valid)
//                        the thread's KeyScales; keys of the page from `valid` on do not exist
//   store_weights<kN>(w, scales, weights, page)
//                        w (as scores lie; in [0, 1]; 0 for unseen keys) as operand B to shared memory. The
//                        caller fences and joins the warpgroup. `scales` is an empty struct without kScaled.
//   accumulate<kN>(acc, weights, page)
//                        acc[m] (m-tile m: dims 64·m …) += Vᵀ·Pᵀ; frees the tiles 1 … kTiles − 1, each after
//                        its last use (tile 0 the caller frees after scores); nothing in flight at the end.
//                        Records beyond the length have been zeroed in these tiles, weights there are 0.
#pragma once

#include "kernels/cuda/common/mbarrier.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/mla/decode_pieces.cuh"

namespace hadal::cuda::swapped {

inline constexpr int kWarpgroups = 2;  // that consume pages, in turn
inline constexpr int kConsumers = kWarpgroups * 128;
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
  // Tile i is read no more by this warp. What threads wrote to it, they have fenced.
  __device__ __forceinline__ void free(int i) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&ring.empty[first.at(ring, i).slot]);
  }
};

struct NoKeyScales {};

}  // namespace hadal::cuda::swapped
