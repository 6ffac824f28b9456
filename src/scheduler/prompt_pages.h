// PromptPages is what the scheduler remembers about a prompt: hashes that compare it with other prompts page
// by page, and how much of it is cached. Requests that share the ids of their prompt (base/token_ids.h), such
// as the choices of one prompt, share this object, too. So the hashes are computed once, and a look-up in the
// tree serves all of them. The hashes need 8 bytes for each page of 64 tokens.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/token_ids.h"
#include "cache/radix_cache.h"

namespace hadal {

class PromptPages {
 public:
  explicit PromptPages(const TokenIds& prompt);

  // Returns the number of whole pages. The rest of the prompt has no hash.
  int64_t num_pages() const { return static_cast<int64_t>(hashes_.size()); }

  // Returns with how many equal pages the two prompts begin, at most `most` (≤ num_pages()), or 0 if they are
  // no more than `least`. Costs O(log n). Different beginnings have equal hashes with a chance of 2⁻⁶⁴. A
  // client that finds such a pair of prompts gains nothing: one of them waits for the other's prefill, and
  // then finds none of its pages in the tree.
  int64_t common_pages(const PromptPages& other, int64_t least, int64_t most) const;

  // Cached is the latest look-up in the tree: `length` of the first `limit` tokens were cached under `salt`
  // when the tree had this version and had evicted that many tokens. So it equals a new look-up as long as
  // both are the same, and whether requests share it changes no plan.
  struct Cached {
    uint64_t tree_version = 0;  // 0: never looked up
    int64_t num_evicted = 0;
    CacheSalt salt;
    int64_t limit = 0;
    int64_t length = 0;
  };
  Cached cached;

 private:
  std::vector<uint64_t> hashes_;  // [i]: hash of the first (i + 1) * kCachePageSize tokens
};

// PromptTable owns the PromptPages of all requests.
class PromptTable {
 public:
  // Returns the object of all requests that share these ids, which it makes for the first of them. It lives
  // until each of them has called leave(). A caller must keep a copy of `prompt` until then.
  PromptPages* enter(const TokenIds& prompt);
  void leave(const TokenIds& prompt);

  int64_t num_prompts() const { return std::ssize(prompts_); }
  int64_t num_requests() const;  // reads the whole table

 private:
  struct Entry {
    PromptPages pages;
    int64_t num_requests = 0;
  };
  std::unordered_map<const int32_t*, Entry> prompts_;  // by the address of the ids
};

}  // namespace hadal
