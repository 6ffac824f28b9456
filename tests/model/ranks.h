// Runs a model on one or several ranks of this process, for tests: every rank has a thread, views of the
// weights, a KV cache and a workspace.
#pragma once

#include <chrono>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "comm/rank_threads.h"
#include "model/model.h"
#include "model/shard_weights.h"

namespace hadal::testing {

// Work is a run of tokens [begin, end) of a sequence, as one prompt chunk or as decode tokens.
struct Work {
  int32_t sequence = 0;
  int32_t begin = 0;
  int32_t end = 0;
  bool decode = false;
  bool logits = true;  // of every token
};

using Sequences = std::vector<std::vector<int32_t>>;

inline constexpr int64_t kPagesPerSequence = 10;

// Makes a step of `work`, prompt chunks first.
inline ForwardBatch batch_of(const Sequences& sequences, const std::vector<Work>& work) {
  ForwardBatch batch;
  batch.page_table_stride = kPagesPerSequence;
  // Pages of sequences alternate, so that a rank which mixes them up reads another sequence's records.
  const auto num_sequences = static_cast<int64_t>(sequences.size());
  for (int64_t s = 0; s < num_sequences; ++s) {
    for (int64_t i = 0; i < kPagesPerSequence; ++i)
      batch.page_table.push_back(static_cast<int32_t>(i * num_sequences + s));
  }
  for (const Work& w : work) {
    const auto first = static_cast<int32_t>(batch.num_tokens());
    for (int32_t position = w.begin; position < w.end; ++position) {
      if (w.logits) batch.logit_rows.push_back(static_cast<int32_t>(batch.num_tokens()));
      batch.token_ids.push_back(sequences[w.sequence][position]);
      batch.positions.push_back(position);
      const int64_t page = position / kPageSize * num_sequences + w.sequence;
      batch.slots.push_back(page * kPageSize + position % kPageSize);
      if (!w.decode) continue;
      batch.decode_seq_idx.push_back(w.sequence);
      batch.decode_kv_len.push_back(position + 1);
    }
    if (w.decode) continue;
    batch.num_prefill_tokens += w.end - w.begin;
    batch.segments.push_back(
        {.seq_idx = w.sequence, .q_begin = first, .q_len = w.end - w.begin, .kv_len = w.end});
  }
  return batch;
}

// Ranks holds a model that `split.tp` ranks share; with one rank it is the whole model, without a
// communicator.
class Ranks {
 public:
  Ranks(const ModelConfig& config, const ModelWeights& weights, ModelSplit split, int64_t num_sequences,
        KernelSet kernels = KernelSet::kOptimised)
      : state_(std::make_shared<State>()), config_(config), split_(split), kernels_(kernels) {
    for (int64_t rank = 0; rank < split.tp; ++rank) {
      ModelWeights part = split.is_whole() ? weights : shard_weights(weights, config, split, rank);
      state_->ranks.push_back(
          std::make_unique<Rank>(make_model(config, std::move(part)).value(),
                                 KvCache(config.num_hidden_layers, kPagesPerSequence * num_sequences,
                                         cache_layout(config, KvFormat::kF32).value())));
    }
    if (!split.is_whole()) {
      threads_ = std::make_unique<RankThreads>(static_cast<int>(split.tp), std::chrono::seconds(120), state_);
    }
  }

  // Returns logits [logit_rows.size(), vocab_size], into which the ranks have written side by side.
  std::vector<float> forward(const ForwardBatch& batch) {
    std::vector<float> logits(batch.logit_rows.size() * static_cast<size_t>(config_.vocab_size),
                              std::numeric_limits<float>::quiet_NaN());
    if (!threads_) {
      run(0, batch, logits.data(), nullptr);
      return logits;
    }
    threads_->run([&](int rank, Communicator& comm) {
      run(rank, batch, logits.data() + vocabulary_of(config_, split_, rank).begin, &comm);
    });
    return logits;
  }

  std::vector<int32_t> distinct_experts(int64_t rank) const {
    return state_->ranks[rank]->model->expert_stats().distinct_experts;
  }

 private:
  struct Rank {
    Rank(std::unique_ptr<Model> its_model, KvCache its_cache)
        : model(std::move(its_model)), cache(std::move(its_cache)) {}
    std::unique_ptr<Model> model;
    KvCache cache;
    ThreadPool pool{1};
    Arena workspace;
  };
  struct State {
    std::vector<std::unique_ptr<Rank>> ranks;
  };

  void run(int rank, const ForwardBatch& batch, float* logits, Communicator* comm) {
    Rank& r = *state_->ranks[rank];
    ExecContext exec{.device = {},
                     .pool = r.pool,
                     .workspace = r.workspace,
                     .stream = {},
                     .kernels = kernels_,
                     .comm = comm};
    r.model->forward(batch, r.cache, {.logits = logits}, exec);
  }

  std::shared_ptr<State> state_;
  ModelConfig config_;
  ModelSplit split_;
  KernelSet kernels_;
  std::unique_ptr<RankThreads> threads_;
};

}  // namespace hadal::testing
