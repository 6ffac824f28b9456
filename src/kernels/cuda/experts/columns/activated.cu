// expert_columns for gate and up with their activation.
#include "kernels/cuda/experts/columns/kernel.cuh"

namespace hadal::cuda {

void columns::run_activated(const ExpertColumnsParams& p, const Launch& launch) {
  launch_columns<Config<bf16, true, 208, 4>>(p, launch);
}

}  // namespace hadal::cuda
