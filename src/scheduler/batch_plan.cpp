#include "scheduler/batch_plan.h"

#include <algorithm>

namespace hadal {

bool BatchPlan::empty() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankPlan& rank) { return rank.empty(); });
}

}  // namespace hadal
