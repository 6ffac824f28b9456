// Executes a plan of device_weights_plan.h: stored values are copied through pinned memory, random ones are
// generated on the device. Only the loader of device weights includes this.
#pragma once

#include <cstdint>
#include <span>

#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "model/cuda/device_weights_plan.h"
#include "model/weights_loader.h"

namespace hadal {

// Returns the device memory that conversions need while a pool of this many threads executes the placements.
int64_t upload_staging_bytes(std::span<const WeightPlacement> placements, int num_threads);

// Fills the block [base, base + bytes) for which the plan was made. `shards` contain the sources' bytes. All
// copies have ended when it returns. The thread that owns the pool calls it; all threads use its
// device. Throws ShardReadError, and hadal::Error for the device.
void upload_weights(const DeviceWeightPlan& plan, std::byte* base, std::span<const MappedFile> shards,
                    ThreadPool& pool, const LoadProgress& progress);

}  // namespace hadal
