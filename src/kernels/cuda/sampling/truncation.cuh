// Finds the lowest key that top-k or top-p keeps, without a sort, by histograms over ever smaller intervals
// of keys.
//
// The first level has 1,024 bins of 1/32 logit below the best logit. Each further level takes the bin in
// which count or mass crosses its bound, and divides its interval of keys into 1,024 bins again. Keys are
// unique, so the search ends when that bin holds one token or, for counts, when the bin ends exactly at the
// bound. With real logits this takes one or two levels, and never more than six. Counts and weights are
// integers, so atomics in shared memory give the same bits in any order. A level costs three cluster
// barriers: after the histograms, after the blocks' totals, and after the crossing has been found.
#pragma once

#include "kernels/cuda/sampling/row.cuh"

namespace hadal::cuda::sampling {

__device__ __forceinline__ int linear_bin(float x, float best) {
  return min(__float2int_rz((best - x) * kBinsPerLogit), kBins - 1);
}

// Returns the lowest ordered() of a float whose linear bin is at most `bin`. All lanes of a warp call it.
__device__ inline uint32_t lowest_of_bin(int bin, float best, int lane) {
  auto reaches = [&](uint64_t order) {
    return linear_bin(from_ordered(static_cast<uint32_t>(order)), best) <= bin;
  };
  uint64_t low = kOrderedMasked + 1;
  uint64_t high = ordered(best);  // belongs to bin 0
  // The result is usually within a few floats of the border in real numbers.
  const auto border = ordered(best - static_cast<float>(bin + 1) / kBinsPerLogit);
  if (border > low + 16 && border + 16 < high) {
    const unsigned reached = __ballot_sync(kAll, reaches(border - 16 + lane));
    if (reached != 0 && reached != kAll) return border - 16 + __ffs(static_cast<int>(reached)) - 1;
  }
  while (low < high) {  // 32 probes per round
    const uint64_t span = high - low;
    const unsigned reached = __ballot_sync(kAll, reaches(low + span * lane / 32));
    if (reached == 0) {
      low += span * 31 / 32 + 1;
      continue;
    }
    const uint64_t first = __ffs(static_cast<int>(reached)) - 1;
    if (first == 0) return static_cast<uint32_t>(low);
    high = low + span * first / 32;
    low += span * (first - 1) / 32 + 1;
  }
  return static_cast<uint32_t>(high);
}

struct Truncation {
  uint64_t lowest;  // only tokens with at least this key count; at least kLowestKey
  uint32_t k = 0;   // by count: how many tokens to keep
  float p = 1.0F;   // by mass: the share of `mass` to keep
  double mass = 0;  // in units of the best token's weight; 0: the mass of all tokens that count
  float best, scale;
};

// Returns a lower bound of the keys of the k best tokens: the one that the load has given if k is small
// enough and it is above `lowest`, otherwise `lowest`.
__device__ __forceinline__ uint64_t lowest_of_best(const Row& row, uint32_t least_warp_best, int64_t k,
                                                   uint64_t lowest) {
  const uint64_t key = static_cast<uint64_t>(least_warp_best) << kIdBits;
  return k <= row.num_warps() && key > lowest ? key : lowest;
}

// Lists the block's tokens with at least this key, so that the levels need not read the other tokens. If
// there are too many for the list, each level reads all tokens. The list has no order.
__device__ inline void list_candidates(Row& row, uint64_t lowest) {
  RowShared& shared = row.shared;
  __syncthreads();  // all threads have read the older list
  if (threadIdx.x == 0) shared.num_candidates = 0;
  __syncthreads();
  const Bound bound(lowest);
  row.for_each_four([&](const float4& four, int id) {
    if (fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w)) < bound.logit) return;
    const float x[4] = {four.x, four.y, four.z, four.w};
    bool kept[4];
    uint32_t num = 0;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      kept[j] = bound.keeps(x[j], id + j);
      num += kept[j] ? 1 : 0;
    }
    if (num == 0) return;
    uint32_t at = atomicAdd(&shared.num_candidates, num);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (!kept[j]) continue;
      if (at < kMaxCandidates) shared.candidates[at] = key_of<kIdBits>(x[j], id + j);
      ++at;
    }
  });
  __syncthreads();
  row.listed = shared.num_candidates <= kMaxCandidates;
}

template <bool kByMass>
struct Level {
  bool linear;
  uint64_t low, high;  // interval of keys, both ends in it; unused when linear
  int shift;

  __device__ void fill(Row& row, const Truncation& what) const {
    RowShared& shared = row.shared;
    for (int i = static_cast<int>(threadIdx.x); i < kBins; i += kThreads) {
      shared.count[i] = 0;
      if (kByMass) shared.low[i] = shared.high[i] = 0;
    }
    __syncthreads();
    // Most tokens of a row may be in the last linear bin, so each thread counts its own first: atomics of all
    // threads at one address would be slow.
    uint32_t last_count = 0;
    uint64_t last_mass = 0;
    auto count = [&](uint64_t key) {
      if (key < what.lowest || (!linear && (key < low || key > high))) return;
      const float x = from_ordered(static_cast<uint32_t>(key >> kIdBits));
      const int bin = linear ? linear_bin(x, what.best) : static_cast<int>((high - key) >> shift);
      FixedWeight weight{};
      if (kByMass) weight = fixed_weight<kBinLowBits>(weight_of(x, what.best, what.scale));
      if (linear && bin == kBins - 1) {
        ++last_count;
        if (kByMass) last_mass += joined<kBinLowBits>(weight);
        return;
      }
      atomicAdd(&shared.count[bin], 1U);
      if (kByMass) {
        if (weight.low != 0) atomicAdd(&shared.low[bin], weight.low);
        if (weight.high != 0) atomicAdd(&shared.high[bin], weight.high);
      }
    };
    if (row.listed) {
      for (uint32_t i = threadIdx.x; i < shared.num_candidates; i += kThreads) count(shared.candidates[i]);
    } else {
      const float above = Bound(linear || what.lowest > low ? what.lowest : low).logit;
      row.for_each([&](float x, int id) {
        if (x >= above) count(key_of<kIdBits>(x, id));
      });
    }
    if (linear) {
      last_count = __reduce_add_sync(kAll, last_count);
      if (kByMass) last_mass = warp_sum(last_mass);
      if (row.lane == 0 && last_count != 0) {
        atomicAdd(&shared.count[kBins - 1], last_count);
        if (kByMass) {
          atomicAdd(&shared.low[kBins - 1], static_cast<uint32_t>(last_mass & ((1U << kBinLowBits) - 1)));
          atomicAdd(&shared.high[kBins - 1], static_cast<uint32_t>(last_mass >> kBinLowBits));
        }
      }
    }
    cluster_sync();
  }

  // Adds up this block's share of the bins over the cluster, and publishes its totals.
  __device__ Row::Published totals(Row& row) const {
    RowShared& shared = row.shared;
    const auto thread = static_cast<int>(threadIdx.x);
    if (thread < kBlockBins) {
      const int bin = row.rank * kBlockBins + thread;
      uint32_t count = 0;
      uint64_t mass = 0;
#pragma unroll
      for (int r = 0; r < kClusterBlocks; ++r) {
        count += load_from_block(&shared.count[bin], r);
        if (kByMass) {
          mass += (static_cast<uint64_t>(load_from_block(&shared.high[bin], r)) << kBinLowBits) +
                  load_from_block(&shared.low[bin], r);
        }
      }
      shared.bin_count[thread] = count;
      shared.bin_mass[thread] = mass;
    }
    __syncthreads();
    if (row.warp == 0) {
      uint64_t count = 0;
      uint64_t mass = 0;
      for (int i = row.lane; i < kBlockBins; i += 32) {
        count += shared.bin_count[i];
        mass += shared.bin_mass[i];
      }
      count = warp_sum(count);
      mass = warp_sum(mass);
      if (row.lane < kClusterBlocks) {
        row.publish(0, row.lane, count);
        row.publish(1, row.lane, mass);
      }
    }
    return row.published();
  }

  // Publishes the bin in which the bound is crossed, the amount before this bin, and the number of tokens in
  // it. Warp 0 of the block that owns the bin calls it.
  __device__ void find_bin(Row& row, uint64_t before, uint64_t bound) const {
    constexpr int kEach = kBlockBins / 32;
    uint64_t own = 0;
    for (int i = 0; i < kEach; ++i) own += amount(row, row.lane * kEach + i);
    uint64_t reached = before + warp_inclusive_scan(own, row.lane);
    const unsigned crossed = __ballot_sync(kAll, reached >= bound);
    reached -= own;
    int bin = row.lane * kEach;
    for (int i = 1; i < kEach; ++i) {
      if (reached + amount(row, bin) < bound) reached += amount(row, bin++);
    }
    const int finder = __ffs(static_cast<int>(crossed)) - 1;
    reached = __shfl_sync(kAll, reached, finder);
    bin = __shfl_sync(kAll, bin, finder);
    if (row.lane < kClusterBlocks) {
      row.publish(0, row.lane, static_cast<uint64_t>(row.rank * kBlockBins + bin));
      row.publish(1, row.lane, reached);
      row.publish(2, row.lane, row.shared.bin_count[bin]);
    }
  }
  __device__ static uint64_t amount(const Row& row, int bin) {
    return kByMass ? row.shared.bin_mass[bin] : row.shared.bin_count[bin];
  }
};

// Returns the lowest key that is kept, among tokens with at least the key what.lowest. By count, these are
// the k best tokens, or all if there are no more than k. By mass, they are the fewest best tokens whose mass
// reaches the share p of what.mass.
template <bool kByMass>
__device__ uint64_t lowest_kept(Row& row, const Truncation& what) {
  Level<kByMass> level{true, what.lowest, key_of<kIdBits>(what.best, 0), 0};
  uint64_t before = 0;
  uint64_t bound = what.k;
  if (!row.listed) list_candidates(row, what.lowest);
  while (true) {
    level.fill(row, what);
    const Row::Published totals = level.totals(row);
    if (level.linear) {
      uint64_t total = 0;
      for (int r = 0; r < kClusterBlocks; ++r) total += totals[r][kByMass ? 1 : 0];
      if (kByMass) {
        const double mass = what.mass > 0 ? what.mass * 0x1p35 : static_cast<double>(total);
        bound = static_cast<uint64_t>(ceil(static_cast<double>(what.p) * mass));
        bound = bound > total ? total : bound;
        bound = bound == 0 ? 1 : bound;
      } else if (total <= bound) {
        return what.lowest;
      }
    }
    int owner = 0;
    uint64_t reached = before;
    while (reached + totals[owner][kByMass ? 1 : 0] < bound) reached += totals[owner++][kByMass ? 1 : 0];
    if (owner == row.rank && row.warp == 0) level.find_bin(row, reached, bound);
    const uint64_t* found = row.published()[owner];
    const auto bin = static_cast<int>(found[0]);
    before = found[1];
    const uint64_t in_bin = found[2];
    if (level.linear) {
      const bool last = bin == kBins - 1;
      level.low = last ? what.lowest : uint64_t{lowest_of_bin(bin, what.best, row.lane)} << kIdBits;
      level.high = bin == 0 ? key_of<kIdBits>(what.best, 0)
                            : (uint64_t{lowest_of_bin(bin - 1, what.best, row.lane)} << kIdBits) - 1;
      level.linear = false;
    } else {
      const uint64_t top = level.high - (static_cast<uint64_t>(bin) << level.shift);
      const uint64_t width = (uint64_t{1} << level.shift) - 1;
      level.low = top - level.low < width ? level.low : top - width;
      level.high = top;
    }
    if (in_bin == 1 || (!kByMass && before + in_bin == bound)) {
      return level.low < what.lowest ? what.lowest : level.low;
    }
    const int bits = 64 - __clzll(static_cast<long long>(level.high - level.low));
    level.shift = bits > kBinBits ? bits - kBinBits : 0;
  }
}

}  // namespace hadal::cuda::sampling
