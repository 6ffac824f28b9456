// Chooses the keys of highest score and writes them (IndexSelectParams) in the current Highway target. The
// k-th largest score is found by bisection of the range of integers, until exactly k scores of the row are
// above the bound or one integer is left. Each step counts in one pass over the row, so the time hardly
// depends on the values.
#if defined(HADAL_KERNELS_CPU_SIMD_INDEX_CHOOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HADAL_KERNELS_CPU_SIMD_INDEX_CHOOSE_INL_H_
#undef HADAL_KERNELS_CPU_SIMD_INDEX_CHOOSE_INL_H_
#else
#define HADAL_KERNELS_CPU_SIMD_INDEX_CHOOSE_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "kernels/params/indexer.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using ChooseD = hn::CappedTag<int32_t, 16>;
using ChooseV = hn::VFromD<ChooseD>;
constexpr int kChooseLanes = static_cast<int>(hn::MaxLanes(ChooseD()));
static_assert(std::endian::native == std::endian::little, "masks are stored as bytes and read as words");

// Border says which values are chosen: all above `value`, and the first `ties` of those equal to it.
struct Border {
  int32_t value = 0;
  int64_t ties = 0;
};

// Returns how many of values [n] are above `bound`; n is a multiple of 64.
HWY_INLINE int64_t count_above(const int32_t* HWY_RESTRICT values, int64_t n, int32_t bound) {
  const ChooseD d;
  const ChooseV bounds = hn::Set(d, bound);
  constexpr int kSums = 64 / kChooseLanes < 4 ? 64 / kChooseLanes : 4;
  ChooseV sums[kSums];
#pragma GCC unroll 4
  for (auto& sum : sums) sum = hn::Zero(d);
  for (int64_t i = 0; i < n; i += kSums * kChooseLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < kSums; ++j) {
      const auto mask = hn::Gt(hn::LoadU(d, values + i + j * kChooseLanes), bounds);
      sums[j] = hn::Sub(sums[j], hn::VecFromMask(d, mask));
    }
  }
  ChooseV sum = sums[0];
#pragma GCC unroll 4
  for (int j = 1; j < kSums; ++j) sum = hn::Add(sum, sums[j]);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// Returns the border of the k largest of values [n], 1 ≤ k < n; n is a multiple of 64.
HWY_INLINE Border find_border(const int32_t* HWY_RESTRICT values, int64_t n, int64_t k) {
  const ChooseD d;
  ChooseV least = hn::LoadU(d, values);
  ChooseV largest = least;
  for (int64_t i = kChooseLanes; i < n; i += kChooseLanes) {
    const ChooseV v = hn::LoadU(d, values + i);
    least = hn::Min(least, v);
    largest = hn::Max(largest, v);
  }
  // More than k values are above `low`, and fewer than k are above `high`.
  int64_t low = int64_t{hn::GetLane(hn::MinOfLanes(d, least))} - 1;
  int64_t high = hn::GetLane(hn::MaxOfLanes(d, largest));
  int64_t above_high = 0;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    const int64_t above = count_above(values, n, static_cast<int32_t>(middle));
    if (above == k) return {static_cast<int32_t>(middle), 0};
    if (above > k) {
      low = middle;
    } else {
      high = middle;
      above_high = above;
    }
  }
  return {static_cast<int32_t>(high), k - above_high};
}

// Returns bit i where the mask of 64 values is set.
template <class Compare>
HWY_INLINE uint64_t compare_64(const int32_t* values, Compare compare) {
  const ChooseD d;
  uint64_t word = 0;
  if constexpr (kChooseLanes >= 8) {
    uint8_t bytes[8];
#pragma GCC unroll 8
    for (int i = 0; i < 64 / kChooseLanes; ++i) {
      hn::StoreMaskBits(d, compare(hn::LoadU(d, values + i * kChooseLanes)), bytes + i * kChooseLanes / 8);
    }
    std::memcpy(&word, bytes, sizeof(word));
  } else {
    for (int i = 0; i < 64 / kChooseLanes; ++i) {
      uint8_t bits = 0;
      hn::StoreMaskBits(d, compare(hn::LoadU(d, values + i * kChooseLanes)), &bits);
      word |= uint64_t{bits} << (i * kChooseLanes);
    }
  }
  return word;
}

// Calls take(block, word) for each block of 64 values in order; the bits of `word` mark the chosen values.
template <class Take>
HWY_INLINE void for_each_block(const int32_t* values, int64_t n, Border border, Take take) {
  const ChooseD d;
  const ChooseV bound = hn::Set(d, border.value);
  for (int64_t block = 0; block < n / 64; ++block) {
    const int32_t* at = values + block * 64;
    uint64_t word = compare_64(at, [&](ChooseV v) HWY_ATTR { return hn::Gt(v, bound); });
    if (border.ties > 0) {
      uint64_t equal = compare_64(at, [&](ChooseV v) HWY_ATTR { return hn::Eq(v, bound); });
      for (; equal != 0 && border.ties > 0; equal &= equal - 1, --border.ties) word |= equal & -equal;
    }
    take(block, word);
  }
}

// Destination writes the chosen keys of one token.
class Destination {
 public:
  Destination(const IndexSelectParams& p, int64_t token)
      : p_(p), token_(token), page_ids_(p.keys.page_table + p.seq_idx[token] * p.keys.page_table_stride) {
    if (p.bits == nullptr) next_ = p.slots + token * p.topk;
  }
  // The bits of `word` mark the chosen keys of page `page` of the sequence; pages come in order.
  HWY_INLINE void take(int64_t page, uint64_t word) {
    if (p_.bits != nullptr) {
      p_.bits[token_ * p_.bits_stride + page] = word;
      return;
    }
    if (word == 0) return;
    const int32_t first = page_ids_[page] * kPageSize;
    for (; word != 0; word &= word - 1) *next_++ = first + std::countr_zero(word);
  }
  // Writes the destination's entries after the first num_pages pages.
  void finish(int64_t num_pages) {
    if (p_.bits != nullptr) {
      std::fill(p_.bits + token_ * p_.bits_stride + num_pages, p_.bits + (token_ + 1) * p_.bits_stride, 0);
      return;
    }
    int32_t* row = p_.slots + token_ * p_.topk;
    p_.counts[token_] = static_cast<int32_t>(next_ - row);
    std::fill(next_, row + p_.topk, -1);
  }

 private:
  const IndexSelectParams& p_;
  int64_t token_;
  const int32_t* page_ids_;
  int32_t* next_ = nullptr;
};

// Chooses all keys that a token sees.
inline HWY_ATTR void choose_all(const IndexSelectParams& p, int64_t token) {
  const int64_t num_keys = p.kv_len[token];
  Destination destination(p, token);
  for (int64_t key = 0; key < num_keys; key += kPageSize) {
    const int64_t rest = num_keys - key;
    destination.take(key / kPageSize, rest >= kPageSize ? ~uint64_t{0} : (uint64_t{1} << rest) - 1);
  }
  destination.finish((num_keys + kPageSize - 1) / kPageSize);
}

// Chooses the topk best keys of a token that sees more than topk keys. `scores` has kv_len integers in the
// order of the scores, and room for ⌈kv_len / 64⌉ · 64 integers; this function fills the additional ones.
inline HWY_ATTR void choose_best(const IndexSelectParams& p, int64_t token, int32_t* scores) {
  const int64_t num_keys = p.kv_len[token];
  const int64_t padded = (num_keys + 63) / 64 * 64;
  std::fill(scores + num_keys, scores + padded, std::numeric_limits<int32_t>::min());
  Destination destination(p, token);
  for_each_block(scores, padded, find_border(scores, padded, p.topk),
                 [&](int64_t page, uint64_t word) HWY_ATTR { destination.take(page, word); });
  destination.finish(padded / kPageSize);
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#endif  // per target
