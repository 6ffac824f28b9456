// Implements the 16-bit formats of the swapped decode kernel, in which a page is nine tiles of 64 columns.
// The queries are nine tiles [kN rows][128 bytes], rope first, and the weights are one tile; both are K-major
// operands B.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/matrix.cuh"
#include "kernels/cuda/common/types.cuh"
#include "kernels/cuda/common/wgmma.cuh"
#include "kernels/cuda/mla/decode/swapped/send.cuh"

namespace hadal::cuda::swapped {

// T is bf16 or f16.
template <typename T, bool kHasMasks>
struct Format16 {
  static constexpr bool kMasks = kHasMasks;
  static constexpr int kTiles = kKvRowDim / 64;
  static constexpr int kAuxBytes = 0;
  static constexpr bool kPairedDims = false;
  static constexpr float kWeightLog2 = 0.0F;
  static constexpr bool kPairs = true;
  using Out = T;
  struct Maps {
    CUtensorMap pool;
  };

  template <int kN>
  static constexpr int query_bytes() {
    return kTiles * kN * 128;
  }
  template <int kN>
  static constexpr int weight_bytes() {
    return kN * 128;
  }

  // Makes the tensor map, with dimensions {columns, records of a page, pages}. The number of pages is not a
  // parameter of the op, so the map's size is more pages than any memory holds.
  static Maps maps(const DecodeArgs& args) {
    return {make_record_map<3>(reinterpret_cast<const T*>(args.pool),
                               {kKvRowDim, kPageSize, int64_t{1} << 24},
                               {args.record_stride / 2, args.page_stride / 2}, {64, kPageSize, 1})};
  }

  static constexpr __device__ int column_of(int tile) { return tile == 0 ? kKvLatentDim : (tile - 1) * 64; }

  static __device__ __forceinline__ void load(const Maps& maps, int tile, int32_t page_id, std::byte* target,
                                              std::byte* /*aux*/, Mbarrier* barrier, L2Policy policy) {
    mbarrier_arrive_expect_tx(barrier, kTileBytes);
    tma_load_3d(target, &maps.pool, barrier, column_of(tile), 0, page_id, policy);
  }

  template <int kN>
  static __device__ __forceinline__ void prepare_queries(const DecodeArgs& args, int seq, int first_row,
                                                         std::byte* queries, int thread) {
    // Thread t has the 16-byte chunks t % 16 + 16·i of the rows t / 16 + 16·r.
    constexpr int kRows = kN / 16;
    constexpr int kEach = (kTiles * 8 + 15) / 16;
    const int own_row = thread / 16;
    const int own_chunk = thread % 16;
    const auto* q = static_cast<const T*>(args.q) +
                    (int64_t{seq} * args.rows + first_row + own_row) * kKvRowDim + own_chunk * 8;
    const int rows_left = args.rows - first_row - own_row;
    const auto exists = [&](int i) { return i + 1 < kEach || own_chunk < 8; };
    uint4 values[kRows][kEach];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        values[r][i] = exists(i) && 16 * r < rows_left ? load_once(q + 16 * r * kKvRowDim + i * 128)
                                                       : make_uint4(0, 0, 0, 0);
      }
    }
    // The columns from 512 on, which are the last of a row (rope), go to tile 0.
    std::byte* target = queries + swizzle_128(own_row, own_chunk % 8);
    std::byte* latents = target + (1 + own_chunk / 8) * (kN * 128);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        std::byte* at = i + 1 < kEach ? latents + i * (2 * kN * 128) : target;
        if (exists(i)) *reinterpret_cast<uint4*>(at + 16 * r * 128) = values[r][i];
      }
    }
  }

  template <int kN>
  struct RowFacts {};
  template <int kN>
  static __device__ __forceinline__ RowFacts<kN> row_facts(const DecodeArgs& /*args*/,
                                                           const std::byte* /*queries*/) {
    return {};
  }

  // Holds the newest records of a sequence in chunks of 16 bytes. Thread t of a warpgroup has chunks t and
  // t + 128.
  static constexpr int kFreshRecords = 3;
  struct Fresh {
    const std::byte* at[2];  // null: there is none
    uint4 chunks[2];
  };
  // Computes the addresses of the thread's chunks, with settled inputs.
  static __device__ __forceinline__ void find_fresh(const DecodeArgs& args, const DecodePiece& piece,
                                                    const int32_t (&ids)[2], int first_page, Fresh& fresh) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int number = i * 128 + static_cast<int>(threadIdx.x) % 128;
      const int position = piece.num_keys - args.q_len + number / (kTiles * 8);
      const int32_t id = position / kPageSize == first_page ? ids[0] : ids[1];
      fresh.at[i] = position >= 0 && position < piece.num_keys
                        ? args.pool + id * args.page_stride + position % kPageSize * args.record_stride +
                              number % (kTiles * 8) * 16
                        : nullptr;
    }
  }
  static __device__ __forceinline__ void load_fresh(Fresh& fresh) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      fresh.chunks[i] = fresh.at[i] != nullptr ? load_once(fresh.at[i]) : make_uint4(0, 0, 0, 0);
  }

  // Computes a whole page (`both` false), or one warpgroup's half of a page that both warpgroups share.
  template <int kN>
  static __device__ __forceinline__ void attend_either(State<kN>& state, const Page& page,
                                                       const PageWork<kN>& work, const Fresh& fresh,
                                                       bool both, int warpgroup, std::byte* given,
                                                       const std::byte* taken, const Sender<kN>& sender) {
    constexpr int kHalf = kMTiles / 2;
    const int thread = static_cast<int>(threadIdx.x) % 128;
    const bool lower = !both || warpgroup == 0;
    const bool upper = !both || warpgroup == 1;
    const int first_tile = lower ? 0 : 1 + kHalf;
    const int end_tile = upper ? kTiles : 1 + kHalf;
    if (work.fresh_begin < kPageSize) patch<kN>(page, work, fresh, first_tile, end_tile);

    float s[kN / 2] = {};
    if (lower) add_scores<kN, 0, 1 + kHalf>(s, work.queries, page);
    if (upper) add_scores<kN, 1 + kHalf, kTiles>(s, work.queries, page);
    wgmma_wait<0>();
    wgmma_pin(s);
    if (lower) page.free(0);
    if (both) {
#pragma unroll
      for (int i = 0; i < kN / 8; ++i) {
        reinterpret_cast<float4*>(given)[i * 128 + thread] = {s[4 * i], s[4 * i + 1], s[4 * i + 2],
                                                              s[4 * i + 3]};
      }
      named_barrier_sync(kAllConsumers, kConsumers);
#pragma unroll
      for (int i = 0; i < kN / 8; ++i) {
        const float4 other = reinterpret_cast<const float4*>(taken)[i * 128 + thread];
        s[4 * i] += other.x;
        s[4 * i + 1] += other.y;
        s[4 * i + 2] += other.z;
        s[4 * i + 3] += other.w;
      }
    }
    softmax<kN>(state, s, work, lower ? 1.0F : 0.0F);
    store_weights<kN>(s, work.weights);
    const int first_m = lower ? 0 : kHalf;
    const int end_m = upper ? kMTiles : kHalf;
    if (may_hide<kMasks>(work.valid)) {
      zero_unseen<kN>(page, work, 1 + first_m, 1 + end_m);
    } else if (work.valid < kPageSize) {  // latents of records that do not exist become zeros: 0 · NaN is NaN
#pragma unroll 1
      for (int m = first_m; m < end_m; ++m) {
        std::byte* tile = page.tile(1 + m);
#pragma unroll 1
        for (int i = work.valid * 8 + thread; i < kPageSize * 8; i += 128)
          *reinterpret_cast<uint4*>(tile + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
    fence_proxy_async_shared();
    named_barrier_sync(work.barrier, 128);
    if (sender.early) {
      if (lower) {
        send_values<kN, 0, kHalf>(state, page, work, sender);
      } else {
        send_values<kN, kHalf, kMTiles>(state, page, work, sender);
      }
      return;
    }
    if (lower) add_values<kN, 0, kHalf>(state, page, work.weights);
    if (upper) add_values<kN, kHalf, kMTiles>(state, page, work.weights);
  }

 private:
  // Zeroes the records that masks hide from all queries, and those that do not exist, in the tiles [first,
  // end).
  template <int kN>
  static __device__ __forceinline__ void zero_unseen(const Page& page, const PageWork<kN>& work, int first,
                                                     int end) {
    const uint64_t seen = seen_by_any(*work.args, work.seq, work.valid);
#pragma unroll 1
    for (int tile = first; tile < end; ++tile) {
#pragma unroll 1
      for (int i = static_cast<int>(threadIdx.x) % 128; i < kPageSize * 8; i += 128) {
        if ((seen >> (i / 8) & 1) == 0)
          *reinterpret_cast<uint4*>(page.tile(tile) + i * 16) = make_uint4(0, 0, 0, 0);
      }
    }
  }

  // Stores the fresh records in the tiles [first, end) of a page that was loaded before they were written.
  template <int kN>
  static __device__ __forceinline__ void patch(const Page& page, const PageWork<kN>& work, const Fresh& fresh,
                                               int first, int end) {
#pragma unroll 1
    for (int tile = first; tile < end; ++tile) page.wait(tile);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int number = i * 128 + static_cast<int>(threadIdx.x) % 128;
      const int row = work.fresh_begin + number / (kTiles * 8);
      const int chunk = number % (kTiles * 8);
      const int tile = (chunk / 8 + 1) % kTiles;
      if (row >= 0 && row < min(work.valid, kPageSize) && tile >= first && tile < end)
        *reinterpret_cast<uint4*>(page.tile(tile) + swizzle_128(row, chunk % 8)) = fresh.chunks[i];
    }
    fence_proxy_async_shared();
    named_barrier_sync(work.barrier, 128);
  }

  // Adds the products over the tiles [kFirst, kEnd) to s, and does not wait for them. The loop is unrolled,
  // because otherwise every product waits for its descriptors.
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void add_scores(float (&s)[kN / 2], const std::byte* queries,
                                                    const Page& page) {
    const uint64_t q = wgmma_k_major(queries);
#pragma unroll
    for (int tile = kFirst; tile < kEnd; ++tile) {
      page.wait(tile);
      wgmma_fence();  // needed after every wait, because otherwise the compiler serialises the products
      const uint64_t k = wgmma_k_major(page.tile(tile));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        product<kN, false>(s, wgmma_advance(k, step * 32), wgmma_advance(q, tile * kN * 128 + step * 32),
                           true);
      }
    }
    wgmma_commit();
  }

  // Turns scores into weights, which are multiplied by `counted` (0 or 1) in the sums.
  template <int kN>
  static __device__ __forceinline__ void softmax(State<kN>& state, float (&s)[kN / 2],
                                                 const PageWork<kN>& work, float counted) {
    float top[kN / 4];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int r = i / 4 * 2 + i % 2;
      const int h = i / 2 % 2;
      s[i] *= work.scale_log2;
      if (is_hidden<kMasks>(work, r, h)) s[i] = -INFINITY;
      top[r] = h == 0 ? s[i] : fmaxf(top[r], s[i]);
    }
    float base[kN / 4];
    float factor[kN / 4];
    const bool grown = renew_maxima<kN>(state, top, work, base, factor);
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int r = i / 4 * 2 + i % 2;
      s[i] = exp2_fast(s[i] - base[r]);
      state.sum[r] += counted * s[i];
    }
    // Most pages of a long sequence do not change the maxima, so all factors are 1 and the output is not
    // rescaled.
    if (__any_sync(0xffffffffU, grown)) {
#pragma unroll
      for (int m = 0; m < kMTiles; ++m) {
#pragma unroll
        for (int i = 0; i < kN / 2; ++i) state.output[m][i] *= factor[i / 4 * 2 + i % 2];
      }
    }
  }

  // Stores the weights of the thread's keys 16·w + 8·h + l / 4; matrix (j, h) of 8 keys × 8 rows is stored
  // transposed.
  template <int kN>
  static __device__ __forceinline__ void store_weights(const float (&w)[kN / 2], std::byte* weights) {
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t row = lane / 16 * 8 + lane % 8;
    const uint32_t chunk = 2 * warp + lane / 8 % 2;
#pragma unroll
    for (int j = 0; j < kN / 8; j += 2) {
      store_matrix_x4_transposed(shared_address(weights) + swizzle_128(8 * j + row, chunk),
                                 pack_two<T>(w[4 * j], w[4 * j + 1]), pack_two<T>(w[4 * j + 2], w[4 * j + 3]),
                                 pack_two<T>(w[4 * j + 4], w[4 * j + 5]),
                                 pack_two<T>(w[4 * j + 6], w[4 * j + 7]));
    }
  }

  // Adds Vᵀ·Pᵀ to one m-tile, and does not wait for the products.
  template <int kRegisters>
  static __device__ __forceinline__ void add_m_tile(float (&output)[kRegisters], const std::byte* tile,
                                                    uint64_t weights) {
    const uint64_t v = wgmma_mn_major(tile, kTileBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      product<2 * kRegisters, true>(output, wgmma_advance(v, step * 2048), wgmma_advance(weights, step * 32),
                                    true);
    }
    wgmma_commit();
  }

  // Adds Vᵀ·Pᵀ to the m-tiles [kFirst, kEnd). A tile is freed as soon as the next one's products are in
  // flight, because freeing four at a time left memory idle (batch 128: 153 µs instead of 149).
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void add_values(State<kN>& state, const Page& page,
                                                    const std::byte* weights) {
    const uint64_t p = wgmma_k_major(weights);
    wgmma_fence();
#pragma unroll
    for (int m = kFirst; m < kEnd; ++m) {
      add_m_tile(state.output[m], page.tile(1 + m), p);
      if (m > kFirst) {
        wgmma_wait<1>();
        page.free(m);
        wgmma_fence();
      }
    }
    wgmma_wait<0>();
    page.free(kEnd);
#pragma unroll
    for (int m = kFirst; m < kEnd; ++m) wgmma_pin(state.output[m]);
  }

  // Does the same for a block's only page with sender.early: each m-tile is sent to the cluster's blocks, or
  // to the split's slot, while the next m-tiles are computed.
  template <int kN, int kFirst, int kEnd>
  static __device__ __forceinline__ void send_values(State<kN>& state, const Page& page,
                                                     const PageWork<kN>& work, const Sender<kN>& sender) {
    const uint64_t p = wgmma_k_major(work.weights);
    sender.facts(state, kFirst == 0 ? 0 : 1);
    sender.open();
    wgmma_fence();
#pragma unroll
    for (int m = kFirst; m < kEnd; ++m) {
      add_m_tile(state.output[m], page.tile(1 + m), p);
      if (m > kFirst) {
        wgmma_wait<1>();
        wgmma_pin(state.output[m - 1]);
        sender.values(m - 1, state.output[m - 1]);
        wgmma_fence();
      }
    }
    wgmma_wait<0>();
    wgmma_pin(state.output[kEnd - 1]);
    sender.values(kEnd - 1, state.output[kEnd - 1]);
    page.free(1 + kFirst, kEnd - kFirst);
  }

  template <int kN, bool kAMnMajor>
  static __device__ __forceinline__ void product(float (&d)[kN / 2], uint64_t a, uint64_t b,
                                                 bool accumulate) {
    if constexpr (std::is_same_v<T, f16>) {
      wgmma_f16<kN, kAMnMajor>(d, a, b, accumulate);
    } else {
      wgmma_bf16<kN, kAMnMajor>(d, a, b, accumulate);
    }
  }
};

}  // namespace hadal::cuda::swapped
