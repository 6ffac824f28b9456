// Guesses, verifies and follows drafts on one GPU (docs/speculation.md has the order of a step). Until the
// host reads the step, the length of a request and the number of its accepted drafts are in device memory
// only. So a verification has as many rows as it can need, and rows that turn out not to be needed are
// padding. Only the thread of the executor may use it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cuda/cuda_model.h"
#include "engine/cuda/device_inputs.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/slot_states.h"
#include "engine/cuda/step_results.h"
#include "kernels/cuda/speculation/speculation.h"
#include "kernels/cuda/speculation/trees.h"

namespace hadal {

class CudaSpeculation {
 public:
  // Options are those of EngineOptions.
  struct Options {
    DraftShape shape;  // topk 1: drafts are chains
    // Steps that verify one row a request leave NextN out, and the inputs of the records of the last
    // kMaxWaitingRows tokens of each slot are kept.
    bool rests = false;
    std::vector<double> simulated_acceptance;
  };
  // The model must outlive the object and have the NextN layer.
  CudaSpeculation(const CudaModel& model, const ExecutorSizes& sizes, const Options& options);
  static int64_t device_bytes(const CudaModel& model, const ExecutorSizes& sizes, const Options& options);

  // Adds the rows of verifications to the step's batch, as padding that the device fills in. A request with a
  // grammar has one row, because masks of further rows would require its drafts on the host.
  static void stage(StagedStep& step);
  // Tells whether the step, which stage() has processed, has only rows of verifications.
  static bool verifies_alone(const StagedStep& step);

  // Shape says what a step samples. Its results are in order of depth, and for each depth in the order of the
  // step's samples, padding included.
  struct Shape {
    int num_items = 0;  // samples
    int width = 1;      // most rows of one sample
    int64_t num_results() const { return int64_t{num_items} * width; }
    int64_t result(size_t item, int depth) const {
      return int64_t{depth} * num_items + static_cast<int64_t>(item);
    }
  };
  // Begins a step that stage() and DeviceInputs::upload have processed. `view` is the step's view. If
  // `padded` has items, the view has been padded to it. What the other functions launch then depends on
  // `padded` alone, so one graph of them serves all such steps.
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
  // Tells whether the step first makes records that wait; such a step has no graph.
  bool catches_up() const { return catch_up_stride_ > 0; }
  // Makes the records that wait, guesses drafts and fills in the rows of verifications. The caller then runs
  // the target's forward pass with newest_seen(), which writes the hidden states of all rows to
  // target_hidden().
  void expand(const Pass& pass);
  void* target_hidden() const { return arrays_.target_hidden; }
  // Returns the masks of the step's decode rows; null in a step without trees.
  const uint64_t* newest_seen() const { return has_trees() ? arrays_.newest_seen : nullptr; }
  // Samples the target's logits, `logits`. The rows of a request are sampled one after the other while its
  // drafts are accepted. With `masks` it samples only the requests with a grammar, otherwise only the others.
  void sample(const Pass& pass, const float* logits, const uint32_t* masks);
  // Runs NextN over the step's rows once all of them are sampled. The step's logits may be overwritten.
  void follow(const Pass& pass);

  // Starts the copy of the numbers of verified rows and of the accepted rows to the host. When it is
  // complete, num_rows returns the first, and row_at the row of an item that was sampled at a depth.
  void fetch(int step_idx, const Shape& shape, StreamHandle stream);
  int32_t num_rows(int step_idx, size_t item) const;
  int32_t row_at(int step_idx, const Shape& shape, size_t item, int depth) const;

  // Marks the slot as one that has sampled nothing, so that a step which is already staged verifies no row of
  // it.
  void forget(int32_t slot, StreamHandle stream);

 private:
  // Arrays are in device memory; the sizes are the largest.
  struct Arrays {
    cuda::ChainItem* items = nullptr;  // [requests]
    int32_t* num_items = nullptr;      // [1]: items that are not padding, in front of follow_ids
    int32_t* num_nextn = nullptr;      // [1]: NextN's rows for each depth of trees that are not padding
    int32_t* follow_ids = nullptr;     // [tokens]
    void* target_hidden = nullptr;     // [tokens, hidden] of 16 bits
    void* next_hidden = nullptr;       // [requests or, with trees, decode rows, hidden]: NextN's output
    int32_t* guess_rows = nullptr;     // [requests]
    cuda::ChainRows drafting;          // [decode rows]: NextN's batch of one row for each request, or of
                                       // the records that wait, or of the drafts of one depth of trees
    uint64_t* newest_seen = nullptr;   // [tokens]: masks of the step's decode rows; only with trees
    int32_t* hidden_rows = nullptr;    // [decode rows], for records that wait
    double* chances = nullptr;         // [width]: of simulated acceptance
    cuda::Chains chains;
    cuda::Trees trees;  // without its chains
  };
  static Arrays place(DeviceArena& arena, const CudaModel& model, const ExecutorSizes& sizes,
                      const Options& options);
  static void place_trees(DeviceArena& arena, const ExecutorSizes& sizes, Arrays& arrays);
  // Counts the records that wait after the step, and sets those that it makes in `items`.
  void count_waiting(const StagedStep& step, bool rests, std::vector<cuda::ChainItem>& items);
  // Numbers the items that have trees. Padding to a graph's size has trees, too, so that the number of trees
  // depends on that size alone.
  void number_trees(std::vector<cuda::ChainItem>& items, const GraphShape& padded);
  bool grows_trees() const { return options_.shape.topk > 1; }
  bool has_trees() const { return grows_trees() && step_.width > 1; }  // in the step
  void catch_up(const Pass& pass);
  void expand_chains(const Pass& pass);
  void expand_trees(const Pass& pass);
  // Runs NextN over a batch in arrays_.drafting, and chooses drafts from its logits.
  void draft(const Pass& pass, DeviceStep step, const NextnInput& input);
  // Chooses drafts from the first num_rows rows of NextN's logits, where sample_rows says so.
  void guess(const Pass& pass, int64_t num_rows);
  // Keeps the guesses as the first drafts of the items' slots.
  void keep_first(const Pass& pass);

  const CudaModel& model_;
  DeviceArena arena_;
  Arrays arrays_;
  const Options options_;
  const int64_t max_decode_;
  std::vector<int64_t> waiting_;  // by slot: records that wait after the latest step
  // These belong to the latest step:
  cuda::Chains step_;
  cuda::Trees trees_;
  int catch_up_stride_ = 0;  // rows for each item that make waiting records; 0: none
  bool runs_nextn_ = true;   // NextN runs after the target; false if the step rests
  StagingRing staging_, host_rows_;
};

}  // namespace hadal
