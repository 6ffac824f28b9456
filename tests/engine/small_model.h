// Makes small random models for engine tests, with real head sizes and everything else tiny.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "model/model.h"
#include "model/shard.h"

namespace hadal::testing {

// "v3" has a low-rank query and a sigmoid gate with groups and bias. "v3.2" is the same with an indexer that
// selects 48 keys. "v2-lite" has a direct query and a greedy softmax gate. "v3+nextn" and so on are the same
// models with a NextN layer.
std::unique_ptr<Model> make_small_model(const std::string& kind, ThreadPool& pool, uint64_t seed = 1);

// Makes each rank's part of the same model.
std::vector<std::shared_ptr<Model>> make_small_ranks(const std::string& kind, ModelSplit split,
                                                     ThreadPool& pool, uint64_t seed = 1);

}  // namespace hadal::testing
