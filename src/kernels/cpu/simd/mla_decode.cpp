// Computes absorbed attention for decode and verify. A work item is one token × one split of kSplitKeys keys
// at fixed absolute positions (or of kSplitKeys selected keys); it yields an unnormalised partial (maximum,
// sum, weighted latents) for each head. The partials of a token are then merged in ascending order of
// position. The result therefore depends on the token's keys alone. See docs/kernels/cpu-attention.md.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/mla_decode.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/attention_decode-inl.h"
#include "kernels/cpu/simd/kv_read-inl.h"

#ifndef HADAL_KERNELS_CPU_SIMD_MLA_DECODE_TYPES_
#define HADAL_KERNELS_CPU_SIMD_MLA_DECODE_TYPES_
namespace hadal::cpu::simd {
namespace {

constexpr int64_t kSplitKeys = 128;
constexpr int64_t kHeadAlign = 4;  // the widest tile of heads
constexpr int64_t kKeyBlock = 8;   // keys widened and scored together: 18 KB, in L1
constexpr float kLog2E = 1.44269504088896341F;

constexpr int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// KeyBlock says where the records of up to 64 consecutive keys are: side by side or, in a selection or a
// draft tree, scattered.
struct KeyBlock {
  const std::byte* records = nullptr;  // of the first key, or, if they are scattered, of slot 0 of the pool
  const int32_t* slots = nullptr;      // [num_keys]; null: side by side
  int64_t num_keys = 0;
};

constexpr int64_t num_decode_keys(const MlaDecodeParams& p, int64_t token) {
  return p.selected != nullptr ? p.counts[token] : p.kv_len[token];
}

// Returns the block of `token` that begins at its key `key`, a multiple of 64, without regard to a draft
// tree.
inline KeyBlock key_block(const MlaDecodeParams& p, int64_t token, int64_t key) {
  const int64_t num_keys = std::min<int64_t>(kPageSize, num_decode_keys(p, token) - key);
  if (p.selected != nullptr) return {p.kv.pool, p.selected + token * p.selected_stride + key, num_keys};
  const int32_t page = p.kv.page_table[p.seq_idx[token] * p.kv.page_table_stride + key / kPageSize];
  return {p.kv.pool + page * p.kv.layout.page_bytes(), nullptr, num_keys};
}

// Returns the block, too, but takes each record from the place that draft_tree.h gives it. `slots` [64] is
// memory for the places.
inline KeyBlock key_block(const MlaDecodeParams& p, int64_t token, int64_t key, int32_t* slots) {
  const KeyBlock block = key_block(p, token, key);
  if (p.ancestors == nullptr || is_causal(p.ancestors[token])) return block;
  const int64_t num_keys = num_decode_keys(p, token);
  const uint64_t mask = p.ancestors[token];
  if (key + block.num_keys <= root_position(mask, num_keys)) return block;
  const int32_t* pages = p.kv.page_table + p.seq_idx[token] * p.kv.page_table_stride;
  for (int64_t i = 0; i < block.num_keys; ++i) {
    const int64_t position = record_position(mask, num_keys, key + i);
    slots[i] = static_cast<int32_t>(pages[position / kPageSize] * kPageSize + position % kPageSize);
  }
  return {p.kv.pool, slots, block.num_keys};
}

struct DecodeItem {
  int32_t token = 0;
  int32_t split = 0;
};

// DecodeRun is a run of consecutive items of one token.
struct DecodeRun {
  int64_t begin = 0;
  int64_t count = 0;
};

// Partial is the partial result of one item; heads beyond num_heads are padding.
struct Partial {
  float* maximum = nullptr;  // [padded_heads]
  float* sum = nullptr;      // [padded_heads]
  float* latent = nullptr;   // [padded_heads, 512]

  static int64_t floats(int64_t padded_heads) { return round_up(padded_heads * (kKvLatentDim + 2), 16); }
  static Partial at(float* base, int64_t index, int64_t padded_heads) {
    float* p = base + index * floats(padded_heads);
    // The latents come first because they are read and written by aligned vectors.
    return {p + padded_heads * kKvLatentDim, p + padded_heads * (kKvLatentDim + 1), p};
  }
};

// DecodeWorkspace holds the buffers of one thread for one item.
struct DecodeWorkspace {
  float* rows = nullptr;     // [64, 576]: the page, widened
  float* scores = nullptr;   // [padded_heads, 64]
  float* rescale = nullptr;  // [padded_heads]

  static int64_t floats(int64_t padded_heads) {
    return round_up(kPageSize * kKvRowDim + padded_heads * (kPageSize + 1), 16);
  }
  static DecodeWorkspace at(float* base, int64_t index, int64_t padded_heads) {
    float* p = base + index * floats(padded_heads);
    float* scores = p + kPageSize * kKvRowDim;
    return {p, scores, scores + padded_heads * kPageSize};
  }
};

}  // namespace
}  // namespace hadal::cpu::simd
#endif  // HADAL_KERNELS_CPU_SIMD_MLA_DECODE_TYPES_

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Prefetches a later block's records into the second-level cache while a block's tiles are computed. The
// prefetches are spread evenly over the tiles' inner loops, because records come from memory and would stall
// the tiles' loads if they were requested in bursts.
class Prefetcher {
 public:
  // If the block has no keys, nothing is prefetched.
  Prefetcher(const KeyBlock& block, const KvLayout& layout, int64_t padded_heads)
      : block_(block),
        piece_bytes_(block.slots == nullptr ? layout.page_bytes() : layout.row_bytes()),
        pieces_left_(block.slots == nullptr ? std::min<int64_t>(1, block.num_keys) : block.num_keys) {
    // A weighted-sum tile takes about twice as long as a score tile.
    const int64_t tiles =
        padded_heads / kTileHeads * (kPageSize / kTileKeys + 2 * kKvLatentDim / (kTileVectors * kAttnLanes));
    tile_bytes_ = (layout.page_bytes() + tiles - 1) / tiles;
    next_piece();
  }
  // Returns the slice to prefetch during a tile of `weight` and `iterations` inner steps. Where records are
  // scattered, a slice ends with its record.
  HWY_INLINE PrefetchSlice take(int weight, int iterations) {
    if (at_ == end_) next_piece();
    const std::byte* from = at_;
    at_ = end_ - at_ > weight * tile_bytes_ ? at_ + weight * tile_bytes_ : end_;
    return {from, static_cast<int32_t>((at_ - from + iterations - 1) / iterations)};
  }

 private:
  HWY_INLINE void next_piece() {
    if (pieces_left_ == 0) return;
    --pieces_left_;
    at_ = block_.slots == nullptr ? block_.records : block_.records + *block_.slots++ * piece_bytes_;
    end_ = at_ + piece_bytes_;
  }

  KeyBlock block_;
  int64_t piece_bytes_;
  int64_t pieces_left_;
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  int64_t tile_bytes_;
};

// Widens keys [begin, begin + count) of a block to rows [count, 576].
HWY_INLINE void read_keys(const KeyBlock& block, const KvLayout& layout, int64_t begin, int64_t count,
                          float* rows) {
  const int64_t row_bytes = layout.row_bytes();
  if (block.slots == nullptr) {
    read_records(block.records + begin * row_bytes, layout, static_cast<int>(count), rows);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    read_records(block.records + block.slots[begin + i] * row_bytes, layout, 1, rows + i * kKvRowDim);
  }
}

// Computes scores[h, j] = q[h] · record j of the block, j < num_keys; the rest of the 64 columns become
// −infinity. The widened records stay in ws.rows.
HWY_INLINE void score_block(const float* q, int64_t padded_heads, const KeyBlock& block,
                            const KvLayout& layout, const DecodeWorkspace& ws, Prefetcher& prefetcher) {
  const int64_t num_keys = block.num_keys;
  for (int64_t key = 0; key < num_keys; key += kKeyBlock) {
    const int64_t count = std::min(kKeyBlock, num_keys - key);
    float* rows = ws.rows + key * kKvRowDim;
    read_keys(block, layout, key, count, rows);
    const int64_t scored = round_up(count, kTileKeys);
    std::memset(rows + count * kKvRowDim, 0, (scored - count) * kKvRowDim * sizeof(float));
    for (int64_t head = 0; head < padded_heads; head += kTileHeads) {
      for (int64_t j = 0; j < scored; j += kTileKeys) {
        score_tile(q + head * kKvRowDim, rows + j * kKvRowDim, prefetcher.take(1, kKvRowDim / kAttnLanes),
                   ws.scores + head * kPageSize + key + j);
      }
    }
  }
  if (num_keys == kPageSize) return;
  for (int64_t head = 0; head < padded_heads; ++head) {
    float* row = ws.scores + head * kPageSize;
    std::fill(row + num_keys, row + kPageSize, -std::numeric_limits<float>::infinity());
  }
}

// Computes one split of one token: q is [padded_heads, 576]. `next_split` is the split that this thread will
// probably process next.
void attend_split(const MlaDecodeParams& p, const float* q, int64_t padded_heads, const DecodeItem& item,
                  const KeyBlock& next_split, const DecodeWorkspace& ws, const Partial& partial) {
  const DecodeD d;
  const float log2_scale = p.softmax_scale * kLog2E;
  const int64_t key_begin = item.split * kSplitKeys;
  const int64_t key_end = std::min(num_decode_keys(p, item.token), key_begin + kSplitKeys);
  for (int64_t key = key_begin; key < key_end; key += kPageSize) {
    const bool first = key == key_begin;
    int32_t slots[kPageSize];
    const KeyBlock block = key_block(p, item.token, key, slots);
    const KeyBlock next = key + kPageSize < key_end ? key_block(p, item.token, key + kPageSize) : next_split;
    Prefetcher prefetcher(next, p.kv.layout, padded_heads);
    score_block(q, padded_heads, block, p.kv.layout, ws, prefetcher);
    for (int64_t head = 0; head < padded_heads; ++head) {
      float* scores = ws.scores + head * kPageSize;
      const float page_maximum = row_maximum(scores);
      const float maximum = first ? page_maximum : std::max(partial.maximum[head], page_maximum);
      const float sum = exponentiate_row(scores, maximum, log2_scale);
      if (first) {
        partial.sum[head] = sum;
      } else {
        const DecodeV step = hn::Set(d, (partial.maximum[head] - maximum) * log2_scale);
        ws.rescale[head] = hn::GetLane(exp2_nonpositive(d, step));
        partial.sum[head] = partial.sum[head] * ws.rescale[head] + sum;
      }
      partial.maximum[head] = maximum;
    }
    for (int64_t column = 0; column < kKvLatentDim; column += kTileVectors * kAttnLanes) {
      for (int64_t head = 0; head < padded_heads; head += kTileHeads) {
        weigh_tile(ws.scores + head * kPageSize, ws.rows + column, static_cast<int>(block.num_keys),
                   prefetcher.take(2, static_cast<int>(block.num_keys)), first ? nullptr : ws.rescale + head,
                   partial.latent + head * kKvLatentDim + column);
      }
    }
  }
}

// Merges `count` consecutive partials into the running state (maximum, sum, out [512]) of one head. If
// `starts`, the first partial is the token's first split and the state is not read. If `ends`, out is divided
// by the sum.
void fold_partials(float* partials, int64_t count, int64_t padded_heads, int64_t head, bool starts, bool ends,
                   float log2_scale, float* maximum, float* sum, float* out) {
  const DecodeD d;
  for (int64_t i = 0; i < count; ++i) {
    const Partial partial = Partial::at(partials, i, padded_heads);
    const float* latent = partial.latent + head * kKvLatentDim;
    if (starts && i == 0) {
      *maximum = partial.maximum[head];
      *sum = partial.sum[head];
      std::memcpy(out, latent, kKvLatentDim * sizeof(float));
      continue;
    }
    const float peak = std::max(*maximum, partial.maximum[head]);
    const DecodeV keep = exp2_nonpositive(d, hn::Set(d, (*maximum - peak) * log2_scale));
    const DecodeV take = exp2_nonpositive(d, hn::Set(d, (partial.maximum[head] - peak) * log2_scale));
    *maximum = peak;
    *sum = *sum * hn::GetLane(keep) + partial.sum[head] * hn::GetLane(take);
    for (int k = 0; k < kKvLatentDim; k += kAttnLanes) {
      const DecodeV kept = hn::Mul(hn::LoadU(d, out + k), keep);
      hn::StoreU(hn::MulAdd(hn::Load(d, latent + k), take, kept), d, out + k);
    }
  }
  if (!ends) return;
  const DecodeV inverse = hn::Set(d, 1.0F / *sum);
  for (int k = 0; k < kKvLatentDim; k += kAttnLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, out + k), inverse), d, out + k);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(attend_split);
HWY_EXPORT(fold_partials);

namespace {

// Partials are kept for a window of items at a time, so that long contexts need bounded memory.
constexpr int64_t kWindowBytes = int64_t{32} << 20;

// Returns tile-aligned queries: p.q itself, or a copy with zero heads appended.
const float* padded_queries(const MlaDecodeParams& p, int64_t padded_heads, Scratch& scratch) {
  if (padded_heads == p.num_heads) return p.q;
  const int64_t row = padded_heads * kKvRowDim;
  auto* q = static_cast<float*>(scratch.allocate(p.num_tokens * row * sizeof(float)));
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    float* out = q + token * row;
    std::copy_n(p.q + token * p.num_heads * kKvRowDim, p.num_heads * kKvRowDim, out);
    std::fill(out + p.num_heads * kKvRowDim, out + row, 0.0F);
  }
  return q;
}

}  // namespace

void mla_decode(const MlaDecodeParams& p, Context& ctx) {
  if (p.num_tokens == 0) return;
  HADAL_CHECK_GT(p.num_heads, 0);
  const int64_t padded_heads = round_up(p.num_heads, kHeadAlign);
  int64_t num_items = 0;
  for (int64_t token = 0; token < p.num_tokens; ++token) {
    num_items += (num_decode_keys(p, token) + kSplitKeys - 1) / kSplitKeys;
    if (num_decode_keys(p, token) > 0) continue;
    const int64_t row = p.num_heads * int64_t{kKvLatentDim};
    std::fill_n(p.out + token * row, row, 0.0F);
  }
  if (num_items == 0) return;

  const int64_t partial_floats = Partial::floats(padded_heads);
  const int64_t window =
      std::min(num_items, std::max<int64_t>(1, kWindowBytes / (partial_floats * int64_t{sizeof(float)})));
  const auto floats = [&](int64_t count) {
    return static_cast<float*>(ctx.scratch.allocate(count * sizeof(float)));
  };
  const float* q = padded_queries(p, padded_heads, ctx.scratch);
  float* partials = floats(window * partial_floats);
  float* workspaces = floats(ctx.pool.num_threads() * DecodeWorkspace::floats(padded_heads));
  float* maxima = floats(p.num_tokens * p.num_heads);
  float* sums = floats(p.num_tokens * p.num_heads);
  auto* items = static_cast<DecodeItem*>(ctx.scratch.allocate(window * sizeof(DecodeItem)));
  auto* runs = static_cast<DecodeRun*>(ctx.scratch.allocate(window * sizeof(DecodeRun)));

  int32_t token = 0;
  int32_t split = 0;
  for (int64_t done = 0; done < num_items;) {
    int64_t count = 0;
    int64_t num_runs = 0;
    while (count < window && done + count < num_items) {
      if (int64_t{split} * kSplitKeys >= num_decode_keys(p, token)) {
        ++token;
        split = 0;
        continue;
      }
      if (count == 0 || items[count - 1].token != token) runs[num_runs++] = {count, 0};
      ++runs[num_runs - 1].count;
      items[count++] = {token, split++};
    }
    ctx.pool.parallel_for(count, 1, [&](int64_t begin, int64_t end, int thread_idx) {
      const auto ws = DecodeWorkspace::at(workspaces, thread_idx, padded_heads);
      for (int64_t i = begin; i < end; ++i) {
        const DecodeItem item = items[i];
        // Threads fetch items in turn, so this thread's next item is about num_threads further on.
        const DecodeItem next = items[std::min(count - 1, i + ctx.pool.num_threads())];
        HWY_DYNAMIC_DISPATCH(attend_split)
        (p, q + item.token * padded_heads * kKvRowDim, padded_heads, item,
         key_block(p, next.token, next.split * kSplitKeys), ws, Partial::at(partials, i, padded_heads));
      }
    });
    constexpr int64_t kFoldHeads = 4;  // heads per task: 2,048 values per split, about as long as a fork-join
    const int64_t blocks = (p.num_heads + kFoldHeads - 1) / kFoldHeads;
    ctx.pool.parallel_for(num_runs * blocks, 1, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
      for (int64_t i = begin; i < end; ++i) {
        const DecodeRun run = runs[i / blocks];
        const DecodeItem first = items[run.begin];
        const bool ends = (first.split + run.count) * kSplitKeys >= num_decode_keys(p, first.token);
        const int64_t head_end = std::min<int64_t>(p.num_heads, (i % blocks + 1) * kFoldHeads);
        for (int64_t head = i % blocks * kFoldHeads; head < head_end; ++head) {
          const int64_t row = first.token * int64_t{p.num_heads} + head;
          HWY_DYNAMIC_DISPATCH(fold_partials)
          (partials + run.begin * partial_floats, run.count, padded_heads, head, first.split == 0, ends,
           p.softmax_scale * kLog2E, maxima + row, sums + row, p.out + row * kKvLatentDim);
        }
      }
    });
    done += count;
  }
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
