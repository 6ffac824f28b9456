// Queries how many clusters of the swapped decode kernel the device runs at once. The query is for the kernel
// over bf16 records. The result is the same for every format, because the blocks of all formats fill a
// multiprocessor's shared memory, and for every device, because a process uses GPUs of one kind.
#include <atomic>

#include "kernels/cuda/mla/decode/swapped/launch.cuh"

namespace hadal::cuda {

template decltype(mla_decode_swapped<KvFormat::kBF16, false>) mla_decode_swapped<KvFormat::kBF16, false>;

int mla_swapped_capacity(int cluster) {
  HADAL_CHECK(cluster >= 1 && cluster <= swapped::kMaxCluster, "cluster is {}; must be 1 to 16", cluster);
  static std::atomic<int> known[swapped::kMaxCluster + 1] = {};
  int clusters = known[cluster].load(std::memory_order_relaxed);
  if (clusters == 0) {
    clusters = swapped::capacity<swapped::Format16<bf16, false>>(cluster);
    known[cluster].store(clusters, std::memory_order_relaxed);
  }
  return clusters;
}

}  // namespace hadal::cuda
