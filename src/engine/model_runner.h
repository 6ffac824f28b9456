// Runs one batch at a time and returns its logits. Commands and tests use it to run a model without the
// engine, and the CPU's executor runs its steps with it. One thread uses a runner.
#pragma once

#include <span>

#include "base/thread_pool.h"
#include "model/model.h"
#include "scheduler/batch_plan.h"
#include "tensor/buffer.h"

namespace hadal {

// ForwardRows are the results of a forward pass in host memory, valid until the runner's next call.
struct ForwardRows {
  std::span<const float> logits;  // float32 [batch.logit_rows.size(), vocab]
  std::span<const float> hidden;  // float32 [rows, hidden], after the last norm
};

class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // Returns logits float32 [batch.logit_rows.size(), vocab] in host memory, valid until the next call. It
  // throws hadal::Error.
  virtual std::span<const float> forward(const ForwardBatch& batch) = 0;

  // Tells whether the NextN layer is loaded and the runner runs it; the next two functions require that.
  virtual bool has_nextn() const { return false; }
  // Does what forward() does, and returns the hidden states of all rows, too.
  virtual ForwardRows forward_with_hidden(const ForwardBatch& batch);
  // Runs the NextN layer (Model::forward_nextn) and returns the hidden states of the wanted rows. `hidden`
  // must not be the span that an earlier call has returned.
  virtual ForwardRows forward_nextn(const ForwardBatch& batch, std::span<const float> hidden);
};

// RecordMove copies a record, and its index key, from one slot (page · kPageSize + offset) to another.
struct RecordMove {
  int64_t source = 0;
  int64_t target = 0;
};

// HostRunner is a runner whose KV pools are in host memory. CpuRunner has one model; RankRunner
// (rank_runner.h) has one for each rank.
class HostRunner : public ModelRunner {
 public:
  virtual const ModelConfig& config() const = 0;
  // Copies records, and index keys, inside the pools of all layers, in order.
  virtual void copy_pages(std::span<const PageCopy> copies) = 0;
  // Moves records inside the pools of all layers, in order.
  virtual void move_records(std::span<const RecordMove> moves) = 0;
  // Does what StepExecutor::fill_cache does.
  virtual void fill_cache(uint64_t seed) = 0;
  // Returns statistics of the latest forward pass.
  virtual const ExpertStats& expert_stats() const = 0;
};

void copy_pages(const KvCache& cache, int64_t num_layers, std::span<const PageCopy> copies);
void move_records(const KvCache& cache, int64_t num_layers, std::span<const RecordMove> moves);

// Makes `buffer` large enough for num_rows rows of `width` values and returns them.
std::span<float> room_for_rows(Buffer& buffer, size_t num_rows, int64_t width);

// Owns the KV pools, the step's workspace and the logits.
class CpuRunner final : public HostRunner {
 public:
  // Both must outlive the runner. The constructor throws hadal::Error when the pools cannot be allocated.
  CpuRunner(Model& model, ThreadPool& pool, int64_t num_pages, KvLayout layout,
            KernelSet kernels = KernelSet::kOptimised);

  std::span<const float> forward(const ForwardBatch& batch) override;
  bool has_nextn() const override { return model_.weights().mtp.has_value(); }
  ForwardRows forward_with_hidden(const ForwardBatch& batch) override;
  ForwardRows forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) override;
  const ModelConfig& config() const override { return model_.config(); }
  void copy_pages(std::span<const PageCopy> copies) override;
  void move_records(std::span<const RecordMove> moves) override;
  void fill_cache(uint64_t seed) override;
  const ExpertStats& expert_stats() const override { return model_.expert_stats(); }

 private:
  ExecContext context();

  Model& model_;
  ThreadPool& pool_;
  KernelSet kernels_;
  KvCache cache_;
  Arena workspace_;
  Buffer logits_, hidden_;
};

}  // namespace hadal
