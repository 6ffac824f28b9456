// expert_columns for the down projection, and which shapes it takes.
#include "kernels/cuda/alignment.h"
#include "kernels/cuda/experts/columns/kernel.cuh"

namespace hadal::cuda {

namespace columns {
using PlainConfig = Config<bf16, false, 208, 4>;
static_assert(is<PlainConfig>(kColumnsTile));
}  // namespace columns

void columns::run_plain(const ExpertColumnsParams& p, const Launch& launch) {
  launch_columns<PlainConfig>(p, launch);
}

bool expert_columns_takes(const ExpertColumnsParams& p) {
  const bool tokens = p.tokens == nullptr || (on_16_bytes(p.tokens) && p.tokens_stride % 8 == 0);
  return p.num_rows >= 1 && p.num_x_rows >= 1 && p.num_experts >= 1 &&
         p.num_experts <= columns::kMaxExperts && p.n >= 8 && p.n % 8 == 0 && p.k >= 8 && tokens &&
         p.x != nullptr && on_16_bytes(p.x) && p.x_stride % 8 == 0 && p.x_stride >= p.k && on_16_bytes(p.w) &&
         p.w_row_stride % 8 == 0 && p.w_row_stride >= p.k && p.expert_stride % 8 == 0 && on_16_bytes(p.y);
}

void expert_columns(const ExpertColumnsParams& p, const Launch& launch) {
  HADAL_CHECK(expert_columns_takes(p), "rows {}, experts {}, n {}, k {}", p.num_rows, p.num_experts, p.n,
              p.k);
  if (p.f16) return p.activated ? columns::run_activated_f16(p, launch) : columns::run_plain_f16(p, launch);
  if (p.activated) return columns::run_activated(p, launch);
  columns::run_plain(p, launch);
}
}  // namespace hadal::cuda
