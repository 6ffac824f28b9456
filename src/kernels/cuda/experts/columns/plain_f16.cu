// expert_columns in float16 for the down projection.
#include "kernels/cuda/experts/columns/kernel.cuh"

namespace hadal::cuda {

void columns::run_plain_f16(const ExpertColumnsParams& p, const Launch& launch) {
  launch_columns<Config<f16, false, 208, 4>>(p, launch);
}

}  // namespace hadal::cuda
