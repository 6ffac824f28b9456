// Runs steps on one GPU. The engine thread launches them itself: a step is a few asynchronous copies and one
// graph, or (for prompts and odd batches) the same kernels one by one. Only wait() waits for the device.
//
// The order on the stream is: inputs of the step, page copies, feeds, forward, sampling of rows without a
// constraint and, once set_masks has been called, sampling of the others. With speculation, drafts are
// guessed before the forward pass, and NextN runs over the accepted tokens once all rows are sampled
// (cuda_speculation.h). All of this is one graph if a step has verifications alone and no row with a
// constraint. The next step's work comes after it on the stream, so it may overwrite every array of this step
// except the results. These are copied to the host on a separate stream while the next step's inputs are
// copied, and the next step's kernels wait for that copy. What the host reads or writes is page-locked
// memory, with one block per step in flight.
//
// With several ranks each rank has an executor of its own, which its rank's thread uses (RankGroupExecutor).
// All of them launch the same steps and sample every row. A failure is then not only reported as an output
// but also thrown, so that the other ranks do not wait for this one.
#pragma once

#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/cuda/cuda_model.h"
#include "engine/cuda/cuda_speculation.h"
#include "engine/cuda/device_inputs.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/op_profile.h"
#include "engine/cuda/rank_links.h"
#include "engine/cuda/slot_states.h"
#include "engine/cuda/step_results.h"
#include "engine/step_executor.h"

namespace hadal {

class CudaExecutor final : public StepExecutor {
 public:
  // `model` must outlive the executor; workspace_bytes is the workspace of any step of these sizes. The
  // constructor allocates everything that a step may need and captures the graphs of `buckets`
  // (graph_shapes). It throws OutOfDeviceMemory.
  CudaExecutor(CudaModel& model, const EngineOptions& options, const std::vector<int64_t>& buckets,
               size_t workspace_bytes, RankEnd end = {});
  ~CudaExecutor() override;

  // Returns the device memory needed beside weights, workspace and KV cache, and the part of it that only
  // scored prompts need.
  static int64_t state_bytes(const CudaModel& model, const EngineOptions& options);
  static int64_t scoring_bytes(const CudaModel& model, const EngineOptions& options);

  void launch(StagedStep step) override;
  void set_masks(int64_t step, std::vector<uint32_t> masks) override;
  StepOutput wait() override;
  void fill_cache(uint64_t seed) override;
  bool speculates() const override { return speculation_.has_value(); }
  // An H200 reads 4.3 TB/s and reaches about 300 T multiply-adds per second in bf16.
  DeviceRates rates() const override { return {.products_per_byte = 70.0}; }

 private:
  using Clock = std::chrono::steady_clock;

  struct Sample {
    int32_t slot = 0;
    int64_t result = 0;  // index among the results of its kind; unused with speculation
    bool verifies = false;
    bool constrained = false;
    bool wants_logprob = false;
    std::string error;  // if not empty, why the row was not sampled
  };
  struct Pending {
    int64_t step = 0;
    int step_idx = 0;  // index into staging blocks and events
    std::vector<Sample> samples;
    std::vector<std::pair<int32_t, int64_t>> scores;  // slot, index
    StepView view;
    CudaSpeculation::Shape shape;  // used with speculation
    StepExchanges exchanges;
    bool wants_tops = false;
    bool graphed = false;
    bool awaits_masks = false;
    bool fatal = false;
    std::string error;
    std::unique_ptr<OpProfile> profile;
  };
  struct StepEvents {
    CudaEvent begin{true}, end{true};  // around the kernels
    CudaEvent done;                    // recorded when the results are on the host
  };

  void capture_graphs(bool use_graphs);
  // Tells whether a decode row may see more keys than index_topk.
  bool may_select(const StagedStep& step) const;
  // Sets what the host knows about the selection of a step's decode rows.
  void set_selects(DeviceStep& step, bool may_select) const;
  // Returns the size to which a decode step is padded. If it has 0 items, the step runs unpadded and without
  // a graph.
  GraphShape padded_shape(const StagedStep& step, bool selects) const;
  void start(StagedStep& step, Pending& pending);
  void describe(StagedStep& step, Pending& pending);
  void keep_busy();
  void copy_pages(const std::vector<PageCopy>& copies, const cuda::PageCopyEntry* entries);
  // Writes the tokens that rows take from their slots, and returns the input of the forward pass.
  DeviceStep feed(const StepView& view);
  // Runs feeds, forward pass and sampling of rows without a constraint: the work that a graph contains.
  void run(Pending& pending, OpObserver* observer);
  // Does the same with speculation. It also scores prompts and, unless rows wait for masks, runs NextN over
  // the accepted tokens.
  void run_speculating(Pending& pending, OpObserver* observer);
  DeviceExec exec_of(OpObserver* observer);
  CudaSpeculation::Pass pass_of(const Pending& pending, DeviceExec& exec) const;
  void sample(const StepView& view, const float* logits, bool constrained);
  void sample_observed(const StepView& view, const float* logits, OpObserver* observer);
  void score(Pending& pending);
  void fetch(const Pending& pending, bool constrained);
  // These begin and end launches in which ranks exchange data (DeviceCommunicator::begin_step).
  void begin_exchanges();
  void end_exchanges();
  StepExchanges exchanges() const;  // of the latest launches
  // Returns when all ranks have called it.
  void wait_for_ranks();
  // Makes `why` the step's error and checks whether the device still works. With several ranks it throws.
  void fail(Pending& pending, const std::string& why);
  void collect(const Pending& pending, StepOutput& output);
  // Reads the tokens that a sample's rows have accepted.
  void collect_chain(const Pending& pending, size_t item, SampledToken& token);
  void place_in_time(const Pending& pending, StepOutput& output);
  StepEvents& events(int step_idx) { return events_[static_cast<size_t>(step_idx % kStagingDepth)]; }

  CudaModel& model_;
  const RankEnd end_;
  const ExecutorSizes sizes_;
  const std::vector<GraphShape> shapes_;
  const bool pad_;
  CudaStream stream_;
  CudaStream mask_stream_;
  CudaStream results_stream_;
  const cuda::Launch launch_;
  DeviceInputs inputs_;
  SlotStates slots_;
  StepResults results_;
  std::optional<CudaSpeculation> speculation_;
  DeviceKvCache cache_;
  const size_t workspace_bytes_;
  DeviceArena workspace_;
  DeviceBuffer logits_;  // [max_logits, vocab]: the target's logits, then NextN's
  DeviceBuffer masks_;
  StagingRing mask_staging_;
  CudaEvent masks_copied_;
  std::array<StepEvents, kStagingDepth> events_;
  std::map<GraphShape, CudaGraph> graphs_;
  std::map<GraphShape, StepExchanges> exchanges_;  // of each graph

  std::deque<Pending> in_flight_;
  int next_idx_ = 0;
  bool broken_ = false;

  // The end of the latest step that was read; it places the next step's GPU time on the host's clock.
  int last_idx_ = -1;
  Clock::time_point last_end_;
};

}  // namespace hadal
