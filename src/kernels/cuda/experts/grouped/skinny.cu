// grouped_linear by weight streaming (gemm/skinny/kernel.cuh), bf16 here, the other types in files of their
// own.
#include "kernels/cuda/experts/grouped/skinny.cuh"

namespace hadal::cuda {

static_assert(skinny::kMaxExperts == kMaxStreamedExperts);

bool grouped_skinny_takes(const GroupedLinearParams& p) {
  if (p.num_rows < 1 || p.num_experts < 1 || p.num_experts > skinny::kMaxExperts) return false;
  return skinny::takes_weights(p.w, p.num_experts, p.expert_stride) &&
         skinny::takes_rows(p.w.type, p.x, p.x_stride, p.x_quantized, p.w.k);
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
  switch (p.w.type) {
    case WeightType::kF16:
      return skinny::grouped_f16(p, launch, schedule);
    case WeightType::kFp8Block:
      return skinny::grouped_fp8(p, launch, schedule);
    case WeightType::kInt8Block:
      return skinny::grouped_int8(p, launch, schedule);
    case WeightType::kFp8Channel:
    case WeightType::kInt8Channel:
      return skinny::grouped_channel(p, launch, schedule);
    default:
      return skinny::grouped_of<WeightType::kBF16>(p, launch, schedule);
  }
}

}  // namespace hadal::cuda
