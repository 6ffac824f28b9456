// Computes the ids of one word's bytes by merging byte pairs. A Bpe is immutable after build except for a
// memo of atomics: any thread may call the const members at once, without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal {

// ByteStringMap is a hash table from byte strings to ids, with open addressing, read-only after build. The
// strings live in one arena.
class ByteStringMap {
 public:
  void reserve(size_t num_keys, size_t num_bytes);
  // Returns false if the key exists already.
  bool insert(std::string_view key, int32_t id);
  // Returns -1 if the key is absent.
  int32_t find(std::string_view key) const {
    if (slots_.empty()) return -1;
    for (size_t at = hash(key) & mask_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.id < 0) return -1;
      if (slot.size == key.size() && std::string_view(arena_.data() + slot.begin, slot.size) == key)
        return slot.id;
    }
  }

 private:
  struct Slot {
    uint32_t begin = 0;
    uint32_t size = 0;
    int32_t id = -1;  // -1: free
  };
  static uint64_t hash(std::string_view key);
  void grow(size_t num_slots);

  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t num_keys_ = 0;
  std::string arena_;
};

class Bpe {
 public:
  // token_bytes[id] holds the bytes of a vocabulary token, and nothing where the id is not the model's.
  // merges are pairs of ids with the id of the result, in order of rank; if a pair occurs twice, the last
  // merge counts. With ignore_merges, a word that is a token becomes that token, whatever the merges are.
  Bpe(const std::vector<std::optional<std::string>>& token_bytes,
      const std::vector<std::pair<std::pair<int32_t, int32_t>, int32_t>>& merges, bool ignore_merges);

  // Appends the ids of `word`. The pair of the lowest rank (the leftmost among equals) is merged until no
  // pair is left, in O(n log n). Bytes without a token are dropped (a byte-level vocabulary has all 256).
  void encode(std::string_view word, std::vector<int32_t>& out) const;

  // Returns false if the byte has no token and is dropped.
  bool has_byte(unsigned char byte) const { return byte_ids_[byte] >= 0; }

  // Does the same as encode, but without the shortcut for words that are tokens. Tests compare encode with
  // this function.
  void merge(std::string_view word, std::vector<int32_t>& out) const;

 private:
  struct Merge {
    uint64_t pair;  // left id << 32 | right id
    uint32_t rank;
    int32_t id;
  };
  static constexpr uint64_t kNoPair = ~uint64_t{0};
  static constexpr uint32_t kNoRank = ~uint32_t{0};
  struct RankAndId {
    uint32_t rank;
    int32_t id;
  };

  RankAndId find_merge(int32_t left, int32_t right) const;
  void merge_short(std::string_view word, std::vector<int32_t>& out) const;
  void merge_long(std::string_view word, std::vector<int32_t>& out) const;

  bool ignore_merges_;
  ByteStringMap tokens_;
  int32_t byte_ids_[256];
  std::vector<Merge> merges_;  // open addressing
  size_t merge_mask_ = 0;
  // Says whether merging a token's own bytes yields the token, which is determined on first use. Most words
  // of a text are tokens, so most words need only one look-up. Every thread computes the same answer, so
  // relaxed atomics suffice.
  enum : uint8_t { kUnknown, kWhole, kNotWhole };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;  // [vocabulary]
};

}  // namespace hadal
