// Keeps chains of drafts. Grid: one thread for each item, but one block for each item in the kernels that
// copy hidden states, and one thread for each row in catch_up_rows. A kernel reads the results of the kernel
// before it, so it first waits for that kernel. Chains have few tokens, so one thread iterates over a whole
// chain.
#include "base/simulated_acceptance.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/speculation/rows.cuh"

namespace hadal::cuda {
namespace {

constexpr int kThreads = 128;

__device__ int item_of_thread() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

__global__ void __launch_bounds__(kThreads)
    catch_up_rows_kernel(const Chains c, int stride, const ChainRows rows, int32_t* hidden_rows,
                         int32_t* logit_rows) {
  pdl_wait();
  const int row = item_of_thread();
  if (row >= c.num_items * stride) return;
  const int i = row / stride;
  const int r = row % stride;
  const ChainItem item = c.items[i];
  const int64_t length = item.slot < 0 || item.verifies == 0 ? 0 : c.lengths[item.slot];
  const int64_t first = length - 1 - item.num_waiting;
  const bool any = item.num_waiting > 0 && length > 0 && first >= 0;
  if (r == 0) {
    logit_rows[i] = row + (any ? item.num_waiting - 1 : 0);
    c.sample_rows[i] = sample_row(any ? item.slot : -1, i, length, -1);
  }
  hidden_rows[row] = 0;
  if (!any || r >= item.num_waiting) return write_padding(rows, row);
  const int64_t position = first + r;
  const int64_t waiting = int64_t{item.slot} * c.waiting_rows + position % c.waiting_rows;
  hidden_rows[row] = static_cast<int32_t>(waiting);
  write_row(c, rows, row, item.seq_idx, position, c.waiting_next[waiting]);
}

__global__ void __launch_bounds__(kThreads)
    keep_waiting_kernel(const Chains c, const uint16_t* target_hidden) {
  pdl_wait();
  const int64_t i = blockIdx.x;
  const ChainItem item = c.items[i];
  if (item.slot < 0 || item.verifies == 0 || c.num_rows[i] == 0) return;
  const int32_t token = c.results[i].token;
  if (token < 0) return;
  const int64_t waiting = int64_t{item.slot} * c.waiting_rows + (c.positions[i] - 1) % c.waiting_rows;
  if (threadIdx.x == 0) c.waiting_next[waiting] = token;
  auto* to = static_cast<uint16_t*>(c.waiting_hidden) + waiting * c.hidden_size;
  const uint16_t* from = target_hidden + int64_t{item.first_row} * c.hidden_size;
  for (int64_t j = threadIdx.x; j < c.hidden_size; j += blockDim.x) to[j] = from[j];
}

__global__ void __launch_bounds__(kThreads) begin_chains_kernel(const Chains c) {
  pdl_wait();
  const int i = item_of_thread();
  if (i >= c.num_items) return;
  for (int depth = 0; depth < c.width; ++depth) c.results[depth * c.num_items + i] = {-1, 0, 0.0F, 0};
  const ChainItem item = c.items[i];
  int64_t num_rows = item.slot < 0 ? 0 : 1;
  int64_t position = item.position;
  if (item.slot >= 0 && item.verifies != 0) {
    const int64_t length = c.lengths[item.slot];
    num_rows = length == 0 ? 0 : item.position - (length - 1);
    num_rows = num_rows < 0 ? 0 : num_rows > item.max_rows ? item.max_rows : num_rows;
    position = length;
    c.drafts[int64_t{i} * c.max_width] = c.first_drafts[item.slot];
  }
  c.num_rows[i] = static_cast<int32_t>(num_rows);
  c.positions[i] = position;
}

__global__ void __launch_bounds__(kThreads)
    draft_rows_kernel(const Chains c, int depth, const ChainRows rows) {
  pdl_wait();
  const int i = item_of_thread();
  if (i >= c.num_items) return;
  const ChainItem item = c.items[i];
  // Row number r of a verification holds draft r − 1, so row depth + 1 needs draft `depth`.
  const bool wanted = c.num_rows[i] > depth + 1;
  c.hidden_rows[i] = wanted ? item.slot : 0;
  if (!wanted) {
    write_padding(rows, i);
    c.sample_rows[i] = sample_row(-1, 0, 0, -1);
    return;
  }
  // Draft d is at position length + d. NextN guesses it from a row at position length + d − 2, whose next
  // token is draft d − 1.
  const int64_t length = c.positions[i];
  write_row(c, rows, i, item.seq_idx, length + depth - 2, c.drafts[int64_t{i} * c.max_width + depth - 1]);
  c.sample_rows[i] = sample_row(item.slot, i, length + depth, -1);
}

__global__ void __launch_bounds__(kThreads)
    keep_guesses_kernel(const Chains c, int depth, const uint16_t* next_hidden) {
  pdl_wait();
  const int64_t i = blockIdx.x;
  const int32_t slot = c.sample_rows[i].slot;
  if (slot < 0) return;
  if (threadIdx.x == 0) {
    const int32_t token = c.guesses[i].has_nan != 0 ? 0 : c.guesses[i].token;
    if (depth == 0) {
      c.first_drafts[slot] = token;
    } else {
      c.drafts[i * c.max_width + depth] = token;
    }
  }
  auto* to = static_cast<uint16_t*>(c.hidden) + slot * c.hidden_size;
  const uint16_t* from = next_hidden + i * c.hidden_size;
  for (int64_t j = threadIdx.x; j < c.hidden_size; j += blockDim.x) to[j] = from[j];
}

__global__ void __launch_bounds__(kThreads) verify_rows_kernel(const Chains c, const ChainRows rows) {
  pdl_wait();
  const int i = item_of_thread();
  if (i >= c.num_items) return;
  const ChainItem item = c.items[i];
  if (item.verifies == 0) return;
  for (int r = 0; r < item.max_rows; ++r) {
    if (r < c.num_rows[i]) {
      write_row(c, rows, item.first_row + r, item.seq_idx, c.positions[i] - 1 + r,
                r == 0 ? c.last_token[item.slot] : c.drafts[int64_t{i} * c.max_width + r - 1]);
    } else {
      write_padding(rows, item.first_row + r);
    }
  }
}

// Returns true if the draft after row number `row` of item i is accepted. The result of a row that was not
// sampled is −1, which never equals a draft.
__device__ bool is_accepted(const Chains& c, int i, const ChainItem& item, int row) {
  const int32_t token = c.results[row * c.num_items + i].token;
  if (c.num_chances == 0 || item.mask_row >= 0) return token == c.drafts[int64_t{i} * c.max_width + row];
  return token >= 0 && row < c.num_chances &&
         simulates_acceptance(c.slots[item.slot].seed, static_cast<uint64_t>(c.positions[i] + row),
                              c.chances[row]);
}

__global__ void __launch_bounds__(kThreads) choose_rows_kernel(const Chains c, int depth, bool masked) {
  pdl_wait();
  const int i = item_of_thread();
  if (i >= c.num_items) return;
  const ChainItem item = c.items[i];
  bool chosen = depth < c.num_rows[i] && (item.mask_row >= 0) == masked;
  if (chosen && depth > 0) chosen = is_accepted(c, i, item, depth - 1);
  c.sample_rows[i] = chosen ? sample_row(item.slot, item.first_logit + depth, c.positions[i] + depth,
                                         masked ? item.mask_row : -1)
                            : sample_row(-1, 0, 0, -1);
}

__global__ void __launch_bounds__(kThreads)
    follow_rows_kernel(const Chains c, const ChainRows rows, int32_t* guess_rows) {
  pdl_wait();
  const int i = item_of_thread();
  if (i >= c.num_items) return;
  const ChainItem item = c.items[i];
  const int count = num_sampled(c, i);
  for (int r = 0; r < (item.verifies != 0 ? item.max_rows : 1); ++r) {
    const int64_t row = item.first_row + r;
    if (item.verifies != 0 && (r >= count || c.rests)) {
      write_padding(rows, row);
    } else if (r < count) {
      rows.token_ids[row] = c.results[r * c.num_items + i].token;
    }
  }
  end_item(c, i, item, count, guess_rows);
}

dim3 blocks_of(const Chains& chains) {
  return {static_cast<unsigned>((chains.num_items + kThreads - 1) / kThreads)};
}

}  // namespace

void catch_up_rows(const Chains& chains, int stride, const ChainRows& rows, int32_t* hidden_rows,
                   int32_t* logit_rows, const Launch& launch) {
  const int num_rows = chains.num_items * stride;
  launch_kernel<catch_up_rows_kernel>(launch,
                                      dim3(static_cast<unsigned>((num_rows + kThreads - 1) / kThreads)),
                                      dim3(kThreads), 0, chains, stride, rows, hidden_rows, logit_rows);
}
void keep_waiting(const Chains& chains, const void* target_hidden, const Launch& launch) {
  launch_kernel<keep_waiting_kernel>(launch, dim3(static_cast<unsigned>(chains.num_items)), dim3(kThreads), 0,
                                     chains, static_cast<const uint16_t*>(target_hidden));
}
void begin_chains(const Chains& chains, const Launch& launch) {
  launch_kernel<begin_chains_kernel>(launch, blocks_of(chains), dim3(kThreads), 0, chains);
}
void draft_rows(const Chains& chains, int depth, const ChainRows& rows, const Launch& launch) {
  launch_kernel<draft_rows_kernel>(launch, blocks_of(chains), dim3(kThreads), 0, chains, depth, rows);
}
void keep_guesses(const Chains& chains, int depth, const void* next_hidden, const Launch& launch) {
  launch_kernel<keep_guesses_kernel>(launch, dim3(static_cast<unsigned>(chains.num_items)), dim3(kThreads), 0,
                                     chains, depth, static_cast<const uint16_t*>(next_hidden));
}
void verify_rows(const Chains& chains, const ChainRows& rows, const Launch& launch) {
  launch_kernel<verify_rows_kernel>(launch, blocks_of(chains), dim3(kThreads), 0, chains, rows);
}
void choose_rows(const Chains& chains, int depth, bool masked, const Launch& launch) {
  launch_kernel<choose_rows_kernel>(launch, blocks_of(chains), dim3(kThreads), 0, chains, depth, masked);
}
void follow_rows(const Chains& chains, const ChainRows& rows, int32_t* guess_rows, const Launch& launch) {
  launch_kernel<follow_rows_kernel>(launch, blocks_of(chains), dim3(kThreads), 0, chains, rows, guess_rows);
}

}  // namespace hadal::cuda
