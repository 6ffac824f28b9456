#include <atomic>

#include "kernels/cuda/mla/decode/swapped/16bit.cuh"
#include "kernels/cuda/mla/decode/swapped/kernel.cuh"

namespace hadal::cuda {

void mla_decode_swapped_bf16(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  swapped::launch_swapped<swapped::Format16<bf16>>(args, geometry, launch);
}
void mla_decode_swapped_f16(const DecodeArgs& args, const DecodeGeometry& geometry, const Launch& launch) {
  swapped::launch_swapped<swapped::Format16<f16>>(args, geometry, launch);
}

int mla_swapped_capacity(int cluster) {
  HADAL_CHECK(cluster >= 1 && cluster <= swapped::kMaxCluster, "cluster {}: 1 to 16", cluster);
  static std::atomic<int> known[swapped::kMaxCluster + 1] = {};
  int clusters = known[cluster].load(std::memory_order_relaxed);
  if (clusters == 0) {
    clusters = swapped::capacity<swapped::Format16<bf16>>(cluster);
    known[cluster].store(clusters, std::memory_order_relaxed);
  }
  return clusters;
}

}  // namespace hadal::cuda
