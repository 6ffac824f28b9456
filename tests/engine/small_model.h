// Small random models for engine tests: real head sizes, everything else tiny.
#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "model/model.h"

namespace hadal::testing {

// "v3": low-rank query, sigmoid gate with groups and bias. "v2-lite": direct query, softmax greedy.
std::unique_ptr<Model> make_small_model(const std::string& kind, ThreadPool& pool, uint64_t seed = 1);

}  // namespace hadal::testing
