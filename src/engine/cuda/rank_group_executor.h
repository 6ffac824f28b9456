// Runs steps on a group of ranks, each of which has a GPU and an executor of its own. All ranks get the same
// step. A step is plain data, and bucket, kernels and algorithms are functions of the step and of the options
// at start, so no rank decides anything from its own state. Every rank samples every row, with equal bits, so
// rank 0's output is the group's. The engine thread uses the group; the ranks' threads launch.
//
// It needs no device: tests run it with executors that have no model.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/cuda/rank_group.h"
#include "engine/step_executor.h"

namespace hadal {

class RankGroupExecutor final : public StepExecutor {
 public:
  using MakeRank = RankGroup<StepExecutor>::Make;

  // `make_rank` makes a rank's executor, which may throw where a StepExecutor would report an error. The
  // constructor throws what the first rank that failed has thrown, or RankLost.
  RankGroupExecutor(int num_ranks, std::chrono::milliseconds deadline, MakeRank make_rank);

  // If a rank throws or is lost, the step fails, and so do all later ones (StepOutput::fatal): the ranks may
  // have computed different things since, and another rank may be in the middle of an exchange.
  void launch(StagedStep step) override;
  void set_masks(int64_t step, std::vector<uint32_t> masks) override;
  // Also fails the step if ranks disagree about a sampled token.
  StepOutput wait() override;
  void fill_cache(uint64_t seed) override;
  // These two return rank 0's values, which equal those of every other rank.
  bool speculates() const override { return exchange_->speculates; }
  DeviceRates rates() const override { return exchange_->rates; }

 private:
  struct Pending {
    int64_t step = 0;
    std::string error;
  };
  // Holds what the ranks' threads read and write besides their executors. A lost rank may use it at any time.
  struct Exchange {
    std::vector<StagedStep> steps;             // [num_ranks]
    std::vector<std::vector<uint32_t>> masks;  // [num_ranks]
    std::vector<StepOutput> outputs;           // [num_ranks]
    bool speculates = false;                   // of rank 0's executor, as are the rates
    DeviceRates rates;
  };

  // Calls body(rank, executor) on all ranks. Whatever they throw becomes the error of `pending` and of all
  // later steps.
  template <typename Body>
  void run(Pending& pending, Body body);

  RankGroup<StepExecutor> group_;
  std::shared_ptr<Exchange> exchange_;
  std::deque<Pending> in_flight_;
  std::string broken_;  // not empty: why no step can succeed any more
};

// Returns the output of the group, given the outputs of the ranks for one step. It is rank 0's output, with
// the time of the slowest rank. It is an error, and fatal, if only some of the ranks failed, or if a rank has
// sampled other tokens than rank 0 or has verified another number of drafts.
StepOutput join_outputs(std::vector<StepOutput> outputs);

}  // namespace hadal
