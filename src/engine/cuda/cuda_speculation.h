// Guesses, verifies and follows drafts on one GPU (docs/speculation.md has the order of a step). How long a
// request is and which drafts are accepted is known only on the device until the host reads the step, so a
// verification has as many rows as it can need; those that it does not need are padding. Only the thread of
// the executor may use it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/cuda/cuda_model.h"
#include "engine/cuda/device_inputs.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/slot_states.h"
#include "engine/cuda/step_results.h"
#include "kernels/cuda/speculation/speculation.h"

namespace hadal {

class CudaSpeculation {
 public:
  // The model must outlive it and have the NextN layer. If it rests, steps that verify one row a request
  // leave NextN out, and what makes the records of the last kMaxWaitingRows tokens of each slot waits.
  // simulated_acceptance is EngineOptions'.
  CudaSpeculation(const CudaModel& model, const ExecutorSizes& sizes, bool rests,
                  std::span<const double> simulated_acceptance);
  static int64_t device_bytes(const CudaModel& model, const ExecutorSizes& sizes, bool rests);

  // Adds the rows of verifications to the step's batch, as padding that the device fills in. A request with a
  // grammar has one row, because masks of further rows would need its drafts on the host.
  static void stage(StagedStep& step);
  // Tells whether the step, which stage() has seen, has no rows but those of verifications.
  static bool verifies_alone(const StagedStep& step);

  // Shape says what a step samples: results are in order of depth, and for each depth of the step's samples,
  // padding included.
  struct Shape {
    int num_items = 0;  // samples
    int width = 1;      // most rows of one
    int64_t num_results() const { return int64_t{num_items} * width; }
    int64_t result(size_t item, int depth) const {
      return int64_t{depth} * num_items + static_cast<int64_t>(item);
    }
  };
  // Begins a step that stage() and DeviceInputs::upload have seen, and whose view is `view`, which has been
  // padded to `padded` if that has items. What the other functions launch then depends on `padded` alone, so
  // a graph of them holds for all such steps.
  Shape begin(const StagedStep& step, const StepView& view, const StepResults& results,
              const SlotStates& slots, int step_idx, const GraphShape& padded, StreamHandle stream);

  // Pass holds what the parts of a step use beside this object's own state.
  struct Pass {
    const StepView& view;
    const DeviceKvCache& cache;
    const SlotStates& slots;
    const StepResults& results;
    float* logits = nullptr;  // [requests, vocab], for NextN
    DeviceExec& exec;
  };
  // Tells whether the step begins with records that wait, and so is none of those that a graph holds for.
  bool catches_up() const { return catch_up_stride_ > 0; }
  // Makes the records that wait, guesses drafts and fills in the rows of verifications. The target's forward
  // pass comes next, which writes the hidden states of all rows to target_hidden().
  void expand(const Pass& pass);
  void* target_hidden() const { return arrays_.target_hidden; }
  // Samples the rows of `logits`, which are the target's: of each request row after row while its drafts are
  // accepted. With `masks`, only the requests with a grammar, otherwise only the others.
  void sample(const Pass& pass, const float* logits, const uint32_t* masks);
  // Runs NextN over the step's rows once all of them are sampled. The step's logits may be overwritten.
  void follow(const Pass& pass);

  // Starts the copy of the numbers of verified rows to the host, which num_rows reads when it is complete.
  void fetch(int step_idx, const Shape& shape, StreamHandle stream);
  int32_t num_rows(int step_idx, size_t item) const;

  // Makes the slot one that has sampled nothing, so that a step which is staged already verifies no row of
  // it.
  void forget(int32_t slot, StreamHandle stream);

 private:
  // Arrays are in device memory; the sizes are the largest.
  struct Arrays {
    cuda::ChainItem* items = nullptr;  // [requests]
    int32_t* num_items = nullptr;      // [1]: items that are not padding, in front of follow_ids
    int32_t* follow_ids = nullptr;     // [tokens]
    void* target_hidden = nullptr;     // [tokens, hidden] of 16 bits
    void* next_hidden = nullptr;       // [requests, hidden]: what NextN gives
    int32_t* guess_rows = nullptr;     // [requests]
    cuda::ChainRows drafting;          // [decode rows]: NextN's batch of one row for each request, or of
                                       // the records that wait
    int32_t* hidden_rows = nullptr;    // [decode rows], for the latter
    double* chances = nullptr;         // [width]: of simulated acceptance
    cuda::Chains chains;
  };
  static Arrays place(DeviceArena& arena, const CudaModel& model, const ExecutorSizes& sizes, bool rests);
  // Counts the records that wait after the step, and sets those that it makes in `items`.
  void count_waiting(const StagedStep& step, bool rests, std::vector<cuda::ChainItem>& items);
  void catch_up(const Pass& pass);
  // Runs NextN over a batch in arrays_.drafting and samples its logits, which are one row for each item.
  void draft(const Pass& pass, DeviceStep step, const NextnInput& input);
  // Chooses a draft from each row of NextN's logits that sample_rows name.
  void guess(const Pass& pass);

  const CudaModel& model_;
  DeviceArena arena_;
  Arrays arrays_;
  const bool rests_;
  const int64_t max_decode_;
  std::vector<int64_t> waiting_;  // by slot: records that wait after the latest step
  // These belong to the latest step:
  cuda::Chains step_;
  int catch_up_stride_ = 0;  // rows for each item that make waiting records; 0: none
  bool runs_nextn_ = true;   // after the target: a step may rest
  StagingRing staging_, host_rows_;
};

}  // namespace hadal
