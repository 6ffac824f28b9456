// Grows the draft tree of one request, in one step (kernels/params/draft_tree.h has the rules). Only the
// thread that expands drafts uses it.
//
// The builder keeps only the best N − 1 drafts that it has seen. A draft that is no longer among them cannot
// come back, and neither can a child of it, because a child is ordered after its parent. So such drafts are
// dropped, and the result is that of a builder that keeps them all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/sampler.h"
#include "kernels/params/draft_tree.h"

namespace hadal {

class DraftTreeBuilder {
 public:
  // Draft is a node, before the nodes are numbered.
  struct Draft {
    int32_t token = 0;
    int32_t parent = -1;      // index of a draft; −1: the root
    int32_t depth = 1;        // 1 … shape.num_steps
    float confidence = 0.0F;  // sum of log shares along its path
    // NextN has a row for each draft that is expanded. `record` is the place of the row's record: lower than
    // num_drafts, counted from the first position that NextN may write. −1: it is not expanded. A place is
    // used again once its draft has been dropped, so these places do not ascend with the depth.
    int32_t record = -1;
    uint64_t ancestors = 0;  // mask of the records on its path, itself included
  };

  // Begins a tree of at most `num_drafts` drafts, 0 … kMaxDraftNodes − 1.
  void begin(const DraftShape& shape, int64_t num_drafts);
  // Adds the children of a draft (−1: of the root), best first.
  void add_children(int32_t parent, std::span<const DraftChoice> choices);
  // Begins the next depth: gives a record to each of the topk best drafts of the newest depth, if they are
  // still among the best of all and can have children there, and returns their indices, best first. There are
  // none at the greatest depth.
  std::span<const int32_t> expand();

  const Draft& draft(int32_t index) const { return drafts_[static_cast<size_t>(index)]; }
  // Returns the nodes of the tree, in their order.
  std::vector<DraftNode> nodes() const;

 private:
  DraftShape shape_;
  size_t num_drafts_ = 0;
  int32_t depth_ = 1;              // the newest
  std::vector<Draft> drafts_;      // in the order in which they were made; also those that were dropped
  std::vector<int32_t> best_;      // the best num_drafts_, in their order
  std::vector<int32_t> expanded_;  // of the newest depth
};

}  // namespace hadal
