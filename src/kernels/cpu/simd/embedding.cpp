#include <cstdint>
#include <cstring>

#include "base/float_types.h"
#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/embedding.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void widen_bf16_row(const bf16* in, int64_t count, float* out) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> d32;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t k = 0;
  for (; k + lanes <= count; k += lanes) {
    const auto bits = hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(in + k)));
    hn::StoreU(hn::BitCast(d, hn::ShiftLeft<16>(bits)), d, out + k);
  }
  for (; k < count; ++k) out[k] = to_float(in[k]);
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(widen_bf16_row);

void embedding(const EmbeddingParams& p, Context& ctx) {
  // A task has at least 64k values, which is some 10 µs of work.
  const int64_t grain = 65536 / (p.hidden > 0 ? p.hidden : 1) + 1;
  ctx.pool.parallel_for(p.m, grain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t at = p.ids[i] * p.hidden;
      float* y = p.y + i * p.hidden;
      if (p.type == EmbeddingType::kF32) {
        std::memcpy(y, static_cast<const float*>(p.table) + at, p.hidden * sizeof(float));
      } else {
        HWY_DYNAMIC_DISPATCH(widen_bf16_row)(static_cast<const bf16*>(p.table) + at, p.hidden, y);
      }
    }
  });
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
