// Fills a KV cache on the CPU with random records and index keys (kernels/params/random_record.h).
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "model/model.h"

namespace hadal {

// Fills all pages of all layers. Nothing else may use the cache or the pool meanwhile.
void fill_at_random(const KvCache& cache, int64_t num_layers, uint64_t seed, ThreadPool& pool);

}  // namespace hadal
