// linear by weight streaming (gemm/skinny.cuh): argument checks and the choice among instantiations, bf16
// here, FP8 in skinny_fp8.cu.
#include "kernels/cuda/gemm/skinny_linear.cuh"

namespace hadal::cuda {

bool skinny_linear_takes(const LinearParams& p) {
  if (p.m < 1 || p.m > kMaxSkinnyRows || !skinny::takes_weights(p.w, 1, 0)) return false;
  if (p.w.type == WeightType::kFp8Block) {
    return aligned16(p.x_fp8.codes) && p.x_fp8.stride % 16 == 0 &&
           p.x_fp8.stride >= round_up(p.w.k, kQuantGroup);
  }
  return aligned16(p.x) && p.x_stride % 8 == 0;
}

void skinny_linear(const LinearParams& p, const Launch& launch) {
  skinny_linear(p, launch, skinny::schedule_of(p.m, p.w.n, skinny::block_count(p.w), launch.num_sms));
}

void skinny_linear(const LinearParams& p, const Launch& launch, const skinny::Schedule& schedule) {
  HADAL_CHECK(skinny_linear_takes(p), "skinny_linear does not take m {}, n {}, k {}", p.m, p.w.n, p.w.k);
  HADAL_CHECK(schedule.tokens >= p.m, "a tile of {} tokens for {} rows", schedule.tokens, p.m);
  if (p.w.type == WeightType::kFp8Block) {
    skinny::linear_fp8(p, launch, schedule);
  } else {
    skinny::linear_of<WeightType::kBF16>(p, launch, schedule);
  }
}

}  // namespace hadal::cuda
