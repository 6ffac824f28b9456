// Computes RMSNorm with the order of summation fixed in params/elementwise.h: 16 partial sums in double,
// whatever the vector width.
#include <cmath>
#include <cstdint>

#include "kernels/cpu/cpu_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/rms_norm.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int kPartials = 16;

// Computes partials[k % 16] += x[k]² for k ascending. The square of a float32 is exact in double, so a fused
// and a separate addition give the same result.
HWY_INLINE void sum_squares(const float* x, int64_t n, double* partials) {
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  using VD = hn::VFromD<decltype(dd)>;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(dd));
  constexpr int kVectors = kPartials / kLanes;
  VD sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(dd);
  int64_t k = 0;
  for (; k + kPartials <= n; k += kPartials) {
    HWY_UNROLL(kVectors)
    for (int v = 0; v < kVectors; ++v) {
      const VD value = hn::PromoteTo(dd, hn::LoadU(df, x + k + v * kLanes));
      sums[v] = hn::MulAdd(value, value, sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[v], dd, partials + v * kLanes);
  for (; k < n; ++k) partials[k % kPartials] += static_cast<double>(x[k]) * x[k];
}

void normalise_rows(const RmsNormParams& p, int64_t row_begin, int64_t row_end) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t whole = p.n - p.n % lanes;
  for (int64_t i = row_begin; i < row_end; ++i) {
    const float* x = p.x + i * p.x_stride;
    float* y = p.y + i * p.y_stride;
    if (p.residual != nullptr) {
      float* residual = p.residual + i * p.n;
      int64_t k = 0;
      for (; k < whole; k += lanes) {
        hn::StoreU(hn::Add(hn::LoadU(d, residual + k), hn::LoadU(d, x + k)), d, residual + k);
      }
      for (; k < p.n; ++k) residual[k] += x[k];
      x = residual;
    }
    double partials[kPartials];
    sum_squares(x, p.n, partials);
    double sum = 0.0;
    for (double partial : partials) sum += partial;
    const auto factor =
        static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(p.n) + static_cast<double>(p.eps)));
    const auto factors = hn::Set(d, factor);
    int64_t k = 0;
    for (; k < whole; k += lanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + k), factors), hn::LoadU(d, p.weight + k)), d, y + k);
    }
    for (; k < p.n; ++k) y[k] = x[k] * factor * p.weight[k];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace hadal::cpu::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(normalise_rows);

void rms_norm(const RmsNormParams& p, Context& ctx) {
  // A task has at least 64k values, some 10 µs of work; fewer rows than a task has run on the calling thread.
  const int64_t grain = 65536 / (p.n > 0 ? p.n : 1) + 1;
  ctx.pool.parallel_for(p.m, grain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    HWY_DYNAMIC_DISPATCH(normalise_rows)(p, begin, end);
  });
}

}  // namespace hadal::cpu::simd
#endif  // HWY_ONCE
