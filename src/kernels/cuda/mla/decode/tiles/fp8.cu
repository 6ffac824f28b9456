#include "kernels/cuda/mla/decode/tiles/kernel.cuh"

namespace hadal::cuda {

void mla_decode_tiles_e4m3(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  tiles::launch_tiles<KvFormat::kFp8E4M3, 1>(args, geometry, launch);
}
void mla_decode_tiles_e5m2(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  tiles::launch_tiles<KvFormat::kFp8E5M2, 1>(args, geometry, launch);
}

}  // namespace hadal::cuda
