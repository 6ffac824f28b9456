#include "kernels/cuda/mla/prefill/prefill.h"

#include "base/check.h"

namespace hadal::cuda {

void mla_prefill(const DevicePrefillParams& p, const Launch& launch) {
  HADAL_CHECK(p.num_heads >= 1, "num_heads is {}; must be at least 1", p.num_heads);
  HADAL_CHECK(p.softmax_scale > 0.0F, "softmax_scale is {}; must be above 0", p.softmax_scale);
  HADAL_CHECK(!p.accumulate || p.lse != nullptr, "accumulate needs the lse of the previous pass");
  HADAL_CHECK(p.bits == nullptr || !p.f16, "bits of selected keys need bf16 rows");
  for (int r = 0; r < p.num_runs; ++r) {
    const PrefillSegmentRun& run = p.host_runs[r];
    HADAL_CHECK(p.bits == nullptr || p.bits_stride * 64 >= run.k_len, "bits_stride is {}; run {} has {} keys",
                p.bits_stride, r, run.k_len);
    HADAL_CHECK(run.q_len >= 0 && run.k_len >= 0 && run.q_begin >= 0 && run.k_begin >= 0 &&
                    int64_t{run.q_begin} + run.q_len <= p.m && int64_t{run.k_begin} + run.k_len <= p.num_keys,
                "run {}: queries {} + {} of {}, keys {} + {} of {}", r, run.q_begin, run.q_len, p.m,
                run.k_begin, run.k_len, p.num_keys);
  }
  if (p.num_runs == 0) return;
  if (launch.reference || !prefill_sm90_supports(p)) {
    reference::mla_prefill(p, launch);
  } else {
    prefill_sm90(p, launch);
  }
}

}  // namespace hadal::cuda
