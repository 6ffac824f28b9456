#include "kernels/cuda/mla/decode/tiles/kernel.cuh"

namespace hadal::cuda {

void mla_decode_tiles_f16(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  if (geometry.num_tiles % 2 == 0) {  // two tiles of a part share what they load
    tiles::launch_tiles<KvFormat::kF16, 2>(args, geometry, launch);
  } else {
    tiles::launch_tiles<KvFormat::kF16, 1>(args, geometry, launch);
  }
}

}  // namespace hadal::cuda
