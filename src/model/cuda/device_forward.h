// Holds one forward pass in progress: the state that its blocks share. It is private to
// model/cuda: device_decoder.cpp has the layer loop, device_attention.cpp the first half of a layer,
// device_feed_forward.cpp (dense) and device_experts.cpp the second.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/indexer/indexer.h"
#include "kernels/cuda/mla/decode/decode.h"
#include "model/cuda/device_decoder.h"

namespace hadal {

// Activations of 16 bits are bf16, or float16 with float16 weights.
using Value16 = uint16_t;

// Holds activations as the next linear reads them: 16-bit rows, quantised rows, or both.
struct DeviceRows {
  Value16* x = nullptr;  // [m, n], dense
  cuda::QuantizedRows x_quantized;
};

class DeviceForward {
 public:
  DeviceForward(const ModelConfig& config, const DeviceWeights& weights, const DeviceStep& step,
                const DeviceKvCache& cache, DeviceExec& exec);

  void run(const DeviceOutputs& outputs);
  // Runs the NextN layer (DeviceDecoder::forward_nextn).
  void run_nextn(const NextnInput& input, const DeviceOutputs& outputs);

 private:
  // Holds the layers that a pass runs, and the norm and the head that follow them.
  struct LayerRun {
    std::span<const DeviceLayer> layers;
    int64_t first_cache_layer = 0;
    const float* final_norm = nullptr;
    const MatrixWeight* lm_head = nullptr;
  };
  // Runs the layers on residual_. `begin` computes the rows of residual_ after the pass has allocated its
  // workspace.
  template <typename Begin>
  void run_layers(const LayerRun& run, const DeviceOutputs& outputs, const Begin& begin);
  void embed();

  // Calls `work`, which launches one op, and reports the op to the observer. Nothing is launched while
  // measuring.
  template <typename Work>
  void op(const char* name, double bytes, double flops, const Work& work) {
    if (exec_.measure_only) return;
    if (exec_.observer != nullptr) exec_.observer->begin(name, bytes, flops);
    work();
    if (exec_.observer != nullptr) exec_.observer->end();
  }

  // Returns the activations in the form that qkv_a and the indexer read.
  DeviceRows rows_for_attention(const DeviceRows& x, const DeviceAttention& weights) const;
  // Allocates workspace for m rows of n values: codes if `quantised`, otherwise 16-bit rows; both if
  // wants_16_bits or without fusion.
  DeviceRows allocate_rows(int64_t m, int64_t n, bool quantised, bool wants_16_bits);
  // Returns the rows in the form that the reader uses; without fusion also the rows from which codes are
  // made.
  DeviceRows rows_for(const DeviceRows& x, const MatrixWeight& reader) const;
  // Returns the activations in the form that router, experts and shared MLP read.
  DeviceRows rows_for_experts(const DeviceRows& x, const DeviceMoe& weights) const;
  cuda::QuantizedRows allocate_fp8(int64_t m, int64_t n);
  // Returns 8-bit rows whose memory is not allocated.
  cuda::QuantizedRows quantized_shape(int64_t m, int64_t n) const;
  // `planned` is the kernel that runs; if it is null, cuda::linear chooses.
  void linear(const char* name, const DeviceRows& x, int64_t x_stride, const MatrixWeight& w, Value16* y,
              float* y_f32, int64_t m, const cuda::Choice* planned = nullptr,
              const cuda::LengthGate& gate = {});
  void quantize(const Value16* x, int64_t m, int64_t n, const cuda::QuantizedRows& y);

  // Computes residual += input; y = norm(residual), fused, or step by step with --disable-fusion.
  // AddRmsNormParams describes `rows`.
  void add_norm(const char* name, const cuda::NormInput& input, const float* weight, int64_t m,
                const DeviceRows& y, const int32_t* rows = nullptr, float* residual_out = nullptr);

  // Holds a plan of mla_decode and the geometry by which it is cut; both are chosen once per step.
  struct DecodePlan {
    cuda::MlaPlanShape shape;
    cuda::DecodeGeometry geometry;  // not while measuring
    std::byte* plan = nullptr;
    size_t scratch_bytes = 0;
  };
  // Makes the plans for decode rows and for absorbed prompt tokens.
  void plan_attention();
  DecodePlan make_plan(const cuda::MlaPlanShape& shape, const int32_t* kv_len);
  cuda::MlaPlanShape plan_shape(int64_t num_seqs, int q_len, int64_t most_keys) const;
  cuda::MlaPlanShape absorbed_shape(const AbsorbedPass& pass) const;
  // Holds the arguments of the kernels that turn q into the heads' outputs, for absorbed rows. `y` has the
  // arguments of expand_value except its inputs.
  struct AbsorbedRows {
    const Value16* q = nullptr;
    int64_t q_stride = 0;
    int64_t m = 0;
    const int32_t* positions = nullptr;
    const int32_t* rows = nullptr;  // see AbsorbQueryParams and ExpandValueParams
    bool fused_rope = true;
    const DecodePlan* plan = nullptr;
    const int32_t* seq_idx = nullptr;
    const int32_t* kv_len = nullptr;
    const uint64_t* newest_seen = nullptr;
    bool settled = false;
    cuda::DeviceSelection selection;  // for a plan with index_topk
    double pairs = 0.0;               // of queries and keys, keys: for OpObserver's figures
    double keys = 0.0;
  };
  void absorbed_attention(const DeviceAttention& weights, std::byte* pool, const AbsorbedRows& in,
                          cuda::ExpandValueParams out);

  // The indexer (V3.2). index_queries computes the inputs of its queries and weights, for all rows; it
  // returns nothing without an indexer, or in a step whose rows cannot select. select_keys selects for `m`
  // rows from row `first_row` of the step on; seq_idx and kv_len are [m]. The memory of both results lives
  // until the caller's Scope ends. run_selection writes slots and counts, or bits.
  struct IndexQueries {
    const Value16* q = nullptr;  // [num_tokens, heads · 128]
    const float* w = nullptr;    // [num_tokens, heads]
  };
  // Stores the index keys of all rows of the step; qkv is the product of qkv_a, [num_tokens, qkv_width].
  void write_index_keys(const DeviceIndexer& indexer, std::byte* index_pool, const Value16* qkv,
                        int64_t qkv_width);
  IndexQueries index_queries(const DeviceIndexer& indexer, const DeviceRows& x, const DeviceRows& q_latent,
                             int64_t q_width);
  cuda::DeviceSelection select_keys(const DeviceIndexer& indexer, const std::byte* index_pool,
                                    const IndexQueries& queries, int64_t first_row, int64_t m,
                                    const int32_t* seq_idx, const int32_t* kv_len, bool is_prompt);
  struct SelectionOutput {
    int32_t* slots = nullptr;   // [m, index_topk]
    int32_t* counts = nullptr;  // [m]
    uint64_t* bits = nullptr;   // [m, bits_words]
    int64_t bits_words = 0;
  };
  void run_selection(const DeviceIndexer& indexer, const std::byte* index_pool, const IndexQueries& queries,
                     int64_t first_row, int64_t m, const int32_t* seq_idx, const int32_t* kv_len,
                     bool is_prompt, const SelectionOutput& out);
  // Computes the attention of prompt rows that attend absorbed to a selection; y is [num_prefill, heads ·
  // 128]. For rows that attend un-absorbed to a selection it writes the bits, [num_prefill, bits_words].
  void selecting_attention(const DeviceAttention& weights, std::byte* pool, const std::byte* index_pool,
                           const IndexQueries& queries, const Value16* q, int64_t q_stride, Value16* y,
                           uint64_t* bits);
  DecodePlan selecting_plan(int64_t num_rows) const;

  // Computes the attention of x [num_tokens, hidden] into out, which has the same shape.
  void attention(const DeviceAttention& weights, int64_t layer_idx, const DeviceRows& x, Value16* out);
  // `bits` are those of selecting_attention; null if the plan has none.
  void prefill_attention(const DeviceAttention& weights, std::byte* pool, const Value16* q, int64_t q_stride,
                         const uint64_t* bits, Value16* out, const cuda::QuantizedRows& out_fp8);
  void decode_attention(const DeviceAttention& weights, std::byte* pool, const Value16* q, int64_t q_stride,
                        const cuda::DeviceSelection& selection, Value16* out,
                        const cuda::QuantizedRows& out_fp8);

  // Returns the rows that the next norm adds to the residual, of all ranks. x: [m, hidden]. The memory of
  // these rows lives until the caller's Scope ends.
  cuda::NormInput feed_forward(const DeviceLayer& layer, const DeviceRows& x, int64_t m, bool padded,
                               int32_t* distinct_experts);
  // Computes an MLP into out [m, hidden]; its intermediate size is not 0.
  void dense_mlp(const DeviceMlp& weights, const DeviceRows& x, int64_t m, Value16* out);
  // Returns the rows of the experts that this rank holds; it must hold some.
  cuda::NormInput experts(const DeviceMoe& weights, const DeviceRows& x, int64_t m, bool padded,
                          int32_t* distinct_experts);
  // Returns the rows of a shared MLP that is a product of its own; null if this rank has none.
  Value16* shared_rows(const DeviceMoe& weights, const DeviceRows& x, int64_t m);
  // Computes this rank's part of the experts' sum into out [m, hidden].
  void experts_part(const DeviceMoe& weights, const DeviceRows& x, int64_t m, bool padded,
                    int32_t* distinct_experts, Value16* out);

  // Sets rows [m, hidden] to zero, which is the part of a rank that holds nothing of an MLP.
  void clear(Value16* rows, int64_t m);

  // These are for several ranks. partial_rows returns the memory for this rank's partial sums [m, hidden].
  // After the kernels that write them have been launched, exchanged returns those of all ranks. The next norm
  // exchanges small parts itself.
  Value16* partial_rows(int64_t m);
  // `in_norm`: the next norm may exchange small parts itself, because it reads all rows.
  cuda::NormInput exchanged(int64_t m, bool in_norm = true);
  // Returns the parameters with which the next norm exchanges m rows; null if it does not.
  const cuda::ExchangeParams* exchange_in_norm(int64_t m);
  // Describes a product whose outputs are distributed over the ranks: w has this rank's rows, part(rank).
  struct DealtProduct {
    const char* name = nullptr;
    const char* gather_name = nullptr;  // of the op that gathers
    const MatrixWeight& w;
    int64_t n = 0;  // outputs of all ranks
    Range (*part)(const ModelConfig& config, ModelSplit split, int64_t rank) = nullptr;
  };
  // Computes y [m, n] for x [m, w.k]. With several ranks, each rank computes its columns and gathers those of
  // the others.
  void dealt_linear(const DealtProduct& product, Value16* x, int64_t m, float* y);
  friend class ExpertsRun;  // runs one layer's plan
  // Returns true if the kernel that computes the heads' outputs of decode rows also quantises them: a head is
  // one group of e4m3.
  bool expands_to_codes(const MatrixWeight& o) const {
    return o.type == WeightType::kFp8Block && exec_.fusion;
  }
  // Computes y = silu(gate) ⊙ up, in codes if y has them and fusion is on, otherwise in 16 bits. num_used is
  // that of SiluMulParams.
  void activate(const char* name, const Value16* gate_up, int64_t m, int64_t intermediate,
                const DeviceRows& y, const int32_t* num_used = nullptr);

  const ModelConfig& config_;
  const DeviceWeights& weights_;
  const DeviceStep& step_;
  const DeviceKvCache& cache_;
  DeviceExec& exec_;
  const cuda::Launch& launch_;
  DeviceArena& arena_;
  const float eps_;
  const bool f16_;  // activations are float16
  const int64_t hidden_;
  const int64_t heads_;  // of this rank
  const int64_t num_tokens_;
  const int64_t num_prefill_;
  const int64_t num_decode_;
  float* residual_ = nullptr;      // [num_tokens, hidden]; after the last attention [num_logit_rows, hidden]
  int64_t first_cache_layer_ = 0;  // the KV pool of the pass's first layer
  bool settled_ = false;           // for the layer: see attention()
  cuda::DevicePagedKv paged_;      // with the pool of no layer
  DecodePlan plan_;                // for the decode rows
  std::vector<DecodePlan> absorbed_plans_;  // for the absorbed passes
};

}  // namespace hadal
