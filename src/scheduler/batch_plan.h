// Describes what one step computes: plain data that can be logged, recorded and replayed. The scheduler makes
// a plan, and the engine stages it. A plan contains ids, never pointers.
#pragma once

#include <cstdint>
#include <vector>

#include "base/request_id.h"
#include "cache/page_pool.h"

namespace hadal {

// Copies rows [0, num_rows) of page `source` to page `target`, in every layer. The copies of a step run in
// order, before any of its writes.
struct PageCopy {
  PageId source = -1;
  PageId target = -1;
  int32_t num_rows = 0;  // [1, 63]
};

enum class WorkKind : uint8_t {
  kPrefill,  // prompt tokens [begin, begin + num_tokens): the un-absorbed path
  // These are a few prompt tokens after a long prefix, on the absorbed path: the un-absorbed one would
  // compute keys and values of the whole prefix from its records (PromptCosts::absorbed_positions_per_row).
  kAbsorbedPrefill,
  // These are generated tokens, on the absorbed path: usually one, but more when those of a retracted request
  // are computed again, which gives the same bits as the first time.
  kDecode,
};

// WorkItem is a run of one request's tokens. A request that moves from prompt to recomputed tokens in one
// step has two items, the prefill first.
struct WorkItem {
  RequestId request_id = 0;
  int32_t slot = 0;  // its index among the running requests of its rank, [0, max_running_requests)
  WorkKind kind = WorkKind::kPrefill;
  int64_t begin = 0;       // absolute position of the first token
  int32_t num_tokens = 0;  // ≥ 1
  // Pages [first_new_page, + num_new_pages) of RankPlan::new_pages are appended to the slot's page table
  // before the step. With starts_slot the table (and everything else kept per slot) is emptied first.
  int32_t first_new_page = 0;
  int32_t num_new_pages = 0;
  bool starts_slot = false;
  bool samples = false;  // the last row's logits choose the next token
  // Marks the last work of a request that generates nothing (max_new_tokens 0): it has no sampling item, so
  // it ends without a token when this step completes.
  bool ends_request = false;
  // For kDecode of one token: it is the one that the previous step samples for this slot.
  bool input_from_previous = false;
  // For kDecode of a request that speculates: the item is the slot's newest token and up to num_tokens − 1 of
  // its drafts. `begin` is the least position that the newest token may have, because its position is not
  // known while the previous step is in flight. Rows that would sample beyond max_new_tokens are not
  // computed.
  bool verifies = false;
};

// RankPlan is the work of one data-parallel rank.
struct RankPlan {
  std::vector<PageCopy> copies;
  std::vector<WorkItem> items;    // by kind, each kind in order of admission
  std::vector<PageId> new_pages;  // see WorkItem
  bool empty() const { return items.empty(); }
};

struct BatchPlan {
  int64_t step = 0;             // 1, 2, …
  std::vector<RankPlan> ranks;  // one entry today; data parallelism will give each rank work of its own

  // These are for logs and metrics.
  int32_t num_new_requests = 0;    // admitted in this step
  int64_t num_prefill_tokens = 0;  // over all ranks
  int64_t num_decode_tokens = 0;
  int64_t num_cached_tokens = 0;  // prompt tokens that the new requests did not need to compute
  int64_t prompt_cost = 0;        // of the prompt and recomputed tokens, in rows (PromptCosts), rounded up
  // Requests that went back to the queue before this step's work because there were no pages for them. A
  // request may be retracted and start again in the same step.
  std::vector<RequestId> retracted;

  bool empty() const;  // no rank has anything to do
};

}  // namespace hadal
