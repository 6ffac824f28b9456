// expert_columns in float16 for gate and up with their activation.
#include "kernels/cuda/experts/columns/kernel.cuh"

namespace hadal::cuda {

void columns::run_activated_f16(const ExpertColumnsParams& p, const Launch& launch) {
  launch_columns<Config<f16, true, 208, 4>>(p, launch);
}

}  // namespace hadal::cuda
