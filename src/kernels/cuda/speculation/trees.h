// Keeps trees of drafts on the device, in steps whose width is above 1: their growth, the rows of NextN and
// of the verification, which drafts are accepted, and where the accepted records move.
// kernels/params/draft_tree.h has the rules, and engine/speculation/draft_tree_builder.h says why only the
// best drafts are kept while a tree grows. What a step launches depends on its numbers of items and of rows
// alone. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/speculation/speculation.h"
#include "kernels/params/draft_tree.h"

namespace hadal::cuda {

// Holds one of the best drafts of a tree that grows.
struct TreeDraft {
  float confidence = 0.0F;
  int32_t token = 0;
  int32_t number = 0;   // drafts are numbered in the order in which they were made
  int32_t parent = -1;  // the parent's number; −1: the root
  int32_t depth = 1;
  int32_t record = -1;     // place of its record, counted from the first position that NextN may write
  int32_t row = -1;        // if it is expanded, the item's row in NextN's batch of that depth
  int32_t parent_row = 0;  // the parent's row
  uint64_t ancestors = 0;  // mask of the records on its path, its own only if it is expanded
};

// Holds the arguments that the kernels share. All pointers are to device memory. Of the chains, trees use the
// items, what is kept for each slot (without first_drafts) and for each step (without drafts). `width` is
// then the largest number of nodes, and sample_rows and hidden_rows have an element for each row of NextN.
struct Trees {
  Chains chains;
  DraftShape shape;                    // topk above 1
  int num_trees = 0;                   // in the step; ChainItem::tree is below this
  DraftGuess* first_drafts = nullptr;  // [max_slots, topk]: the guesses that follow a slot's tokens
  DraftGuess* guesses = nullptr;       // [num_trees · nextn_rows(), topk], by choose_drafts (sampling.h)

  // These arrays hold state for the step.
  TreeDraft* best = nullptr;    // [num_items, kMaxDraftNodes]: the best drafts, in their order
  int32_t* num_best = nullptr;  // [num_items]
  int32_t* num_made = nullptr;  // [num_items]: drafts that were made so far
  DraftNode* nodes = nullptr;   // [num_items, max_width]: the nodes of the tree that is verified, without the
                                // root
  int32_t* accepted = nullptr;  // [width, num_items]: the node whose row is sampled at each depth; −1: none

  // Returns the rows of NextN for each tree, in a pass over the drafts of one depth.
  constexpr int64_t nextn_rows() const {
    return shape.topk < chains.width - 1 ? shape.topk : chains.width - 1;
  }
  // Returns the greatest depth of drafts in a tree of `width` nodes.
  constexpr int64_t num_depths() const {
    return shape.num_steps < chains.width - 1 ? shape.num_steps : chains.width - 1;
  }
};

// Adds the guesses after the drafts of depth `depth` − 1 to the trees: those after the expanded drafts in
// `guesses` or, with depth 1, the first drafts of the slots. Then it expands the best drafts of this depth:
// NextN's rows, nextn_rows() for each tree, are filled in, with the sampling rows for choose_drafts.
// hidden_rows are rows of `hidden` with depth 1, and otherwise rows of NextN's own states in its previous
// pass. depth is below num_depths(). begin_chains has been launched before.
void grow_trees(const Trees& trees, int depth, const ChainRows& rows, const Launch& launch);

// Adds the guesses of the last depth, num_depths(), and numbers the nodes. It fills in the rows of
// verifications in the step's batch, and num_rows, which becomes the number of nodes.
void verify_trees(const Trees& trees, const ChainRows& rows, const Launch& launch);

// Keeps the guesses of items whose sample_rows have a slot, `guesses` [num_items, topk], as their slots'
// first drafts, and NextN's hidden states next_hidden [num_items, hidden_size].
void keep_first_drafts(const Trees& trees, const void* next_hidden, const Launch& launch);

// Chooses the node of each item that is sampled next: the root at depth 0, and then the child that was
// accepted after the node at depth − 1. If `masked`, only items with a mask are chosen, otherwise only those
// without a mask. Items with a mask have one row.
void choose_nodes(const Trees& trees, int depth, bool masked, const Launch& launch);

// Moves the record of each accepted node from the place of position n + node to that of n + depth, in the
// pools of all layers, and likewise the target's hidden states target_hidden [rows, hidden_size]. A record
// has row_bytes, a multiple of 4.
struct MoveAcceptedParams {
  std::byte* const* pools = nullptr;  // [num_layers]
  int num_layers = 0;
  int64_t row_bytes = 0;
  void* target_hidden = nullptr;
};
void move_accepted(const Trees& trees, const MoveAcceptedParams& params, const Launch& launch);

// Changes the step's batch into NextN's batch, like follow_rows, after move_accepted: the first rows of an
// item are those of the sampled tokens, at their own positions, and its other rows become padding.
void follow_trees(const Trees& trees, const ChainRows& rows, int32_t* guess_rows, const Launch& launch);

}  // namespace hadal::cuda
