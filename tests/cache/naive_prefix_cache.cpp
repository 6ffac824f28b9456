#include "tests/cache/naive_prefix_cache.h"

#include <algorithm>
#include <tuple>

namespace hadal {
namespace {

using View = std::span<const int32_t>;

int64_t common_prefix(View a, View b) {
  int64_t i = 0;
  while (i < std::min(std::ssize(a), std::ssize(b)) && a[i] == b[i]) ++i;
  return i;
}

bool is_prefix(View a, View of) {
  return a.size() <= of.size() && common_prefix(a, of) == std::ssize(a);
}

}  // namespace

NaivePrefixCache::NaivePrefixCache(EvictionPolicy policy, std::function<bool(PageId)> is_requested)
    : policy_(policy), is_requested_(std::move(is_requested)) {}

PrefixMatch NaivePrefixCache::match(View tokens, int32_t priority) {
  PrefixMatch result;
  const int64_t matched = match_length(tokens);
  result.shared_tokens = matched / 64 * 64;
  result.partial_tokens = static_cast<int32_t>(matched % 64);
  for (int64_t block = 0; block * 64 < matched; ++block) {
    const Segment* deepest = nullptr;  // among those that contain a matched token and touch the block
    for (const Segment& segment : segments_) {
      if (common_prefix(segment.path, tokens) > segment.begin && segment.begin < (block + 1) * 64 &&
          (deepest == nullptr || segment.begin > deepest->begin)) {
        deepest = &segment;
      }
    }
    const PageId page = deepest->pages[block - deepest->begin / 64];
    if ((block + 1) * 64 <= matched) {
      result.pages.push_back(page);
    } else {
      result.partial_page = page;
    }
  }
  split_at(tokens.first(result.shared_tokens));
  use(tokens.first(matched), priority, true);
  return result;
}

void NaivePrefixCache::insert(View tokens, std::span<const PageId> pages, int32_t priority) {
  const int64_t matched = match_length(tokens);
  const View known = tokens.first(matched);
  if (matched < std::ssize(tokens)) {
    split_at(known);
    Segment added;
    added.path.assign(tokens.begin(), tokens.end());
    added.begin = matched;
    added.pages.assign(pages.begin() + matched / 64, pages.end());
    added.priority = priority;
    segments_.push_back(added);
    join_all();
  }
  split_at(tokens.first(tokens.size() / 64 * 64));
  use(tokens, priority, false);
}

int64_t NaivePrefixCache::evict(int64_t num_pages) {
  const std::set<PageId> before = pages();
  while (num_free_of(before) < num_pages && evictable_pages() > 0) {
    const int64_t victim = next_victim();
    num_evicted_tokens_ += segments_[victim].size();
    segments_.erase(segments_.begin() + victim);
    join_all();
  }
  return num_free_of(before);
}

int64_t NaivePrefixCache::clear() {
  const std::set<PageId> before = pages();
  std::erase_if(segments_, [this](const Segment& segment) { return !is_locked(segment); });
  join_all();
  return num_free_of(before);
}

int64_t NaivePrefixCache::match_length(View tokens) const {
  int64_t longest = 0;
  for (const Segment& segment : segments_) longest = std::max(longest, common_prefix(segment.path, tokens));
  return longest;
}

int64_t NaivePrefixCache::evictable_pages() const {
  std::set<PageId> evictable = pages();
  std::erase_if(evictable, is_requested_);
  for (const Segment& segment : segments_) {
    if (!is_locked(segment)) continue;
    for (const PageId page : segment.pages) evictable.erase(page);
  }
  return std::ssize(evictable);
}

std::set<PageId> NaivePrefixCache::pages() const {
  std::set<PageId> result;
  for (const Segment& segment : segments_) result.insert(segment.pages.begin(), segment.pages.end());
  return result;
}

int64_t NaivePrefixCache::num_tokens() const {
  int64_t sum = 0;
  for (const Segment& segment : segments_) sum += segment.size();
  return sum;
}

bool NaivePrefixCache::is_locked(const Segment& segment) const {
  return std::any_of(locked_.begin(), locked_.end(),
                     [&](const Tokens& path) { return is_prefix(segment.path, path); });
}

int64_t NaivePrefixCache::num_children(const Segment& segment) const {
  return std::count_if(segments_.begin(), segments_.end(), [&](const Segment& other) {
    return other.begin == std::ssize(segment.path) && is_prefix(segment.path, other.path);
  });
}

bool NaivePrefixCache::is_leaf(const Segment& segment) const {
  return num_children(segment) == 0;
}

int64_t NaivePrefixCache::num_free_of(const std::set<PageId>& pages) const {
  const std::set<PageId> held = this->pages();
  return std::count_if(pages.begin(), pages.end(),
                       [&](PageId page) { return !held.contains(page) && !is_requested_(page); });
}

void NaivePrefixCache::split_at(View path) {
  const int64_t at = std::ssize(path);
  for (size_t i = 0; i < segments_.size(); ++i) {
    Segment& lower = segments_[i];
    if (lower.begin >= at || std::ssize(lower.path) <= at || !is_prefix(path, lower.path)) continue;
    Segment upper = lower;
    upper.path.resize(at);
    upper.pages.resize((at + 63) / 64 - lower.begin / 64);
    lower.pages.erase(lower.pages.begin(), lower.pages.begin() + (at / 64 - lower.begin / 64));
    lower.begin = at;
    segments_.push_back(upper);
    return;  // at most one segment passes there
  }
}

void NaivePrefixCache::join_all() {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const int64_t end = std::ssize(segments_[i].path);
    if (end % 64 == 0 || num_children(segments_[i]) != 1) continue;
    const auto is_child = [&](const Segment& other) {
      return other.begin == end && is_prefix(segments_[i].path, other.path);
    };
    const int64_t page_end = (end + 63) / 64 * 64;
    const Tokens child = std::find_if(segments_.begin(), segments_.end(), is_child)->path;
    split_at(View(child).first(std::min(page_end, std::ssize(child))));
    const auto lower = std::find_if(segments_.begin(), segments_.end(), is_child);
    Segment& upper = segments_[i];
    upper.path = lower->path;
    upper.pages.pop_back();
    upper.pages.insert(upper.pages.end(), lower->pages.begin(), lower->pages.end());
    segments_.erase(lower);
    return join_all();
  }
}

void NaivePrefixCache::use(View path, int32_t priority, bool is_match) {
  ++clock_;
  for (Segment& segment : segments_) {
    if (common_prefix(segment.path, path) <= segment.begin) continue;
    segment.last_use = clock_;
    segment.priority = std::max(segment.priority, priority);
    segment.num_matches += is_match ? 1 : 0;
  }
}

int64_t NaivePrefixCache::next_victim() const {
  const auto key = [this](const Segment& segment) {
    switch (policy_) {
      case EvictionPolicy::kLru:
        return std::tuple<int64_t, int64_t>(0, segment.last_use);
      case EvictionPolicy::kLfu:
        return std::tuple<int64_t, int64_t>(segment.num_matches, segment.last_use);
      case EvictionPolicy::kPriority:
        break;
    }
    return std::tuple<int64_t, int64_t>(segment.priority, segment.last_use);
  };
  int64_t victim = -1;
  for (int64_t i = 0; i < std::ssize(segments_); ++i) {
    if (is_locked(segments_[i]) || !is_leaf(segments_[i])) continue;
    if (victim == -1 || key(segments_[i]) < key(segments_[victim])) victim = i;
  }
  return victim;
}

}  // namespace hadal
