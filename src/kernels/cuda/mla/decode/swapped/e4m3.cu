// The swapped decode kernel over fp8_e4m3 records (mla/decode/swapped/fp8.cuh).
#include "kernels/cuda/mla/decode/swapped/fp8.cuh"
#include "kernels/cuda/mla/decode/swapped/kernel.cuh"

namespace hadal::cuda {

void mla_decode_swapped_e4m3(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  swapped::launch_swapped<swapped::FormatFp8<true>>(args, geometry, launch);
}

}  // namespace hadal::cuda
