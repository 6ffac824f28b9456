#include "kernels/cuda/mla/decode_stream.cuh"

namespace hadal::cuda {

void mla_decode_swapped_e4m3(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  stream::launch_stream<stream::Fp8<true>>(args, geometry, launch);
}

}  // namespace hadal::cuda
