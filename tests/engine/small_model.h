// Makes small random models for engine tests, with real head sizes and everything else tiny.
#pragma once

#include <memory>
#include <string>

#include "base/thread_pool.h"
#include "model/model.h"

namespace hadal::testing {

// "v3" has a low-rank query and a sigmoid gate with groups and bias, "v2-lite" a direct query and a greedy
// softmax gate.
std::unique_ptr<Model> make_small_model(const std::string& kind, ThreadPool& pool, uint64_t seed = 1);

}  // namespace hadal::testing
