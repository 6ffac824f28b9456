// Implements expert_columns, which computes the shape of the parameters and chooses the instantiation.
#include "kernels/cuda/experts/columns/columns.h"

#include "base/check.h"
#include "kernels/cuda/operand_alignment.h"

namespace hadal::cuda {

GroupedShape columns_shape(const ExpertColumnsParams& p, int num_sms) {
  const bool tokens = p.tokens == nullptr || (on_16_bytes(p.tokens) && p.tokens_stride % 8 == 0);
  const WeightType type = p.f16 ? WeightType::kF16 : WeightType::kBF16;
  const MatrixWeight w{.data = p.w, .type = type, .n = p.n, .k = p.k, .row_stride = p.w_row_stride};
  return {.type = type,
          .num_rows = p.num_x_rows < 1 ? 0 : p.num_rows,
          .num_experts = p.num_experts,
          .n = p.activated ? 2 * p.n : p.n,
          .k = p.k,
          .num_sms = num_sms,
          .aligned = tokens && p.x != nullptr && on_16_bytes(p.x) && p.x_stride % 8 == 0 &&
                     p.x_stride >= p.k && is_aligned(w, p.expert_stride),
          .aligned_y = on_16_bytes(p.y)};
}

void expert_columns(const ExpertColumnsParams& p, const Launch& launch) {
  const GroupedShape shape = columns_shape(p, launch.num_sms);
  HADAL_CHECK(p.activated ? columns_support_activation(shape) : supports(ProductKernel::kColumns, shape),
              "the columns kernel does not support {} rows, {} experts, n {}, k {}", p.num_rows,
              p.num_experts, p.n, p.k);
  if (p.f16) return p.activated ? columns::run<true, true>(p, launch) : columns::run<true, false>(p, launch);
  if (p.activated) return columns::run<false, true>(p, launch);
  columns::run<false, false>(p, launch);
}

}  // namespace hadal::cuda
