#include "kernels/cuda/experts/few/choice.h"

#include <algorithm>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/experts/fitted.h"
#include "kernels/cuda/experts/route/choice.h"
#include "kernels/cuda/padding.h"

namespace hadal::cuda::few {
namespace {

constexpr int64_t kMaxSplitSlots = 32;

int64_t slots_of(WeightType type, int64_t k) {
  return k * weight_element_bytes(type) / kSlotK;
}
bool whole_slots(WeightType type, int64_t n, int64_t k) {
  return k * weight_element_bytes(type) % kSlotK == 0 && n % kTileRows == 0 && n > kTileRows && n < 65536;
}
bool supports_types(const ExpertsShape& s) {
  const bool fp8 = s.gate_up == WeightType::kFp8Block;
  return (fp8 || is_16_bit(s.gate_up)) && s.down == s.gate_up &&
         s.gate == (fp8 ? WeightType::kBF16 : s.gate_up);
}
bool supports_routing(const ExpertsShape& s) {
  return s.tokens >= 1 && s.tokens <= kMaxFewTokens && s.num_experts >= 1 &&
         s.num_experts <= kMaxRoutedExperts && s.num_all_experts() <= kMaxAllExperts && s.num_slots() <= 32 &&
         padded_tokens(s.tokens) * s.top_k + s.num_shared <= s.num_sms && groups_fit_lanes(s);
}

}  // namespace

int splits_of(const ExpertsShape& s) {
  using fitted::kSplitSlots;
  const int64_t slots = slots_of(s.gate_up, s.hidden);
  return static_cast<int>(std::clamp<int64_t>((slots + kSplitSlots - 1) / kSplitSlots, 1, kMaxSplits));
}

bool supports(const ExpertsShape& s, int splits) {
  if (!supports_types(s) || !supports_routing(s)) return false;
  if (!s.gate_aligned || !s.gate_up_aligned || !s.down_aligned) return false;
  if (s.hidden % 64 != 0 || s.hidden > kMaxRouterK || !whole_slots(s.gate_up, 2 * s.intermediate, s.hidden) ||
      !whole_slots(s.down, s.hidden, s.intermediate))
    return false;
  const int64_t slots = slots_of(s.gate_up, s.hidden);
  return splits >= 1 && splits <= kMaxSplits && splits <= slots &&
         (slots + splits - 1) / splits <= kMaxSplitSlots && slots_of(s.down, s.intermediate) <= kMaxDownSlots;
}

bool is_faster(const ExpertsShape& s, int splits) {
  return padded_tokens(s.tokens) * s.intermediate * splits <= fitted::kMostActivation;
}

size_t parts_count(const ExpertsShape& s) {
  return static_cast<size_t>(kRouterSplits * s.tokens) * static_cast<size_t>(round_up(s.num_experts, 4));
}

size_t sums_count(const ExpertsShape& s, int splits) {
  return static_cast<size_t>(splits * s.num_rows() * 2 * s.intermediate);
}

size_t scratch_bytes(const ExpertsShape& s, int splits) {
  return (parts_count(s) + sums_count(s, splits)) * sizeof(float);
}

}  // namespace hadal::cuda::few
