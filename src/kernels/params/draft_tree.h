// Defines draft trees: which drafts of speculation a tree has, their order, and what each of them attends to.
// Everything that makes, verifies or attends to a tree follows this file.
//
// A verification has nodes 0 … N − 1, at most kMaxDraftNodes. Node 0, the root, is the newest token of the
// request, at position n. Every other node is a draft after its parent. The tree is chosen as in EAGLE-2
// (arXiv 2406.16858): in each step of NextN the topk best drafts of the newest depth get topk children each,
// and the N − 1 best drafts of all remain. The confidence of a draft is the sum of the logarithms of the
// shares that NextN gives to it and to the drafts before it, so it is never above its parent's.
//
// Nodes are ordered by confidence, and drafts of equal confidence by the order in which they were made. So a
// parent precedes its children, and a tree of fewer nodes has the first nodes of a larger one.
//
// While a tree is verified, the record of node i is at the place of position n + i, but RoPE uses n + depth.
// Its row has a mask: bit i is set if the row attends to the record of node i. These are the node itself and
// the nodes before it on its path, and the row attends to all positions below n, too. Set bits ascend with
// the depth, so bit number j (counted from 0) among them is the key at position n + j. A chain has bits 0 …
// i, which is causal attention; a row that verifies nothing has bit 0.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace hadal {

inline constexpr int kMaxDraftNodes = 64;  // bits of a mask

// DraftShape limits a tree. With topk 1 the tree is a chain.
struct DraftShape {
  int64_t num_steps = kMaxDraftNodes - 1;  // the greatest depth, 1 … kMaxDraftNodes − 1
  int64_t topk = 1;                        // 1 … kMaxDraftNodes

  // Returns the number of nodes of the largest tree: topk drafts after the root, then topk² at each depth.
  constexpr int64_t most_nodes() const { return 1 + topk + (num_steps - 1) * topk * topk; }
};

// DraftNode is a node other than the root. Nodes are numbered from 1, so node i is element i − 1 of a list.
struct DraftNode {
  int32_t token = 0;
  int32_t parent = 0;  // a node with a lower number
};

// Tells whether a draft with confidence `a` precedes one with confidence `b`, if `a` was made before `b`.
constexpr bool precedes_later(float a, float b) {
  return a >= b;
}

// Returns the accepted child of `node`: the one that is the token which the row of `node` sampled, or 0.
constexpr int32_t accepted_child(std::span<const DraftNode> drafts, int32_t node, int32_t token) {
  for (size_t i = static_cast<size_t>(node); i < drafts.size(); ++i) {
    if (drafts[i].parent == node && drafts[i].token == token) return static_cast<int32_t>(i) + 1;
  }
  return 0;
}

// Returns the best child of `node`, or 0.
constexpr int32_t best_child(std::span<const DraftNode> drafts, int32_t node) {
  for (size_t i = static_cast<size_t>(node); i < drafts.size(); ++i) {
    if (drafts[i].parent == node) return static_cast<int32_t>(i) + 1;
  }
  return 0;
}

// Returns the mask of a node from its parent's.
constexpr uint64_t extended_mask(uint64_t of_parent, int32_t node) {
  return of_parent | uint64_t{1} << node;
}

// Returns the mask of a row over the newest kMaxDraftNodes places of its sequence, whose last place is that
// of node num_nodes − 1 (1 … kMaxDraftNodes nodes). The highest bit stands for the last place. Places before
// the root's have set bits, because the row attends to them, too. The device's kernels read this form.
constexpr uint64_t newest_mask(uint64_t ancestors, int num_nodes) {
  const int before = kMaxDraftNodes - num_nodes;
  return ancestors << before | ((uint64_t{1} << before) - 1);
}

// Tells whether the record of every key is at the key's own position.
constexpr bool is_causal(uint64_t ancestors) {
  return (ancestors & (ancestors + 1)) == 0;
}

// Returns the position of the root of a row that sees kv_len keys.
constexpr int64_t root_position(uint64_t ancestors, int64_t kv_len) {
  return kv_len - std::popcount(ancestors);
}

// Returns the position at whose place the record of key `key` is.
constexpr int64_t record_position(uint64_t ancestors, int64_t kv_len, int64_t key) {
  const int64_t root = root_position(ancestors, kv_len);
  if (key < root) return key;
  for (int64_t j = root; j < key; ++j) ancestors &= ancestors - 1;  // clears the lowest bit
  return root + std::countr_zero(ancestors);
}

}  // namespace hadal
