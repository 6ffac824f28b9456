// Says which records of a page the queries of a sequence see if the call has masks of the newest records
// (DeviceDecodeParams::newest_seen). Masks concern at most the last two pages of a sequence. Kernels read
// them again for each of these pages, because they have no registers in which to keep them. A kernel for
// calls with masks is an instantiation of its own (kMasks), because the registers and branches that masks
// need cost the other calls up to 6 %.
#pragma once

#include "kernels/cuda/mla/decode/decode.h"
#include "kernels/params/draft_tree.h"

namespace hadal::cuda {

static_assert(kMaxDraftNodes == kPageSize, "a mask and a page's records have equally many bits");

// Returns true if masks may hide records of a page. `valid` is the number of records from the page's first
// one to the sequence's end.
template <bool kMasks>
__device__ __forceinline__ bool may_hide(int valid) {
  return kMasks && valid < kPageSize + kMaxDraftNodes;
}

// Returns how many of a sequence's newest records some query may not see.
template <bool kMasks>
__device__ __forceinline__ int most_hidden(const DecodeArgs& args) {
  return kMasks ? kMaxDraftNodes : args.causal ? args.q_len - 1 : 0;
}

// Returns the mask of a page with 1 ≤ valid < 128: bit k is set if a query with the mask `newest` sees the
// page's record k.
constexpr uint64_t page_mask(uint64_t newest, int valid) {
  const int older = valid - kMaxDraftNodes;  // records of the page that the mask does not concern
  return older >= 0 ? newest << older | ((uint64_t{1} << older) - 1) : newest >> -older;
}

// Returns the mask of a page for one query of a sequence.
__device__ __forceinline__ uint64_t seen_by_query(const DecodeArgs& args, int seq, int query, int valid) {
  return page_mask(args.newest_seen[int64_t{seq} * args.q_len + query], valid);
}

// Returns which records of a page any query of the sequence sees. The others may hold anything, so kernels
// replace them by zeros.
__device__ __forceinline__ uint64_t seen_by_any(const DecodeArgs& args, int seq, int valid) {
  uint64_t newest = 0;
#pragma unroll 1
  for (int query = 0; query < args.q_len; ++query)
    newest |= args.newest_seen[int64_t{seq} * args.q_len + query];
  return page_mask(newest, valid);
}

}  // namespace hadal::cuda
