// Runs batches on a group of ranks, each of which has a GPU and a runner of its own. All ranks get the same
// batch and have all logits; rank 0 hands them over. One thread uses it.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "engine/cuda/rank_group.h"
#include "engine/model_runner.h"

namespace hadal {

class RankGroupRunner final : public ModelRunner {
 public:
  using MakeRank = RankGroup<ModelRunner>::Make;

  RankGroupRunner(int num_ranks, std::chrono::milliseconds deadline, MakeRank make_rank)
      : group_(num_ranks, deadline, std::move(make_rank)), shared_(std::make_shared<Shared>()) {}

  // It throws what the first rank that failed has thrown, and RankLost once a rank is lost.
  std::span<const float> forward(const ForwardBatch& batch) override {
    shared_->batch = batch;
    group_.run([shared = shared_](int rank, ModelRunner& runner) {
      const std::span<const float> logits = runner.forward(shared->batch);
      if (rank == 0) shared->logits = logits;
    });
    return shared_->logits;
  }

 private:
  struct Shared {
    ForwardBatch batch;  // a copy, because a lost rank may read it after the caller's is gone
    std::span<const float> logits;
  };
  RankGroup<ModelRunner> group_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace hadal
