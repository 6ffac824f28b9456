#include "kernels/cuda/mla/decode_stream.cuh"

namespace hadal::cuda {

void mla_decode_stream_bf16(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  stream::launch_stream<stream::Bf16>(args, geometry, launch);
}

}  // namespace hadal::cuda
