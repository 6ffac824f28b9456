// FP8 products for 33 and more rows, fp8_e4m3 records with one scale a token.
#include "kernels/cuda/mla/decode/fp8_products/kernel.cuh"

namespace hadal::cuda {

void mla_decode_fp8_e4m3(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  fp8_decode::launch_fp8<true>(args, geometry, launch);
}

}  // namespace hadal::cuda
