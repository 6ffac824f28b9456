// Declares the collectives of ranks on GPUs. Each is one or two exchanges of a DeviceCommunicator and the
// kernels that read the parts. Like exchanges, collectives are launched by the rank's thread, on all ranks in
// the same order, and a graph can capture them if comm.graphs() is true. Only builds with CUDA have them.
// Sizes and offsets are in bytes unless a name says otherwise.
#pragma once

#include <cstdint>
#include <span>

#include "comm/device_communicator.h"

namespace hadal {

// Describes rows of partial sums in 16 bits: [m, n], dense, n a multiple of 8.
struct PartialRows {
  int64_t m = 0, n = 0;
  bool f16 = false;  // otherwise bf16
};

// Before these calls each rank has written its rows to comm.partial(m · n · 2). The calls add the rows over
// ranks in float32, in order of rank, and round each sum once to 16 bits.
// - The one-shot all-reduce reads all parts and writes the sums to `sums` [m, n].
// - The small all-reduce is one kernel, which itself exchanges parts of up to cuda::kMaxLinesBytes. Its sums
//   have the same bits as those of the one-shot all-reduce, which it calls where
//   DeviceCommunicator::small_exchange returns null.
// - In the two-shot all-reduce each rank adds a slice of the rows, and then gathers the slices into `sums`
//   [m, n].
// - The reduce-scatter writes this rank's slice, which is rows [first, first + count) of slice_of_rows, to
//   `sums` [count, n].
void all_reduce_one_shot(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                         const cuda::Launch& launch);
void all_reduce_small(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                      const cuda::Launch& launch);
void all_reduce_two_shot(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                         const cuda::Launch& launch);
void reduce_scatter(DeviceCommunicator& comm, const PartialRows& rows, void* sums,
                    const cuda::Launch& launch);

// Rank `rank` of `num_ranks` has rows [first, first + count) of m: all slices have ceil(m / num_ranks) rows,
// except for the last ones, which may be shorter or empty.
struct RowSlice {
  int64_t first = 0, count = 0;
};
RowSlice slice_of_rows(int64_t m, int num_ranks, int rank);

// Stores mine [sizes[rank]] of all ranks one after another in `all`, in order of rank. Sizes may differ, and
// be 0; all ranks know all sizes.
void all_gather(DeviceCommunicator& comm, const void* mine, std::span<const int64_t> sizes, void* all,
                const cuda::Launch& launch);

// Rank a sends sizes[a · num_ranks + b] bytes to rank b. `send` holds the data that this rank sends, one part
// after another in order of receiver, and `receive` gets the parts for this rank in order of sender. All
// ranks know all sizes.
void all_to_all(DeviceCommunicator& comm, const void* send, std::span<const int64_t> sizes, void* receive,
                const cuda::Launch& launch);

// Joins rows that are cut by columns: rank r has written [num_rows, widths[r]] to comm.partial(), dense, and
// row i of `rows` [num_rows, row_bytes] receives the ranks' columns one after another. The widths add up to
// at least row_bytes; columns beyond it, which pad the last parts, are left out. With `owners` [num_rows], in
// device memory, only rows whose owner is this rank are written: logits go to the rank that samples them.
void gather_columns(DeviceCommunicator& comm, int64_t num_rows, std::span<const int64_t> widths,
                    const int32_t* owners, void* rows, int64_t row_bytes, const cuda::Launch& launch);

// Sets row i of `rows` [num_rows, row_bytes] to row i of the `mine` of rank owners[i], for example to the
// sampled token. `mine` has this shape on all ranks, and may be `rows`. Rows without an owner (< 0) are left
// as they are.
void gather_rows(DeviceCommunicator& comm, const void* mine, int64_t num_rows, int64_t row_bytes,
                 const int32_t* owners, void* rows, const cuda::Launch& launch);

}  // namespace hadal
