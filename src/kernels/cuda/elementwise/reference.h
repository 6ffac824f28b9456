// Declares the plain kernels of elementwise.h, which support any shape and alignment and any architecture
// from sm_80. They are the oracle of the tuned kernels' tests, and they run if the tuned kernels do not
// support the shape or the alignment. Their arguments are those of the ops, which check them.
#pragma once

#include "kernels/cuda/elementwise/elementwise.h"

namespace hadal::cuda::reference {

void embedding(const EmbeddingParams& params, const Launch& launch);
void add_rms_norm(const AddRmsNormParams& params, const Launch& launch);
void add_residual(const NormInput& input, float* residual, int64_t m, int64_t n, const Launch& launch,
                  bool f16);
void combine_rows(const CombineRowsParams& params, const Launch& launch);
void quantize_rows(const QuantizeParams& params, const Launch& launch);
void silu_mul(const SiluMulParams& params, const Launch& launch);
void mla_prologue(const MlaPrologueParams& params, const Launch& launch);
void q_rope(const QRopeParams& params, const Launch& launch);
void copy_pages(const CopyPagesParams& params, const Launch& launch);

}  // namespace hadal::cuda::reference
