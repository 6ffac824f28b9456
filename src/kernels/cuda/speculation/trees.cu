// Keeps trees of drafts. The kernels that grow a tree have one block for each item, and the state of its tree
// in shared memory meanwhile: 6 KB. The others have one thread for each item, or one block where they copy. A
// kernel reads the results of the kernel before it, so it first waits for that kernel.
#include "base/simulated_acceptance.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/speculation/rows.cuh"
#include "kernels/cuda/speculation/trees.h"

namespace hadal::cuda {
namespace {

constexpr int kTreeThreads = 2 * kMaxDraftNodes;  // one half of them has the best drafts, the other new ones
constexpr int kItemThreads = 128;

// Holds the tree of a block's item.
struct Growth {
  TreeDraft lists[2][kMaxDraftNodes];
  float confidences[kMaxDraftNodes];  // of new drafts
  int32_t num_new;
  int32_t parent;
  int32_t num_expanded;
  int32_t parents[kMaxDraftNodes];  // nodes
};

// Returns the block's memory, which is not initialised.
__device__ Growth& shared_growth() {
  __shared__ __align__(alignof(Growth)) std::byte memory[sizeof(Growth)];
  return *reinterpret_cast<Growth*>(memory);
}

// Grows the tree of one item. All threads of the block call the functions.
struct Grower {
  const Trees& t;
  const int64_t item_idx;
  Growth& shared;
  int tree;        // index among the step's trees; −1: none
  int num_drafts;  // the most
  int count;       // drafts in `list`
  int num_made;
  int which = 0;

  __device__ Grower(const Trees& trees, int64_t idx, Growth& growth, int depth)
      : t(trees), item_idx(idx), shared(growth) {
    const ChainItem& item = t.chains.items[item_idx];
    tree = item.tree;
    num_drafts =
        tree >= 0 && item.slot >= 0 && item.verifies != 0 ? max(t.chains.num_rows[item_idx] - 1, 0) : 0;
    count = depth == 1 || tree < 0 ? 0 : t.num_best[item_idx];
    num_made = depth == 1 || tree < 0 ? 0 : t.num_made[item_idx];
    if (thread() < count) list()[thread()] = stored()[thread()];
    __syncthreads();
  }
  __device__ static int thread() { return static_cast<int>(threadIdx.x); }
  __device__ TreeDraft* list() const { return shared.lists[which]; }
  __device__ TreeDraft* stored() const { return t.best + item_idx * kMaxDraftNodes; }

  // Adds the guesses after the drafts of depth − 1.
  __device__ void add_guesses(int depth, int32_t slot) {
    const int64_t topk = t.shape.topk;
    if (num_drafts == 0) return;
    if (depth == 1) return add_children(-1, t.first_drafts + slot * topk);
    const int rows = static_cast<int>(t.nextn_rows());
    for (int row = 0; row < rows; ++row) {
      if (thread() == 0) shared.parent = -1;
      __syncthreads();
      if (thread() < count && list()[thread()].depth == depth - 1 && list()[thread()].row == row)
        shared.parent = thread();
      __syncthreads();
      const int parent = shared.parent;
      __syncthreads();
      // If the parent is no longer among the best, its children would not be either.
      if (parent >= 0) add_children(parent, t.guesses + (int64_t{tree} * rows + row) * topk);
    }
  }

  // Merges the children of a draft (−1: of the root) into the list. Both are in order, and among equal
  // confidences those of the list come first.
  __device__ void add_children(int parent, const DraftGuess* guesses) {
    TreeDraft child;
    if (parent >= 0) {
      const TreeDraft& from = list()[parent];
      child.parent = from.number;
      child.depth = from.depth + 1;
      child.parent_row = from.row;
      child.ancestors = from.ancestors;
      child.confidence = from.confidence;
    }
    const int i = thread() - kMaxDraftNodes;  // number of the thread's child
    const bool is_child = i >= 0 && i < t.shape.topk;
    if (thread() == 0) shared.num_new = static_cast<int32_t>(t.shape.topk);
    __syncthreads();
    if (is_child) {
      const DraftGuess guess = guesses[i];
      child.token = guess.token;
      child.number = num_made + i;
      child.confidence += guess.log_share;
      shared.confidences[i] = child.confidence;
      // After a NaN nothing is known.
      if (guess.token < 0 || isnan(child.confidence)) atomicMin(&shared.num_new, i);
    }
    __syncthreads();
    const int num_new = shared.num_new;
    TreeDraft* next = shared.lists[which ^ 1];
    if (thread() < count) {
      const TreeDraft draft = list()[thread()];
      int place = thread();
      for (int j = 0; j < num_new; ++j)
        place += precedes_later(draft.confidence, shared.confidences[j]) ? 0 : 1;
      if (place < num_drafts) next[place] = draft;
    } else if (is_child && i < num_new) {
      int place = i;
      for (int j = 0; j < count; ++j) place += precedes_later(list()[j].confidence, child.confidence) ? 1 : 0;
      if (place < num_drafts) next[place] = child;
    }
    count = min(count + num_new, num_drafts);
    num_made += num_new;
    which ^= 1;
    __syncthreads();
  }

  // Gives a row and a record to each of the topk best drafts of this depth. A draft that would be the last of
  // a full list is left out, because its children would not be among the best.
  __device__ void expand(int depth) {
    const int lane = thread();
    if (lane >= 32) return;
    uint64_t used = 0;
    uint64_t eligible = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane + 32 * half;
      const bool there = i < count;
      const TreeDraft& draft = list()[there ? i : 0];
      const uint64_t own = there && draft.record >= 0 ? uint64_t{1} << draft.record : 0;
      used |= static_cast<uint64_t>(__reduce_or_sync(0xffffffffU, static_cast<uint32_t>(own >> 32))) << 32 |
              __reduce_or_sync(0xffffffffU, static_cast<uint32_t>(own));
      const bool is_last = count == num_drafts && i == count - 1;
      const unsigned ballot = __ballot_sync(0xffffffffU, there && draft.depth == depth && !is_last);
      eligible |= static_cast<uint64_t>(ballot) << (32 * half);
    }
    const int most = static_cast<int>(t.nextn_rows());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = lane + 32 * half;
      const int row = __popcll(eligible & ((uint64_t{1} << i) - 1));
      if ((eligible >> i & 1) == 0 || row >= most) continue;
      uint64_t places = ~used;
      for (int j = 0; j < row; ++j) places &= places - 1;
      TreeDraft& draft = list()[i];
      draft.row = row;
      draft.record = __ffsll(static_cast<long long>(places)) - 1;
      draft.ancestors = extended_mask(draft.ancestors, draft.record);
    }
    if (lane == 0) shared.num_expanded = min(__popcll(eligible), most);
  }

  __device__ void store() const {
    if (thread() < count) stored()[thread()] = list()[thread()];
    if (thread() != 0) return;
    t.num_best[item_idx] = count;
    t.num_made[item_idx] = num_made;
  }
};

// Writes a row of a node whose path has the mask `ancestors` and whose root is at position n. `num_places`
// are the places from the root's to the last that the mask has.
__device__ void write_node(const Chains& c, const ChainRows& rows, int64_t row, int32_t seq_idx, int64_t n,
                           int64_t position, int record, uint64_t ancestors, int num_places, int32_t token) {
  write_row(c, rows, row, seq_idx, position, token);
  rows.slots[row] = record_slot(c, seq_idx, n + record);
  rows.kv_len[row - rows.num_prefill] = static_cast<int32_t>(n + num_places);
  rows.newest_seen[row - rows.num_prefill] = newest_mask(ancestors, num_places);
}

__global__ void __launch_bounds__(kTreeThreads)
    grow_trees_kernel(const __grid_constant__ Trees t, int depth, const ChainRows rows) {
  Growth& growth = shared_growth();
  pdl_wait();
  const Chains& c = t.chains;
  const int64_t i = blockIdx.x;
  const ChainItem item = c.items[i];
  if (item.tree < 0) return;
  Grower grower(t, i, growth, depth);
  grower.add_guesses(depth, item.slot);
  grower.expand(depth);
  __syncthreads();
  grower.store();
  const int most = static_cast<int>(t.nextn_rows());
  const int64_t first = int64_t{item.tree} * most;
  const int64_t length = c.positions[i];
  for (int r = growth.num_expanded + Grower::thread(); r < most; r += kTreeThreads) {
    write_padding(rows, first + r);
    c.hidden_rows[first + r] = 0;
    c.sample_rows[first + r] = sample_row(-1, 0, 0, -1);
  }
  if (Grower::thread() >= grower.count) return;
  const TreeDraft draft = grower.list()[Grower::thread()];
  if (draft.depth != depth || draft.row < 0) return;
  const int64_t row = first + draft.row;
  write_node(c, rows, row, item.seq_idx, length - 1, length - 2 + depth, draft.record, draft.ancestors,
             kMaxDraftNodes - __clzll(static_cast<long long>(draft.ancestors)), draft.token);
  c.hidden_rows[row] = static_cast<int32_t>(depth == 1 ? item.slot : first + draft.parent_row);
  c.sample_rows[row] = sample_row(item.slot, static_cast<int32_t>(row), length + depth, -1);
}

__global__ void __launch_bounds__(kTreeThreads)
    verify_trees_kernel(const __grid_constant__ Trees t, const ChainRows rows) {
  Growth& growth = shared_growth();
  pdl_wait();
  const Chains& c = t.chains;
  const int64_t i = blockIdx.x;
  const ChainItem item = c.items[i];
  const int depth = static_cast<int>(t.num_depths());
  Grower grower(t, i, growth, depth);
  grower.add_guesses(depth, item.slot);
  if (item.verifies == 0) return;
  const int num_nodes = c.num_rows[i] == 0 ? 0 : 1 + grower.count;
  const int node = Grower::thread();
  TreeDraft draft;
  if (node > 0 && node < num_nodes) {
    draft = grower.list()[node - 1];
    int parent = 0;
    for (int j = 0; j < node - 1; ++j) parent = grower.list()[j].number == draft.parent ? j + 1 : parent;
    growth.parents[node] = parent;
    t.nodes[i * c.max_width + node - 1] = {draft.token, parent};
  }
  __syncthreads();
  if (node == 0) c.num_rows[i] = num_nodes;
  if (node >= item.max_rows) return;
  const int64_t row = item.first_row + node;
  if (node >= num_nodes) return write_padding(rows, row);
  uint64_t ancestors = extended_mask(0, 0);
  for (int at = node; at > 0; at = growth.parents[at]) ancestors = extended_mask(ancestors, at);
  const int64_t n = c.positions[i] - 1;
  write_node(c, rows, row, item.seq_idx, n, n + (node == 0 ? 0 : draft.depth), node, ancestors, node + 1,
             node == 0 ? c.last_token[item.slot] : draft.token);
}

__global__ void __launch_bounds__(kItemThreads)
    keep_first_drafts_kernel(const Trees t, const uint16_t* next_hidden) {
  pdl_wait();
  const Chains& c = t.chains;
  const int64_t i = blockIdx.x;
  const int64_t slot = c.sample_rows[i].slot;
  if (slot < 0) return;
  for (int64_t j = threadIdx.x; j < t.shape.topk; j += blockDim.x)
    t.first_drafts[slot * t.shape.topk + j] = t.guesses[i * t.shape.topk + j];
  auto* to = static_cast<uint16_t*>(c.hidden) + slot * c.hidden_size;
  const uint16_t* from = next_hidden + i * c.hidden_size;
  for (int64_t j = threadIdx.x; j < c.hidden_size; j += blockDim.x) to[j] = from[j];
}

// Returns the node that is accepted after `node`, whose row sampled the token at `depth`; 0: none.
__device__ int32_t child_after(const Trees& t, int64_t i, const ChainItem& item, int depth, int32_t node) {
  const Chains& c = t.chains;
  const int32_t token = c.results[depth * c.num_items + i].token;
  if (token < 0) return 0;
  const std::span<const DraftNode> drafts(t.nodes + i * c.max_width, static_cast<size_t>(c.num_rows[i] - 1));
  if (c.num_chances == 0 || item.mask_row >= 0) return accepted_child(drafts, node, token);
  const bool accepts = depth < c.num_chances &&
                       simulates_acceptance(c.slots[item.slot].seed,
                                            static_cast<uint64_t>(c.positions[i] + depth), c.chances[depth]);
  return accepts ? best_child(drafts, node) : 0;
}

__global__ void __launch_bounds__(kItemThreads) choose_nodes_kernel(const Trees t, int depth, bool masked) {
  pdl_wait();
  const Chains& c = t.chains;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= c.num_items) return;
  const ChainItem item = c.items[i];
  int32_t node = c.num_rows[i] > 0 && (item.mask_row >= 0) == masked ? 0 : -1;
  if (depth > 0) {
    const int32_t before = t.accepted[(depth - 1) * c.num_items + i];
    node = before < 0 || item.verifies == 0 ? 0 : child_after(t, i, item, depth - 1, before);
    if (node == 0) node = -1;
  }
  if (!masked || item.mask_row >= 0) t.accepted[depth * c.num_items + i] = node;
  c.sample_rows[i] = node < 0 ? sample_row(-1, 0, 0, -1)
                              : sample_row(item.slot, item.first_logit + node, c.positions[i] + depth,
                                           masked ? item.mask_row : -1);
}

// Each thread moves the same words of all records, in ascending order of depth. So a record is read before
// another one is written to its place, because a node's number is at least its depth.
__global__ void __launch_bounds__(kItemThreads)
    move_accepted_kernel(const Trees t, const MoveAcceptedParams p) {
  pdl_wait();
  const Chains& c = t.chains;
  const int i = static_cast<int>(blockIdx.x);
  const auto layer = static_cast<int>(blockIdx.y);
  const ChainItem item = c.items[i];
  if (item.slot < 0 || item.verifies == 0) return;
  const bool is_hidden = layer == p.num_layers;
  const int64_t words = (is_hidden ? c.hidden_size * 2 : p.row_bytes) / 4;
  const int64_t n = c.positions[i] - 1;
  const int count = num_sampled(c, i);
  std::byte* const base = is_hidden ? static_cast<std::byte*>(p.target_hidden) : p.pools[layer];
  for (int depth = 1; depth < count; ++depth) {
    const int node = t.accepted[depth * c.num_items + i];
    if (node == depth) continue;
    const int64_t source = is_hidden ? item.first_row + node : record_slot(c, item.seq_idx, n + node);
    const int64_t target = is_hidden ? item.first_row + depth : record_slot(c, item.seq_idx, n + depth);
    const auto* from = reinterpret_cast<const uint32_t*>(base) + source * words;
    auto* to = reinterpret_cast<uint32_t*>(base) + target * words;
    for (int64_t j = threadIdx.x; j < words; j += blockDim.x) to[j] = from[j];
  }
}

__global__ void __launch_bounds__(kItemThreads)
    follow_trees_kernel(const Trees t, const ChainRows rows, int32_t* guess_rows) {
  pdl_wait();
  const Chains& c = t.chains;
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= c.num_items) return;
  const ChainItem item = c.items[i];
  const int count = num_sampled(c, i);
  if (item.verifies == 0) {
    if (count > 0) rows.token_ids[item.first_row] = c.results[i].token;
  } else {
    for (int r = 0; r < item.max_rows; ++r) {
      const int64_t row = item.first_row + r;
      if (r < count) {
        write_row(c, rows, row, item.seq_idx, c.positions[i] - 1 + r, c.results[r * c.num_items + i].token);
      } else {
        write_padding(rows, row);
      }
    }
  }
  end_item(c, i, item, count, guess_rows);
}

dim3 blocks_for(const Trees& trees) {
  return {static_cast<unsigned>((trees.chains.num_items + kItemThreads - 1) / kItemThreads)};
}
dim3 block_each(const Trees& trees) {
  return {static_cast<unsigned>(trees.chains.num_items)};
}
void check(const Trees& trees) {
  HADAL_CHECK(trees.shape.topk >= 1 && trees.shape.topk <= kMaxDraftNodes, "topk is {}; must be 1 to {}",
              trees.shape.topk, kMaxDraftNodes);
  HADAL_CHECK(trees.chains.width >= 2 && trees.chains.width <= kMaxDraftNodes,
              "trees of {} nodes; must be 2 to {}", trees.chains.width, kMaxDraftNodes);
}

}  // namespace

void grow_trees(const Trees& trees, int depth, const ChainRows& rows, const Launch& launch) {
  check(trees);
  HADAL_CHECK(depth >= 1 && depth < trees.num_depths(), "depth {}; must be 1 to {}", depth,
              trees.num_depths() - 1);
  launch_kernel<grow_trees_kernel>(launch, block_each(trees), dim3(kTreeThreads), 0, trees, depth, rows);
}
void verify_trees(const Trees& trees, const ChainRows& rows, const Launch& launch) {
  check(trees);
  launch_kernel<verify_trees_kernel>(launch, block_each(trees), dim3(kTreeThreads), 0, trees, rows);
}
void keep_first_drafts(const Trees& trees, const void* next_hidden, const Launch& launch) {
  launch_kernel<keep_first_drafts_kernel>(launch, block_each(trees), dim3(kItemThreads), 0, trees,
                                          static_cast<const uint16_t*>(next_hidden));
}
void choose_nodes(const Trees& trees, int depth, bool masked, const Launch& launch) {
  launch_kernel<choose_nodes_kernel>(launch, blocks_for(trees), dim3(kItemThreads), 0, trees, depth, masked);
}
void move_accepted(const Trees& trees, const MoveAcceptedParams& params, const Launch& launch) {
  HADAL_CHECK(params.row_bytes % 4 == 0 && trees.chains.hidden_size % 2 == 0,
              "records of {} bytes and {} hidden values; must be multiples of 4 and 2", params.row_bytes,
              trees.chains.hidden_size);
  dim3 grid = block_each(trees);
  grid.y = static_cast<unsigned>(params.num_layers + 1);
  launch_kernel<move_accepted_kernel>(launch, grid, dim3(kItemThreads), 0, trees, params);
}
void follow_trees(const Trees& trees, const ChainRows& rows, int32_t* guess_rows, const Launch& launch) {
  launch_kernel<follow_trees_kernel>(launch, blocks_for(trees), dim3(kItemThreads), 0, trees, rows,
                                     guess_rows);
}

}  // namespace hadal::cuda
