// Executes plans of device_weights_plan.h: stored values are copied through pinned memory, random ones are
// generated on the devices. Only the loader of device weights includes this.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "base/thread_pool.h"
#include "model/cuda/device_weights_plan.h"
#include "model/weights_loader.h"

namespace hadal {

// RankUpload is a rank's plan, the block [base, base + bytes) for which it was made, and the block's GPU.
struct RankUpload {
  const DeviceWeightPlan* plan = nullptr;
  std::byte* base = nullptr;
  int device = 0;
};

struct DeviceBytes {
  int device = 0;
  int64_t bytes = 0;
};

// Returns the bytes of staging memory that conversions need on each device when a pool of this many threads
// executes the plans. Each device is listed once. The plans' base addresses have no effect.
std::vector<DeviceBytes> upload_staging_bytes(std::span<const RankUpload> ranks, int num_threads);

// Fills the blocks of all ranks, and reads each part of a file once. `shards` contain the sources' bytes. All
// copies have ended when it returns. The thread that owns the pool calls it; the current devices of all
// threads change. Throws ShardReadError for files and hadal::Error for devices.
void upload_weights(std::span<const RankUpload> ranks, std::span<const MappedFile> shards, ThreadPool& pool,
                    const LoadProgress& progress);

}  // namespace hadal
