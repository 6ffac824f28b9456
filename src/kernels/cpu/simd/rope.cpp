// Computes RoPE in place on interleaved pairs: two products and one sum for each value, as in the reference.
#include <cstdint>

#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/rope.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void rotate_rows(const RopeParams& p, int64_t row_begin, int64_t row_end) {
  constexpr int kPairs = 32;
  const hn::CappedTag<float, 16> d;
  using V = hn::VFromD<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int64_t i = row_begin; i < row_end; ++i) {
    const float* table = p.cos_sin + int64_t{p.positions[i]} * 2 * kPairs;
    for (int64_t head = 0; head < p.num_heads; ++head) {
      float* x = p.x + i * p.row_stride + head * p.head_stride;
      for (int pair = 0; pair < kPairs; pair += lanes) {
        const V cosine = hn::LoadU(d, table + pair);
        const V sine = hn::LoadU(d, table + kPairs + pair);
        V a;
        V b;
        hn::LoadInterleaved2(d, x + 2 * pair, a, b);
        hn::StoreInterleaved2(hn::Sub(hn::Mul(a, cosine), hn::Mul(b, sine)),
                              hn::Add(hn::Mul(b, cosine), hn::Mul(a, sine)), d, x + 2 * pair);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(rotate_rows);

void rope(const RopeParams& p, Context& ctx) {
  // A task has about 64k values, which is some 10 µs of work.
  const int64_t grain = 1024 / (p.num_heads > 0 ? p.num_heads : 1) + 1;
  ctx.pool.parallel_for(p.m, grain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    HWY_DYNAMIC_DISPATCH(rotate_rows)(p, begin, end);
  });
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
