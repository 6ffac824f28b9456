// Runs a model that several CPU ranks share (--tp-size, --ep-size). Every rank is a thread with its own part
// of the weights, its own KV pools and its own pool of threads. Each rank computes the whole batch, and the
// ranks add up their partial sums through a Communicator. The ranks share the process's memory, so each
// writes its columns of the logits directly to where the caller reads them.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "comm/rank_threads.h"
#include "engine/model_runner.h"

namespace hadal {

struct RankRunnerOptions {
  int64_t num_pages = 0;  // of each rank's KV cache
  KvLayout layout;
  KernelSet kernels = KernelSet::kOptimised;
  int num_threads = 1;  // divided among the ranks; each has at least one
  // A rank is lost if the others wait for it longer than this. The limit bounds how much the ranks' times
  // between two exchanges may differ, and is far longer than a busy machine delays a thread. Time in which
  // the process was stopped does not count.
  std::chrono::milliseconds deadline{60'000};
};

class RankRunner final : public HostRunner {
 public:
  // models[r] is rank r's part (shard_weights). If KV pools cannot be allocated, the constructor throws
  // hadal::Error, which names the rank.
  RankRunner(std::vector<std::shared_ptr<Model>> models, const RankRunnerOptions& options);

  // Throws what the first rank that failed has thrown, and RankLost once a rank is lost.
  std::span<const float> forward(const ForwardBatch& batch) override;
  bool has_nextn() const override;
  ForwardRows forward_with_hidden(const ForwardBatch& batch) override;
  ForwardRows forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) override;
  const ModelConfig& config() const override;
  void copy_pages(std::span<const PageCopy> copies) override;
  void move_records(std::span<const RecordMove> moves) override;
  // All ranks get the same records.
  void fill_cache(uint64_t seed) override;
  // Every rank routes all tokens, so any rank's statistics are those of the step.
  const ExpertStats& expert_stats() const override;

 private:
  // Makes room for the results of `batch` and num_hidden rows of hidden states.
  ForwardRows prepare(const ForwardBatch& batch, size_t num_hidden);

  struct State;
  std::shared_ptr<State> state_;
  RankThreads threads_;
};

}  // namespace hadal
