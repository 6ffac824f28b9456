// few_experts: which shapes they take, how k is split, what memory they need. experts/few/kernel.cuh holds
// the kernels.
#include "kernels/cuda/experts/few/few_experts.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/choice.h"
#include "kernels/cuda/experts/route/kernels.h"
#include "kernels/cuda/padding.h"

namespace hadal::cuda {
namespace {

using few::kMaxSplits;
using few::kTileRows;

constexpr int64_t kSplitSlots = 8;  // of k that a block of gate_up has of a tile, if splits suffice
constexpr int64_t kMaxSplitSlots = 32;
constexpr int64_t kMostActivation = 16384;  // floats of gate that a block adds up, an expert of all tokens

int64_t slots_of(const MatrixWeight& w) {
  return w.k * weight_element_bytes(w.type) / few::kSlotK;
}
bool whole_slots(const MatrixWeight& w) {
  return w.k * weight_element_bytes(w.type) % few::kSlotK == 0 && w.n % kTileRows == 0 && w.n > kTileRows &&
         w.n < 65536 && w.row_stride >= w.k && w.row_stride * weight_element_bytes(w.type) % 16 == 0 &&
         on_16_bytes(w.data);
}
int64_t num_rows(const FewExpertsParams& p) {
  return p.route.m * (p.route.top_k + p.route.num_shared);
}
size_t parts_count(const FewExpertsParams& p) {
  return static_cast<size_t>(few::kRouterSplits * p.route.m) *
         static_cast<size_t>(round_up(p.route.num_experts, 4));
}

size_t sums_count(const FewExpertsParams& p) {
  return static_cast<size_t>(few::splits_of(p) * num_rows(p) * p.gate_up.n);
}

}  // namespace

int few::splits_of(const FewExpertsParams& p) {
  if (p.splits > 0) return p.splits;
  const int64_t slots = slots_of(p.gate_up);
  return static_cast<int>(std::clamp<int64_t>((slots + kSplitSlots - 1) / kSplitSlots, 1, kMaxSplits));
}

bool few_experts_take(const FewExpertsParams& p, int num_sms) {
  const RouteParams& r = p.route;
  const bool fp8 = p.gate_up.type == WeightType::kFp8Block;
  if (!(fp8 || is_16_bit(p.gate_up.type)) || p.down.type != p.gate_up.type ||
      p.gate.type != (fp8 ? WeightType::kBF16 : p.gate_up.type))
    return false;
  if (r.m < 1 || r.m > kMaxFewTokens || r.num_experts < 1 || r.num_experts > 256 ||
      r.num_experts + r.num_shared > few::kMaxExperts || r.top_k + r.num_shared > 32 ||
      padded_tokens(r.m) * r.top_k + r.num_shared > num_sms)
    return false;
  if (!groups_fit_lanes(r)) return false;
  if (p.gate.n != r.num_experts || p.gate.k % 64 != 0 || p.gate.k > few::kMaxRouterK ||
      p.gate.row_stride % 8 != 0 || !on_16_bytes(p.gate.data) || !on_16_bytes(p.x) || p.x_stride % 8 != 0 ||
      p.gate.k != p.gate_up.k)
    return false;
  if (!whole_slots(p.gate_up) || !whole_slots(p.down) || p.gate_up.n != 2 * p.down.k ||
      p.down.n != p.gate_up.k)
    return false;
  const int64_t element = weight_element_bytes(p.gate_up.type);
  if (p.gate_up_stride * element % 16 != 0 || p.down_stride * element % 16 != 0) return false;
  if (fp8 && (!p.x_quantized || p.x_quantized.format != RowFormat::kE4m3Groups ||
              !on_16_bytes(p.x_quantized.codes) || p.x_quantized.stride % 16 != 0 ||
              p.x_quantized.stride < p.gate_up.k))
    return false;
  const int64_t splits = few::splits_of(p);
  const int64_t split_slots = (slots_of(p.gate_up) + splits - 1) / splits;
  return splits <= kMaxSplits && splits <= slots_of(p.gate_up) && split_slots <= kMaxSplitSlots &&
         slots_of(p.down) <= few::kMaxDownSlots;
}

bool few_experts_pay(const FewExpertsParams& p) {
  return padded_tokens(p.route.m) * p.down.k * few::splits_of(p) <= kMostActivation;
}

// parts, then sums.
size_t few_experts_scratch_bytes(const FewExpertsParams& p) {
  return (parts_count(p) + sums_count(p)) * sizeof(float);
}

void few_experts(const FewExpertsParams& p, FewStage stage, const Launch& launch) {
  check_route(p.route);
  HADAL_CHECK(few_experts_take(p, launch.num_sms),
              "few_experts do not take m {}, {} experts, gate_up {} x {}", p.route.m, p.route.num_experts,
              p.gate_up.n, p.gate_up.k);
  auto* parts = static_cast<float*>(p.scratch);
  float* sums = parts + parts_count(p);
  if (stage == FewStage::kRouter) return few::router(p, parts, sums, sums_count(p), launch);
  if (p.gate_up.type == WeightType::kFp8Block) return few::experts_fp8(p, parts, sums, launch);
  if (p.gate_up.type == WeightType::kF16) return few::experts_f16(p, parts, sums, launch);
  few::experts_bf16(p, parts, sums, launch);
}

void few_experts(const FewExpertsParams& p, const Launch& launch) {
  for (const FewStage stage : {FewStage::kRouter, FewStage::kExperts}) few_experts(p, stage, launch);
}

}  // namespace hadal::cuda
