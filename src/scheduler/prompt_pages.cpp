#include "scheduler/prompt_pages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace hadal {

PromptPages::PromptPages(const TokenIds& prompt) {
  hashes_.reserve(prompt.size() / kCachePageSize);
  uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (size_t begin = 0; begin + kCachePageSize <= prompt.size(); begin += kCachePageSize) {
    for (size_t i = begin; i < begin + kCachePageSize; i += 2) {
      uint64_t two_tokens = 0;
      std::memcpy(&two_tokens, prompt.data() + i, sizeof(two_tokens));
      hash = (hash ^ two_tokens) * 0xff51afd7ed558ccdULL;
      hash ^= hash >> 32;
    }
    hashes_.push_back(hash);
  }
}

int64_t PromptPages::common_pages(const PromptPages& other, int64_t least, int64_t most) const {
  int64_t different = std::min(most, other.num_pages()) + 1;  // the least number of pages that surely differ
  if (least + 1 >= different || hashes_[least] != other.hashes_[least]) return 0;
  int64_t common = least + 1;
  while (different - common > 1) {
    const int64_t middle = common + (different - common) / 2;
    (hashes_[middle - 1] == other.hashes_[middle - 1] ? common : different) = middle;
  }
  return common;
}

PromptPages* PromptTable::enter(const TokenIds& prompt) {
  auto at = prompts_.find(prompt.data());
  if (at == prompts_.end()) at = prompts_.emplace(prompt.data(), Entry{.pages = PromptPages(prompt)}).first;
  ++at->second.num_requests;
  return &at->second.pages;
}

void PromptTable::leave(const TokenIds& prompt) {
  const auto at = prompts_.find(prompt.data());
  HADAL_CHECK(at != prompts_.end(), "a prompt of {} tokens is not in the table", prompt.size());
  if (--at->second.num_requests == 0) prompts_.erase(at);
}

int64_t PromptTable::num_requests() const {
  int64_t count = 0;
  for (const auto& [ids, entry] : prompts_) count += entry.num_requests;
  return count;
}

}  // namespace hadal
