// Has the executor's functions that write to the KV cache outside of a forward pass.
#include <set>

#include "base/check.h"
#include "engine/cuda/cuda_executor.h"

namespace hadal {

// The copies of one launch run in any order. So a copy begins a new launch if it touches a page that an
// earlier copy of the launch writes, or writes a page that one of them reads.
void CudaExecutor::copy_pages(const std::vector<PageCopy>& copies, const cuda::PageCopyEntry* entries) {
  size_t first = 0;
  while (first < copies.size()) {
    std::set<PageId> sources, targets;
    size_t end = first;
    for (; end < copies.size(); ++end) {
      const PageCopy& copy = copies[end];
      if (targets.count(copy.source) > 0 || targets.count(copy.target) > 0 || sources.count(copy.target) > 0)
        break;
      sources.insert(copy.source);
      targets.insert(copy.target);
    }
    cuda::copy_pages({.pools = cache_.device_pools(),
                      .index_pools = cache_.device_index_pools(),
                      .copies = entries + first,
                      .num_layers = static_cast<int>(model_.decoder.num_cache_layers()),
                      .num_copies = static_cast<int>(end - first),
                      .layout = cache_.layout()},
                     launch_);
    first = end;
  }
}

void CudaExecutor::fill_cache(uint64_t seed) {
  HADAL_CHECK(in_flight_.empty(), "the cache is filled while a step is in flight");
  cuda_set_device(model_.device.index);
  cuda::fill_pages({.pools = cache_.device_pools(),
                    .index_pools = cache_.device_index_pools(),
                    .num_layers = static_cast<int>(model_.decoder.num_cache_layers()),
                    .num_pages = cache_.num_pages(),
                    .layout = cache_.layout(),
                    .seed = seed},
                   launch_);
  stream_.synchronize();
}

}  // namespace hadal
