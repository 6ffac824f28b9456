// The runs of pages that the plan gives one block: the loop that the producer and the consumers of a decode
// kernel walk in step.
#pragma once

#include "kernels/cuda/mla/decode.h"

namespace hadal::cuda {

struct DecodePiece {
  int seq;
  int num_keys;    // of the whole sequence
  int begin_page;  // pages [begin_page, end_page); none for a sequence without keys
  int end_page;
  int slot;  // of the partial result; −1: it is the sequence's only piece and goes to `out`
};

// body(piece) for each piece of `part`, in order.
template <typename Body>
__device__ __forceinline__ void for_each_piece(const DecodeArgs& args, int part, Body body) {
  const DecodePart range = args.plan.parts[part];
  const int last_seq = min(range.end_seq, args.num_seqs - 1);
  for (int seq = range.begin_seq; seq <= last_seq; ++seq) {
    const int num_keys = max(args.kv_len[seq], 0);
    int page = seq == range.begin_seq ? range.begin_page : 0;
    int end = (num_keys + kPageSize - 1) / kPageSize;
    if (seq == range.end_seq) {
      end = range.end_page;
      if (page >= end) return;
    }
    const DecodeSequence split = args.plan.sequences[seq];
    do {
      DecodePiece piece{seq, num_keys, page, end, -1};
      if (split.split_pages > 0)
        piece.end_page = min(end, (page / split.split_pages + 1) * split.split_pages);
      if (split.num_splits > 1) {
        piece.slot =
            split.first_slot + (split.split_pages > 0 ? page / split.split_pages : part - split.first_part);
      }
      body(piece);
      page = piece.end_page;
    } while (page < end);
  }
}

}  // namespace hadal::cuda
