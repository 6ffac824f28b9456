// grouped_linear by weight streaming (gemm/skinny.cuh), bf16 here, FP8 in grouped_skinny_fp8.cu.
#include "kernels/cuda/moe/grouped_skinny.cuh"

namespace hadal::cuda {

static_assert(skinny::kMaxExperts == kMaxStreamedExperts);

bool grouped_skinny_takes(const GroupedLinearParams& p) {
  if (p.num_rows < 1 || p.num_experts < 1 || p.num_experts > skinny::kMaxExperts) return false;
  if (!skinny::takes_weights(p.w, p.num_experts, p.expert_stride)) return false;
  if (p.w.type == WeightType::kFp8Block) {
    return aligned16(p.x_fp8.codes) && p.x_fp8.stride % 16 == 0 &&
           p.x_fp8.stride >= round_up(p.w.k, kQuantGroup);
  }
  return aligned16(p.x) && p.x_stride % 8 == 0;
}

void grouped_skinny_linear(const GroupedLinearParams& p, const Launch& launch) {
  grouped_skinny_linear(p, launch,
                        skinny::grouped_schedule_of(p.num_rows, p.num_experts, p.w.n,
                                                    skinny::block_count(p.w), launch.num_sms));
}

void grouped_skinny_linear(const GroupedLinearParams& p, const Launch& launch,
                           const skinny::Schedule& schedule) {
  HADAL_CHECK(grouped_skinny_takes(p), "grouped_skinny_linear does not take {} rows, {} experts, n {}, k {}",
              p.num_rows, p.num_experts, p.w.n, p.w.k);
  if (p.w.type == WeightType::kFp8Block) {
    skinny::grouped_fp8(p, launch, schedule);
  } else {
    skinny::grouped_of<WeightType::kBF16>(p, launch, schedule);
  }
}

}  // namespace hadal::cuda
