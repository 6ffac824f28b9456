// Declares the plain kernel of gather_keys (mla.h). This header includes no CUDA header.
#pragma once

#include "kernels/cuda/mla/mla.h"

namespace hadal::cuda::reference {

void gather_keys(const GatherKeysParams& params, const Launch& launch);

}  // namespace hadal::cuda::reference
