// Makes index keys and queries (kernels/params/indexer.h), bit-identical to the reference: the 128 values of
// a key or of a head stay in vectors from rope to rounding.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/float_types.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/index_write.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd/kv_read-inl.h"
#include "kernels/cpu/simd/round-inl.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using IndexD = hn::CappedTag<float, 16>;
using IndexV = hn::VFromD<IndexD>;
constexpr int kIndexLanes = static_cast<int>(hn::MaxLanes(IndexD()));
constexpr int kIndexVectors = kIndexHeadDim / kIndexLanes;

HWY_INLINE void load_values(const float* from, IndexV (&v)[kIndexVectors]) {
  const IndexD d;
#pragma GCC unroll 16
  for (int i = 0; i < kIndexVectors; ++i) v[i] = hn::LoadU(d, from + i * kIndexLanes);
}

HWY_INLINE void store_values(const IndexV (&v)[kIndexVectors], float* to) {
  const IndexD d;
#pragma GCC unroll 16
  for (int i = 0; i < kIndexVectors; ++i) hn::StoreU(v[i], d, to + i * kIndexLanes);
}

// Rotates the first 64 values by halves. `table` has 32 cosines, then 32 sines.
HWY_INLINE void rotate_halves(const float* table, IndexV (&v)[kIndexVectors]) {
  const IndexD d;
  constexpr int kPairs = kIndexRopeDim / 2;
  constexpr int kHalf = kPairs / kIndexLanes;
#pragma GCC unroll 16
  for (int i = 0; i < kHalf; ++i) {
    const IndexV cosine = hn::LoadU(d, table + i * kIndexLanes);
    const IndexV sine = hn::LoadU(d, table + kPairs + i * kIndexLanes);
    const IndexV a = v[i];
    const IndexV b = v[i + kHalf];
    v[i] = hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine));
    v[i + kHalf] = hn::Add(hn::Mul(b, cosine), hn::Mul(a, sine));
  }
}

#if HWY_TARGET != HWY_SCALAR
// Returns each lane's partner at the given distance within the vector.
template <int kDistance>
HWY_INLINE IndexV partner_lanes(IndexV v) {
  const IndexD d;
  if constexpr (kDistance == 1) {
    return hn::Reverse2(d, v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else if constexpr (kDistance == 4) {
    return hn::SwapAdjacentBlocks(v);
  } else {
    static_assert(kDistance == 8, "vectors have at most 16 lanes");
    return hn::ConcatLowerUpper(d, v, v);
  }
}
#endif

// Does the butterflies at distance kDistance and all smaller ones.
template <int kDistance>
HWY_INLINE void butterflies(IndexV (&v)[kIndexVectors]) {
  if constexpr (kDistance >= kIndexLanes) {
    constexpr int kStep = kDistance / kIndexLanes;
#pragma GCC unroll 16
    for (int i = 0; i < kIndexVectors; ++i) {
      if ((i & kStep) != 0) continue;
      const IndexV a = v[i];
      const IndexV b = v[i + kStep];
      v[i] = hn::Add(a, b);
      v[i + kStep] = hn::Sub(a, b);
    }
  } else {
#if HWY_TARGET != HWY_SCALAR
    // A lane of the upper half becomes partner − lane, which is partner + (lane with its sign flipped).
    const IndexD d;
    const hn::RebindToUnsigned<IndexD> du;
    const auto upper = hn::And(hn::Iota(du, 0U), hn::Set(du, static_cast<uint32_t>(kDistance)));
    const IndexV flip = hn::BitCast(d, hn::ShiftLeft<31 - std::countr_zero(unsigned{kDistance})>(upper));
#pragma GCC unroll 16
    for (int i = 0; i < kIndexVectors; ++i)
      v[i] = hn::Add(partner_lanes<kDistance>(v[i]), hn::Xor(v[i], flip));
#endif
  }
  if constexpr (kDistance > 1) butterflies<kDistance / 2>(v);
}

HWY_INLINE void hadamard(IndexV (&v)[kIndexVectors]) {
  butterflies<kIndexHeadDim / 2>(v);
  const IndexV factor = hn::Set(IndexD(), kIndexHadamardScale);
#pragma GCC unroll 16
  for (int i = 0; i < kIndexVectors; ++i) v[i] = hn::Mul(v[i], factor);
}

// Writes the codes of the 128 values and returns their scale.
HWY_INLINE float round_values(const IndexV (&v)[kIndexVectors], std::byte* codes) {
  const IndexD d;
  const IndexV zero = hn::Zero(d);
  IndexV amax = zero;
#pragma GCC unroll 16
  for (int i = 0; i < kIndexVectors; ++i) {
    amax = hn::Max(amax, hn::IfThenElse(hn::IsNaN(v[i]), zero, hn::Abs(v[i])));
  }
  const float scale = power_of_two_scale(hn::GetLane(hn::MaxOfLanes(d, amax)));
  const IndexV divisor = hn::Set(d, scale);
#pragma GCC unroll 16
  for (int i = 0; i < kIndexVectors; ++i) {
    store_u8(d, round_bits<4, 3>(d, hn::Div(v[i], divisor), kFp8E4m3Max, 0x7fU), codes + i * kIndexLanes);
  }
  return scale;
}

// Computes LayerNorm with the sums of params/indexer.h: 16 partial sums in double, whatever the vector width.
HWY_INLINE void layer_norm(const float* x, const IndexWriteParams& p, float* y) {
  constexpr int kPartials = 16;
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  using VD = hn::VFromD<decltype(dd)>;
  constexpr int kWidth = static_cast<int>(hn::MaxLanes(dd));
  constexpr int kVectors = kPartials / kWidth;
  const auto load = [&](const float* from) HWY_ATTR { return hn::PromoteTo(dd, hn::LoadU(df, from)); };
  const auto sum_in_partials = [&](auto term) HWY_ATTR {
    VD sums[kVectors];
#pragma GCC unroll 16
    for (auto& sum : sums) sum = hn::Zero(dd);
    for (int i = 0; i < kIndexHeadDim; i += kPartials) {
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) sums[v] = hn::Add(sums[v], term(load(x + i + v * kWidth)));
    }
    double partials[kPartials];
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[v], dd, partials + v * kWidth);
    double sum = 0.0;
    for (double partial : partials) sum += partial;
    return sum;
  };
  const VD mean = hn::Set(dd, sum_in_partials([](VD value) HWY_ATTR { return value; }) / kIndexHeadDim);
  const double squares = sum_in_partials([&](VD value) HWY_ATTR {
    const VD difference = hn::Sub(value, mean);
    return hn::Mul(difference, difference);
  });
  const VD factor = hn::Set(dd, 1.0 / std::sqrt(squares / kIndexHeadDim + static_cast<double>(p.norm_eps)));
  for (int i = 0; i < kIndexHeadDim; i += kWidth) {
    const VD scaled = hn::Mul(hn::Mul(hn::Sub(load(x + i), mean), factor), load(p.norm_weight + i));
    hn::StoreU(hn::DemoteTo(df, hn::Add(scaled, load(p.norm_bias + i))), df, y + i);
  }
}

void write_keys(const IndexWriteParams& p, int64_t begin, int64_t end) {
  const KvLayout layout{.index = p.layout};
  for (int64_t i = begin; i < end; ++i) {
    float key[kIndexHeadDim];
    layer_norm(p.k + i * p.k_stride, p, key);
    IndexV v[kIndexVectors];
    load_values(key, v);
    rotate_halves(p.cos_sin + int64_t{p.positions[i]} * kIndexRopeDim, v);
    hadamard(v);
    std::byte* page = p.pool + p.slots[i] / kPageSize * layout.index_page_bytes();
    const int64_t offset = p.slots[i] % kPageSize;
    if (p.layout == KvIndex::kF32) {
      store_values(v, key);
      std::memcpy(page + offset * kKvIndexBytesF32, key, kKvIndexBytesF32);
      continue;
    }
    const float scale = round_values(v, page + offset * kIndexHeadDim);
    std::memcpy(page + kKvIndexScalesOffset + offset * sizeof(scale), &scale, sizeof(scale));
  }
}

// Makes the queries of rows [begin, end), where each head of each token is a row.
void make_queries(const IndexQueryParams& p, int64_t begin, int64_t end) {
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.num_heads) * kIndexHeadDim));
  for (int64_t row = begin; row < end; ++row) {
    float* q = p.q + row * kIndexHeadDim;
    IndexV v[kIndexVectors];
    load_values(q, v);
    rotate_halves(p.cos_sin + int64_t{p.positions[row / p.num_heads]} * kIndexRopeDim, v);
    hadamard(v);
    p.w[row] *= factor;
    if (p.layout == KvIndex::kF32) {
      store_values(v, q);
      continue;
    }
    std::byte codes[kIndexHeadDim];
    p.w[row] *= round_values(v, codes);
    widen_values<LoadKvE4m3>(codes, kIndexHeadDim, q);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(write_keys);
HWY_EXPORT(make_queries);

namespace {

constexpr int64_t kGrain = 128;  // rows: some 10 µs of work

}  // namespace

void index_write(const IndexWriteParams& p, Context& ctx) {
  ctx.pool.parallel_for(p.m, kGrain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    HWY_DYNAMIC_DISPATCH(write_keys)(p, begin, end);
  });
}

void index_query(const IndexQueryParams& p, Context& ctx) {
  ctx.pool.parallel_for(p.m * p.num_heads, kGrain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    HWY_DYNAMIC_DISPATCH(make_queries)(p, begin, end);
  });
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
