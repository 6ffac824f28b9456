#include "engine/rank_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace hadal {

// State holds everything that a rank's thread uses in a step; it lives until the last of these threads has
// ended.
struct RankRunner::State {
  struct Rank {
    Rank(std::shared_ptr<Model> part, int num_threads, const RankRunnerOptions& options)
        : model(std::move(part)),
          pool(num_threads),
          cache(model->config().num_hidden_layers, options.num_pages, options.layout) {}

    std::shared_ptr<Model> model;
    ThreadPool pool;
    KvCache cache;
    Arena workspace;
    int64_t first_column = 0;  // of the logits
  };

  KernelSet kernels = KernelSet::kOptimised;
  std::vector<std::unique_ptr<Rank>> ranks;
  ForwardBatch batch;  // a copy, because a lost rank may read it after the caller's is gone
  Buffer logits;

  void forward(int rank_idx, Communicator& comm) {
    Rank& rank = *ranks[rank_idx];
    ExecContext exec{.device = {},
                     .pool = rank.pool,
                     .workspace = rank.workspace,
                     .stream = {},
                     .kernels = kernels,
                     .comm = &comm};
    rank.model->forward(batch, rank.cache, reinterpret_cast<float*>(logits.data()) + rank.first_column, exec);
  }

  static std::shared_ptr<State> make(std::vector<std::shared_ptr<Model>> models,
                                     const RankRunnerOptions& options) {
    HADAL_CHECK(!models.empty(), "no ranks");
    auto state = std::make_shared<State>();
    state->kernels = options.kernels;
    const int num_ranks = static_cast<int>(models.size());
    int64_t column = 0;
    for (int i = 0; i < num_ranks; ++i) {
      const int share = options.num_threads / num_ranks + (i < options.num_threads % num_ranks ? 1 : 0);
      try {
        state->ranks.push_back(std::make_unique<Rank>(std::move(models[i]), std::max(1, share), options));
      } catch (const std::exception& error) {  // no memory for a cache, or the system refuses a thread
        throw Error(fmt::format("rank {}: {}", i, error.what()));
      }
      state->ranks[i]->first_column = column;
      column += state->ranks[i]->model->weights().lm_head.n;
    }
    HADAL_CHECK_EQ(column, state->ranks[0]->model->config().vocab_size);
    return state;
  }
};

RankRunner::RankRunner(std::vector<std::shared_ptr<Model>> models, const RankRunnerOptions& options)
    : state_(State::make(std::move(models), options)),
      threads_(static_cast<int>(state_->ranks.size()), options.deadline, state_) {}

std::span<const float> RankRunner::forward(const ForwardBatch& batch) {
  threads_.check_usable();  // a lost rank still reads the last batch and writes its logits
  const std::span<float> logits =
      room_for_logits(state_->logits, batch.logit_rows.size(), config().vocab_size);
  state_->batch = batch;
  threads_.run([state = state_.get()](int rank, Communicator& comm) { state->forward(rank, comm); });
  return logits;
}

const ModelConfig& RankRunner::config() const {
  return state_->ranks[0]->model->config();
}

void RankRunner::copy_pages(std::span<const PageCopy> copies) {
  threads_.check_usable();
  for (const auto& rank : state_->ranks)
    hadal::copy_pages(rank->cache, rank->model->config().num_hidden_layers, copies);
}

const ExpertStats& RankRunner::expert_stats() const {
  return state_->ranks[0]->model->expert_stats();
}

}  // namespace hadal
