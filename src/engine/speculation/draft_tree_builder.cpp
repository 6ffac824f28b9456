#include "engine/speculation/draft_tree_builder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace hadal {

void DraftTreeBuilder::begin(const DraftShape& shape, int64_t num_drafts) {
  HADAL_CHECK(num_drafts >= 0 && num_drafts < kMaxDraftNodes, "{} drafts", num_drafts);
  shape_ = shape;
  num_drafts_ = static_cast<size_t>(num_drafts);
  depth_ = 1;
  drafts_.clear();
  best_.clear();
}

void DraftTreeBuilder::add_children(int32_t parent, std::span<const DraftChoice> choices) {
  const Draft* const from = parent < 0 ? nullptr : &draft(parent);
  Draft child{.parent = parent, .depth = from == nullptr ? 1 : from->depth + 1};
  const float before = from == nullptr ? 0.0F : from->confidence;
  for (const DraftChoice& choice : choices) {
    child.token = choice.token;
    child.confidence = before + choice.log_share;
    if (std::isnan(child.confidence)) return;  // the layer's logits were infinite, and nothing is known
    const auto place = std::find_if(best_.begin(), best_.end(), [&](int32_t other) {
      return !precedes_later(draft(other).confidence, child.confidence);
    });
    if (place == best_.end() && best_.size() == num_drafts_) return;  // the next choices are no better
    best_.insert(place, static_cast<int32_t>(drafts_.size()));
    drafts_.push_back(child);
    if (best_.size() > num_drafts_) best_.pop_back();
  }
}

std::span<const int32_t> DraftTreeBuilder::expand() {
  expanded_.clear();
  if (depth_ == shape_.num_steps) return expanded_;
  uint64_t used = 0;
  for (const int32_t index : best_) {
    if (draft(index).record >= 0) used |= uint64_t{1} << draft(index).record;
  }
  for (const int32_t index : best_) {
    Draft& one = drafts_[static_cast<size_t>(index)];
    if (one.depth != depth_ || std::ssize(expanded_) == shape_.topk) continue;
    if (best_.size() == num_drafts_ && index == best_.back())
      break;  // its children would not be among the best
    one.record = std::countr_one(used);
    used |= uint64_t{1} << one.record;
    one.ancestors = extended_mask(one.parent < 0 ? 0 : draft(one.parent).ancestors, one.record);
    expanded_.push_back(index);
  }
  ++depth_;
  return expanded_;
}

std::vector<DraftNode> DraftTreeBuilder::nodes() const {
  std::vector<DraftNode> nodes;
  for (const int32_t index : best_) {
    const auto parent = std::find(best_.begin(), best_.end(), draft(index).parent);
    nodes.push_back(
        {.token = draft(index).token,
         .parent = draft(index).parent < 0 ? 0 : static_cast<int32_t>(parent - best_.begin()) + 1});
  }
  return nodes;
}

}  // namespace hadal
