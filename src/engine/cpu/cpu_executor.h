// Runs steps on the CPU: one worker thread owns the model runner and everything that is kept per slot. The
// engine thread launches and waits; the worker feeds tokens, copies pages, runs the forward pass and samples.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/thread_pool.h"
#include "engine/cpu/cpu_speculation.h"
#include "engine/model_runner.h"
#include "engine/step_executor.h"

namespace hadal {

class CpuExecutor final : public StepExecutor {
 public:
  // `pool` and what the runner was made from must outlive the executor, and nothing else may use them while
  // the executor lives. Sampling runs on `pool`. With `speculates` it verifies drafts, and the runner must
  // have the NextN layer. draft_shape and simulated_acceptance are those of EngineOptions.
  CpuExecutor(std::unique_ptr<HostRunner> runner, ThreadPool& pool, bool speculates = false,
              std::vector<double> simulated_acceptance = {}, const DraftShape& draft_shape = {});
  // Finishes the steps in flight, but does not wait for missing masks.
  ~CpuExecutor() override;

  void launch(StagedStep step) override;
  std::vector<std::vector<DraftNode>> wait_drafts(int64_t step) override;
  void set_masks(int64_t step, std::vector<uint32_t> masks) override;
  StepOutput wait() override;
  void fill_cache(uint64_t seed) override;
  bool takes_absorbed_prompts() const override { return true; }
  bool speculates() const override { return speculation_.has_value(); }
  // On two cores the bundled model reads 23 GB/s and reaches about 45 G multiply-adds per second.
  DeviceRates rates() const override { return {.products_per_byte = 2.0}; }

 private:
  static constexpr int64_t kMaxInFlight = 2;

  // Runs on the worker thread.
  void work();
  StepOutput run(StagedStep& step);
  void run_forward(StagedStep& step, StepOutput& output);
  void start_slots(StagedStep& step);
  void forget_drafts(const StagedStep& step) noexcept;
  void sample(const StagedStep& step, std::span<const float> logits, StepOutput& output);
  void sample_rows(const StagedStep& step, std::span<const float> logits, std::span<const int32_t> rows,
                   std::span<const uint32_t> masks, StepOutput& output);
  // Samples the rows on the accepted path of one sample. `logits` begins at its first row and has all rows
  // after it. `masks` has the masks of its rows, or is empty.
  void sample_rows_of(const SampleSpec& spec, std::span<const float> logits, std::span<const uint32_t> masks,
                      SamplerScratch& scratch, SampledToken& result);
  // Returns the node that is accepted after node `row` at this depth, if that sampled `token`; 0 if none is.
  int32_t accepted_row(const SampleSpec& spec, int32_t row, int64_t depth, int32_t token) const;
  ChosenToken sample_row(CpuSlot& slot, int64_t position, std::span<const float> logits,
                         std::span<const uint32_t> allowed, SamplerScratch& scratch) const;
  void score_prompts(const StagedStep& step, std::span<const float> logits, StepOutput& output);
  std::vector<uint32_t> wait_masks(int64_t step);
  // Makes the drafts of constrained samples available to wait_drafts.
  void tell_drafts(const StagedStep& step);
  void tell_drafts(int64_t step, std::vector<std::vector<DraftNode>> drafts) noexcept;

  ThreadPool& pool_;
  const std::unique_ptr<HostRunner> runner_;
  const int64_t vocab_size_;
  const std::vector<double> simulated_acceptance_;
  std::vector<CpuSlot> slots_;  // used by the worker thread
  std::optional<CpuSpeculation> speculation_;
  std::vector<SamplerScratch> scratch_;      // one per thread of the pool
  std::vector<int32_t> free_, constrained_;  // scratch: sample indices of the step
  std::vector<size_t> first_masks_;          // scratch: of each constrained sample

  std::mutex mutex_;
  std::condition_variable to_worker_;  // signals a step, masks or stop
  std::condition_variable to_engine_;  // signals an output or drafts
  // Rings of the steps under way, so that queueing a step never allocates.
  std::array<StagedStep, kMaxInFlight> steps_;
  std::array<StepOutput, kMaxInFlight> outputs_;
  int64_t num_launched_ = 0, num_begun_ = 0, num_ended_ = 0, num_taken_ = 0;
  std::map<int64_t, std::vector<uint32_t>> masks_;
  int64_t drafted_step_ = 0;                    // the newest step whose drafts are known, or that has failed
  std::vector<std::vector<DraftNode>> drafts_;  // of its constrained samples
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace hadal
