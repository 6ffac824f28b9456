// Runs batches on a group of ranks, each of which has a GPU and a runner of its own. All ranks run the same
// batch and get all logits; the runner returns those of rank 0. One thread uses it.
#pragma once

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "engine/cuda/rank_group.h"
#include "engine/model_runner.h"

namespace hadal {

class RankGroupRunner final : public ModelRunner {
 public:
  using MakeRank = RankGroup<ModelRunner>::Make;

  RankGroupRunner(int num_ranks, std::chrono::milliseconds deadline, MakeRank make_rank)
      : group_(num_ranks, deadline, std::move(make_rank)), shared_(std::make_shared<Shared>()) {
    group_.run([shared = shared_](int rank, ModelRunner& runner) {
      if (rank == 0) shared->has_nextn = runner.has_nextn();
    });
  }

  // Throws what the first rank that failed has thrown, and RankLost once a rank is lost. The same holds for
  // the other passes.
  std::span<const float> forward(const ForwardBatch& batch) override {
    return run(batch, {},
               [](ModelRunner& runner, const Shared& in) {
                 return ForwardRows{.logits = runner.forward(in.batch), .hidden = {}};
               })
        .logits;
  }
  bool has_nextn() const override { return shared_->has_nextn; }
  ForwardRows forward_with_hidden(const ForwardBatch& batch) override {
    return run(batch, {},
               [](ModelRunner& runner, const Shared& in) { return runner.forward_with_hidden(in.batch); });
  }
  ForwardRows forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) override {
    return run(batch, hidden, [](ModelRunner& runner, const Shared& in) {
      return runner.forward_nextn(in.batch, in.hidden);
    });
  }

 private:
  struct Shared {
    // Copies, because a lost rank may read them after the caller's are gone.
    ForwardBatch batch;
    std::vector<float> hidden;
    ForwardRows rows;
    bool has_nextn = false;
  };
  // Calls pass(runner, inputs) on all ranks, and returns the result of rank 0.
  template <typename Pass>
  ForwardRows run(const ForwardBatch& batch, std::span<const float> hidden, Pass pass) {
    group_.check_usable();  // a lost rank may still read the last batch
    shared_->batch = batch;
    shared_->hidden.assign(hidden.begin(), hidden.end());
    group_.run([shared = shared_, pass](int rank, ModelRunner& runner) {
      const ForwardRows rows = pass(runner, *shared);
      if (rank == 0) shared->rows = rows;
    });
    return shared_->rows;
  }

  RankGroup<ModelRunner> group_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace hadal
