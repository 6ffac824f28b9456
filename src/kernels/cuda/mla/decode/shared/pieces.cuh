// Walks the runs of pages that the plan gives one block; the producer and the consumers of a decode kernel
// make the same walk.
#pragma once

#include <type_traits>

#include "kernels/cuda/common/math.cuh"
#include "kernels/cuda/common/tma.cuh"
#include "kernels/cuda/mla/decode/decode.h"

namespace hadal::cuda {

// Returns a tensor map of records like make_tensor_map, but with an L2 promotion of 128 bytes. A box is at
// most 128 bytes wide, and the bytes beside it belong to another load. With a promotion of 256 bytes both
// loads would fetch them, and memory-bound calls take 5 to 8 % longer.
template <int kRank, typename T>
CUtensorMap make_record_map(const T* base, const int64_t (&sizes)[kRank], const int64_t (&strides)[kRank - 1],
                            const int (&box)[kRank],
                            CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  return make_tensor_map<kRank, T>(base, sizes, strides, box, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

// Returns a map of the queries in boxes of 64 columns × `rows`: float16 with a float16 cache, otherwise bf16.
template <KvFormat kFormat>
CUtensorMap decode_query_map(const DecodeArgs& args, int rows) {
  using T = std::conditional_t<kFormat == KvFormat::kF16, f16, bf16>;
  return make_tensor_map<2>(static_cast<const T*>(args.q), {kKvRowDim, int64_t{args.num_seqs} * args.rows},
                            {kKvRowDim}, {64, rows});
}
// Returns a map of a 16-bit pool as pages of 64 records, in boxes of 64 columns × `keys` of one page, with
// any strides. The number of pages is not a parameter of the op, so the map's size is the number of page ids.
template <KvFormat kFormat>
CUtensorMap decode_page_map(const DecodeArgs& args, int keys) {
  using T = std::conditional_t<kFormat == KvFormat::kF16, f16, bf16>;
  return make_record_map<3>(reinterpret_cast<const T*>(args.pool), {kKvRowDim, kPageSize, int64_t{1} << 31},
                            {args.record_stride / 2, args.page_stride / 2}, {64, keys, 1});
}

struct DecodePiece {
  int seq;
  int num_keys;    // keys of the whole sequence
  int begin_page;  // pages [begin_page, end_page); none for a sequence without keys
  int end_page;
  int slot;  // slot of the partial result; −1: it is the sequence's only piece and goes to `out`
  DecodeSequence split;
};

// Calls body(piece) for each piece of `part`, in order.
template <typename Body>
__device__ __forceinline__ void for_each_piece(const DecodeArgs& args, int part, Body body) {
  const DecodePart range = args.plan.parts[part];
  const int last_seq = min(range.end_seq, args.num_seqs - 1);
  int num_keys = range.num_keys;
  DecodeSequence split = range.split;
  int page = range.begin_page;
  for (int seq = range.begin_seq; seq <= last_seq; ++seq) {
    const int end = seq == range.end_seq ? range.end_page : (num_keys + kPageSize - 1) / kPageSize;
    if (seq == range.end_seq && page >= end) return;
    const int next = min(seq + 1, last_seq);  // loaded early, so that the reads overlap with this sequence
    const int next_keys = planned_keys(args.kv_len[next], args.index_topk);
    const DecodeSequence next_split = args.plan.sequences[next];
    do {
      DecodePiece piece{seq, num_keys, page, end, -1, split};
      if (split.split_pages > 0)
        piece.end_page = min(end, (page / split.split_pages + 1) * split.split_pages);
      if (split.num_splits > 1) {
        piece.slot =
            split.first_slot + (split.split_pages > 0 ? page / split.split_pages : part - split.first_part);
      }
      body(piece);
      page = piece.end_page;
    } while (page < end);
    num_keys = next_keys;
    split = next_split;
    page = 0;
  }
}

}  // namespace hadal::cuda
