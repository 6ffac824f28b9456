#include "engine/cpu/rank_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/random_cache.h"

namespace hadal {

// State holds everything that a rank's thread uses in a step; it lives until the last of these threads has
// ended.
struct RankRunner::State {
  struct Rank {
    Rank(std::shared_ptr<Model> part, int num_threads, const RankRunnerOptions& options)
        : model(std::move(part)),
          pool(num_threads),
          cache(num_cache_layers(*model), options.num_pages, options.layout) {}

    std::shared_ptr<Model> model;
    ThreadPool pool;
    KvCache cache;
    Arena workspace;
    Buffer hidden;             // equal on all ranks
    int64_t first_column = 0;  // of the logits
  };

  KernelSet kernels = KernelSet::kOptimised;
  std::vector<std::unique_ptr<Rank>> ranks;
  // Copies, because a lost rank may still read them after the caller's objects are gone.
  ForwardBatch batch;
  std::vector<float> nextn_input;
  Buffer logits;

  enum class Pass { kTarget, kTargetWithHidden, kNextn };

  void forward(int rank_idx, Pass pass, Communicator& comm) {
    Rank& rank = *ranks[rank_idx];
    ExecContext exec{.device = {},
                     .pool = rank.pool,
                     .workspace = rank.workspace,
                     .stream = {},
                     .kernels = kernels,
                     .comm = &comm};
    const ForwardOutputs outputs{
        .logits = reinterpret_cast<float*>(logits.data()) + rank.first_column,
        .hidden = pass == Pass::kTarget ? nullptr : reinterpret_cast<float*>(rank.hidden.data())};
    if (pass == Pass::kNextn) {
      rank.model->forward_nextn(batch, nextn_input.data(), rank.cache, outputs, exec);
    } else {
      rank.model->forward(batch, rank.cache, outputs, exec);
    }
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

ForwardRows RankRunner::prepare(const ForwardBatch& batch, size_t num_hidden) {
  threads_.check_usable();  // a lost rank still reads the last batch and writes its results
  for (const auto& rank : state_->ranks) room_for_rows(rank->hidden, num_hidden, config().hidden_size);
  state_->batch = batch;
  return {.logits = room_for_rows(state_->logits, batch.logit_rows.size(), config().vocab_size),
          .hidden = room_for_rows(state_->ranks[0]->hidden, num_hidden, config().hidden_size)};
}

std::span<const float> RankRunner::forward(const ForwardBatch& batch) {
  const ForwardRows rows = prepare(batch, 0);
  threads_.run([state = state_.get()](int rank, Communicator& comm) {
    state->forward(rank, State::Pass::kTarget, comm);
  });
  return rows.logits;
}

ForwardRows RankRunner::forward_with_hidden(const ForwardBatch& batch) {
  const ForwardRows rows = prepare(batch, batch.token_ids.size());
  threads_.run([state = state_.get()](int rank, Communicator& comm) {
    state->forward(rank, State::Pass::kTargetWithHidden, comm);
  });
  return rows;
}

ForwardRows RankRunner::forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) {
  HADAL_CHECK_EQ(static_cast<int64_t>(hidden.size()), batch.num_tokens() * config().hidden_size);
  const ForwardRows rows = prepare(batch, batch.logit_rows.size());
  state_->nextn_input.assign(hidden.begin(), hidden.end());
  threads_.run([state = state_.get()](int rank, Communicator& comm) {
    state->forward(rank, State::Pass::kNextn, comm);
  });
  return rows;
}

bool RankRunner::has_nextn() const {
  return state_->ranks[0]->model->weights().mtp.has_value();
}

const ModelConfig& RankRunner::config() const {
  return state_->ranks[0]->model->config();
}

void RankRunner::copy_pages(std::span<const PageCopy> copies) {
  threads_.check_usable();
  for (const auto& rank : state_->ranks)
    hadal::copy_pages(rank->cache, num_cache_layers(*rank->model), copies);
}

void RankRunner::move_records(std::span<const RecordMove> moves) {
  threads_.check_usable();
  for (const auto& rank : state_->ranks)
    hadal::move_records(rank->cache, num_cache_layers(*rank->model), moves);
}

void RankRunner::fill_cache(uint64_t seed) {
  threads_.run([state = state_.get(), seed](int rank_idx, Communicator& /*comm*/) {
    State::Rank& rank = *state->ranks[rank_idx];
    fill_at_random(rank.cache, num_cache_layers(*rank.model), seed, rank.pool);
  });
}

const ExpertStats& RankRunner::expert_stats() const {
  return state_->ranks[0]->model->expert_stats();
}

}  // namespace hadal
