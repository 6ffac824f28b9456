// Carries out a plan of device_weights_plan.h: stored values through pinned memory to the device, random ones
// made there. Private to the loader of device weights.
#pragma once

#include <cstdint>
#include <span>

#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "model/cuda/device_weights_plan.h"
#include "model/weights_loader.h"

namespace hadal {

// Device memory that conversions take while the placements are carried out by a pool of so many threads.
int64_t upload_staging_bytes(std::span<const WeightPlacement> placements, int num_threads);

// Fills the block [base, base + bytes) that the plan was made for. `shards` are what the sources' bytes lie
// in. Everything has ended on return. Called by the thread that owns the pool; the calling thread's device is
// everybody's. Throws ShardReadError, and hadal::Error of the device.
void upload_weights(const DeviceWeightPlan& plan, std::byte* base, std::span<const MappedFile> shards,
                    ThreadPool& pool, const LoadProgress& progress);

}  // namespace hadal
