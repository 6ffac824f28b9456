#include "text/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace hadal {

namespace {

uint64_t mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0x9E3779B97F4A7C15ULL;
  return x ^ x >> 29;
}

}  // namespace

uint64_t ByteStringMap::hash(std::string_view key) {
  const char* data = key.data();
  size_t size = key.size();
  uint64_t h = size * 0xA0761D6478BD642FULL;
  for (; size > 8; size -= 8, data += 8) {
    uint64_t word = 0;
    std::memcpy(&word, data, 8);
    h = mix(h ^ word);
  }
  uint64_t word = 0;
  if (size >= 4) {  // two overlapping halves, because a copy of variable size would be a call
    uint32_t low = 0;
    uint32_t high = 0;
    std::memcpy(&low, data, 4);
    std::memcpy(&high, data + size - 4, 4);
    word = uint64_t{low} | uint64_t{high} << 32;
  } else {
    for (size_t i = 0; i < size; ++i) word = word << 8 | static_cast<unsigned char>(data[i]);
  }
  return mix(h ^ word);
}

void ByteStringMap::reserve(size_t num_keys, size_t num_bytes) {
  arena_.reserve(num_bytes);
  grow(std::bit_ceil(std::max<size_t>(16, 2 * num_keys)));
}

void ByteStringMap::grow(size_t num_slots) {
  std::vector<Slot> old(num_slots);
  old.swap(slots_);
  mask_ = num_slots - 1;
  for (const Slot& slot : old) {
    if (slot.id < 0) continue;
    size_t at = hash({arena_.data() + slot.begin, slot.size}) & mask_;
    while (slots_[at].id >= 0) at = (at + 1) & mask_;
    slots_[at] = slot;
  }
}

bool ByteStringMap::insert(std::string_view key, int32_t id) {
  if (find(key) >= 0) return false;
  HADAL_CHECK_LT(arena_.size() + key.size(), size_t{UINT32_MAX});
  if (2 * (num_keys_ + 1) > slots_.size()) grow(std::max<size_t>(16, 2 * slots_.size()));
  size_t at = hash(key) & mask_;
  while (slots_[at].id >= 0) at = (at + 1) & mask_;
  slots_[at] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(key.size()), id};
  arena_.append(key);
  ++num_keys_;
  return true;
}

Bpe::Bpe(const std::vector<std::optional<std::string>>& token_bytes,
         const std::vector<std::pair<std::pair<int32_t, int32_t>, int32_t>>& merges, bool ignore_merges)
    : ignore_merges_(ignore_merges), whole_(new std::atomic<uint8_t>[token_bytes.size()]) {
  size_t num_bytes = 0;
  for (const auto& bytes : token_bytes) num_bytes += bytes ? bytes->size() : 0;
  tokens_.reserve(token_bytes.size(), num_bytes);
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (size_t id = 0; id < token_bytes.size(); ++id) {
    whole_[id].store(kUnknown, std::memory_order_relaxed);
    const auto& bytes = token_bytes[id];
    if (!bytes) continue;
    const bool is_new = tokens_.insert(*bytes, static_cast<int32_t>(id));
    HADAL_CHECK(is_new, "token {} repeats the bytes of another", id);
    if (bytes->size() == 1) byte_ids_[static_cast<unsigned char>((*bytes)[0])] = static_cast<int32_t>(id);
  }
  merges_.assign(std::bit_ceil(std::max<size_t>(16, 2 * merges.size())), {kNoPair, kNoRank, -1});
  merge_mask_ = merges_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [pair, id] = merges[rank];
    const uint64_t key = uint64_t(uint32_t(pair.first)) << 32 | uint32_t(pair.second);
    size_t at = mix(key) & merge_mask_;
    while (merges_[at].pair != kNoPair && merges_[at].pair != key) at = (at + 1) & merge_mask_;
    merges_[at] = {key, static_cast<uint32_t>(rank), id};
  }
}

Bpe::RankAndId Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t key = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  for (size_t at = mix(key) & merge_mask_;; at = (at + 1) & merge_mask_) {
    const Merge& merge = merges_[at];
    if (merge.pair == key) return {merge.rank, merge.id};
    if (merge.pair == kNoPair) return {kNoRank, -1};
  }
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  const int32_t token = tokens_.find(word);
  if (token >= 0) {
    const uint8_t whole = ignore_merges_ ? uint8_t{kWhole} : whole_[token].load(std::memory_order_relaxed);
    if (whole == kWhole) {
      out.push_back(token);
      return;
    }
    if (whole == kUnknown) {
      const size_t before = out.size();
      merge(word, out);
      const bool is_whole = out.size() == before + 1 && out.back() == token;
      whole_[token].store(is_whole ? kWhole : kNotWhole, std::memory_order_relaxed);
      return;
    }
  }
  merge(word, out);
}

namespace {

// Up to this many bytes, scanning all pairs for each merge is faster than a heap.
constexpr size_t kShortWord = 40;

}  // namespace

void Bpe::merge(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() <= kShortWord)
    merge_short(word, out);
  else
    merge_long(word, out);
}

void Bpe::merge_short(std::string_view word, std::vector<int32_t>& out) const {
  int32_t ids[kShortWord + 1];
  RankAndId pairs[kShortWord + 1];  // pairs[i]: ids[i] with ids[i + 1]
  size_t n = 0;
  for (const char byte : word)
    if (const int32_t id = byte_ids_[static_cast<unsigned char>(byte)]; id >= 0) ids[n++] = id;
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = find_merge(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == kNoRank) break;
    ids[best] = pairs[best].id;
    --n;
    std::memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof(ids[0]));
    std::memmove(pairs + best, pairs + best + 1, (n - best) * sizeof(pairs[0]));
    if (best + 1 < n) pairs[best] = find_merge(ids[best], ids[best + 1]);
    if (best > 0) pairs[best - 1] = find_merge(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids, ids + n);
}

void Bpe::merge_long(std::string_view word, std::vector<int32_t>& out) const {
  // Symbols are a doubly linked list in arrays; a heap contains (rank, position of the left symbol) of every
  // pair that can merge. An entry is stale if the pair at its position now has another rank. Symbols only
  // grow, so an earlier pair never reappears at a position.
  struct Symbol {
    int32_t id;
    uint32_t previous;
    uint32_t next;
    uint32_t rank;  // rank of the pair with the next symbol
    int32_t merged_id;
  };
  constexpr uint32_t kNone = ~uint32_t{0};
  HADAL_CHECK_LT(word.size(), size_t{kNone});
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char byte : word)
    if (const int32_t id = byte_ids_[static_cast<unsigned char>(byte)]; id >= 0) {
      const auto at = static_cast<uint32_t>(symbols.size());
      symbols.push_back({id, at == 0 ? kNone : at - 1, at + 1, kNoRank, -1});
    }
  if (symbols.empty()) return;
  symbols.back().next = kNone;

  // An entry is rank << 32 | position. The smallest entry comes first, so among equal ranks the leftmost pair
  // does.
  std::vector<uint64_t> heap;
  const auto look_up = [&](uint32_t at) {
    Symbol& symbol = symbols[at];
    const auto found =
        symbol.next == kNone ? RankAndId{kNoRank, -1} : find_merge(symbol.id, symbols[symbol.next].id);
    symbol.rank = found.rank;
    symbol.merged_id = found.id;
    return found.rank != kNoRank;
  };
  const auto entry = [&](uint32_t at) { return uint64_t{symbols[at].rank} << 32 | at; };
  heap.reserve(symbols.size());
  for (uint32_t at = 0; at < symbols.size(); ++at)
    if (look_up(at)) heap.push_back(entry(at));
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto update = [&](uint32_t at) {
    if (!look_up(at)) return;
    heap.push_back(entry(at));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top);
    Symbol& symbol = symbols[at];
    if (symbol.rank != top >> 32) continue;
    Symbol& right = symbols[symbol.next];
    symbol.id = symbol.merged_id;
    right.rank = kNoRank;  // the right symbol no longer exists, so its own entry is stale
    symbol.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = at;
    update(at);
    if (symbol.previous != kNone) update(symbol.previous);
  }
  for (uint32_t at = 0; at != kNone; at = symbols[at].next) out.push_back(symbols[at].id);
}

}  // namespace hadal
