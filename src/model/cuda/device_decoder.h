// Runs the forward pass of the family on one GPU: it launches a step's kernels on a stream, eagerly or while
// a graph is being captured. It allocates nothing and never synchronises. There is one launching thread.
//
// If several ranks share the model, it computes this rank's heads, experts and widths for all tokens. The
// results that attention and feed-forward add to the residual are then sums over ranks: each rank writes its
// part in 16 bits to memory that all ranks read, and the norm that follows adds the parts in float32 in order
// of rank. So the residual, and with it routing, has the same bits on all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/device_communicator.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/product_choices.h"
#include "kernels/params/kv_layout.h"
#include "model/config.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/prefill_plan.h"
#include "tensor/cuda.h"

namespace hadal {

// Holds the scratch memory of a step: a bump allocator over one device allocation; the same sequence of calls
// gives the same addresses, which graphs rely on. A Scope frees the memory allocated during its life.
class DeviceArena {
 public:
  explicit DeviceArena(DeviceBuffer buffer);
  static DeviceArena
  measuring();  // no memory: allocations give addresses that must not be used, high_water() counts

  // Returns memory aligned to 256 bytes. Throws when the arena is too small.
  std::byte* allocate(size_t bytes);
  template <typename T>
  T* array(int64_t count) {
    return reinterpret_cast<T*>(allocate(static_cast<size_t>(count) * sizeof(T)));
  }
  size_t high_water() const { return high_water_; }
  // Returns a counter that is 0 between ops. It is for an op whose blocks count themselves and reset it to 0.
  // It is not part of the arena and never moves.
  int32_t* arrived() const { return arrived_.as<int32_t>(); }

  class Scope {
   public:
    explicit Scope(DeviceArena& arena) : arena_(arena), used_(arena.used_) {}
    ~Scope() { arena_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    DeviceArena& arena_;
    size_t used_;
  };

 private:
  DeviceArena() = default;
  DeviceBuffer buffer_;
  DeviceBuffer arrived_;
  bool measuring_ = false;
  size_t used_ = 0;
  size_t high_water_ = 0;
};

// Observes every op of an eager forward pass, for the per-op table of `hadal bench`. `bytes` and `flops` are
// those that the op must move and compute, with the expected number of experts that tokens use.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void begin(const char* name, double bytes, double flops) = 0;
  virtual void end() = 0;
};

struct DeviceExec {
  cuda::Launch launch;
  cuda::GemmLibrary& gemm;
  DeviceArena& workspace;
  const cuda::ProductChoices* choices = nullptr;  // measured ones; null: none
  // The end of this rank among the ranks that share the model, in a step (begin_step()); null: one rank.
  DeviceCommunicator* comm = nullptr;
  bool fusion = true;              // false: --disable-fusion, one kernel for each elementary step
  OpObserver* observer = nullptr;  // null: none
  bool measure_only = false;       // runs the forward pass only to measure its workspace, without launches
};

// Holds the pools of all layers in one allocation and, if the layout has index keys, the pools of index keys
// in another.
class DeviceKvCache {
 public:
  DeviceKvCache(int64_t num_layers, int64_t num_pages, KvLayout layout);
  std::byte* layer(int64_t layer_idx) const { return buffer_.data() + layer_idx * layer_bytes_; }
  std::byte* const* device_pools() const {
    return pools_.as<std::byte*>();
  }  // [num_layers], in device memory
  // These return the same for index keys, and null if the layout has none.
  std::byte* index_layer(int64_t layer_idx) const {
    return index_buffer_.data() + layer_idx * index_layer_bytes_;
  }
  std::byte* const* device_index_pools() const { return index_pools_.as<std::byte*>(); }
  int64_t num_pages() const { return num_pages_; }
  const KvLayout& layout() const { return layout_; }

 private:
  int64_t num_pages_ = 0;
  int64_t layer_bytes_ = 0;
  int64_t index_layer_bytes_ = 0;
  KvLayout layout_;
  DeviceBuffer buffer_;
  DeviceBuffer pools_;
  DeviceBuffer index_buffer_;
  DeviceBuffer index_pools_;
};

// Holds a step's inputs: the contents of ForwardBatch, on the device. Rows [0, num_prefill_tokens) are prompt
// tokens; then there is one row per decode sequence. Padding rows (for graphs) are at the end and have token
// 0, position 0, slot −1 and kv_len 0.
struct DeviceStep {
  int64_t num_tokens = 0;  // rows, padding included
  int64_t num_prefill_tokens = 0;
  const int32_t* token_ids = nullptr;       // [num_tokens]
  const int32_t* positions = nullptr;       // [num_tokens]
  const int64_t* slots = nullptr;           // [num_tokens]
  const int32_t* num_valid = nullptr;       // [1] rows that are not padding; null: all
  const int32_t* decode_seq_idx = nullptr;  // [num_tokens − num_prefill_tokens]
  const int32_t* decode_kv_len = nullptr;   // [num_tokens − num_prefill_tokens]
  // Masks of the newest records (DeviceDecodeParams); null: all attention is causal. Models with an indexer
  // have none.
  const uint64_t* decode_newest_seen = nullptr;  // [num_tokens − num_prefill_tokens]
  // On the host: true if a decode row may see more keys than index_topk. If false, no kernel looks for such
  // rows, which changes no bits.
  bool may_select = true;
  // On the host: true if every decode row sees more than index_topk keys. Then the plan and the kernels for
  // rows that attend to all keys are left out, which changes no bits.
  bool all_select = false;
  // True if every key of a decode row except the last was in the cache before this step.
  bool decode_settled = false;
  const int32_t* page_table = nullptr;  // [·, page_table_stride]
  int64_t page_table_stride = 0;
  const int32_t* logit_rows = nullptr;  // [num_logit_rows]; null: row i
  int64_t num_logit_rows = 0;
  const PrefillPlan* prefill = nullptr;                   // host; null without prefill rows
  const cuda::KeyRun* key_runs = nullptr;                 // prefill->key_runs on the device
  const cuda::PrefillSegmentRun* segment_runs = nullptr;  // likewise
  const int32_t* absorbed_rows = nullptr;                 // likewise, and so the next two
  const int32_t* absorbed_seq_idx = nullptr;
  const int32_t* absorbed_kv_len = nullptr;
  const int32_t* selecting_seq_idx = nullptr;  // likewise
  const int32_t* selecting_kv_len = nullptr;   // likewise
  // On the host: a length that few sequences exceed; 0: unknown. It is the same in every step of the engine,
  // so that equal batches run the same kernels.
  int64_t most_keys = 0;
  int64_t decode_keys = 0;              // host: Σ decode_kv_len, for OpObserver's figures; 0: unknown
  int32_t* distinct_experts = nullptr;  // [num MoE layers] receives how many routed experts each layer hit,
                                        // 0 where none was run; null: not wanted
};

// Says where a forward pass writes. All of it is device memory.
struct DeviceOutputs {
  // Selects the rows whose hidden states after the last norm are written, in 16 bits.
  enum class Hidden { kNone, kLogitRows, kAllRows };

  float* logits = nullptr;      // [num_logit_rows, vocab]
  Hidden rows = Hidden::kNone;  // with kAllRows the last layer computes all rows
  void* hidden = nullptr;       // [num_logit_rows or num_tokens, hidden]
};

// Holds NextN's inputs besides the step. Row r of the step has position t, token_ids[r] is the token at t +
// 1, and the hidden state at t is row hidden_rows[r] of `hidden`, or row r if hidden_rows is null.
struct NextnInput {
  const void* hidden = nullptr;          // [·, hidden] of 16 bits
  const int32_t* hidden_rows = nullptr;  // [num_tokens] or null
};

class DeviceDecoder {
 public:
  // Both must outlive the decoder.
  DeviceDecoder(const ModelConfig& config, const DeviceWeights& weights);

  // Writes logits, float32 [num_logit_rows, vocab], and the step's records to the cache. With several ranks,
  // each rank computes its columns of the logits and gathers those of the others, so that all ranks have
  // whole rows and sample the same tokens. (It would be faster to distribute the rows over the ranks, so that
  // each rank gathers and samples only some of them.)
  void forward(const DeviceStep& step, const DeviceKvCache& cache, const DeviceOutputs& outputs,
               DeviceExec& exec) const;

  // Runs the NextN layer, which must be loaded: the logits are those of the token at t + 2, and the records
  // go to the cache's layer num_hidden_layers (Model::forward_nextn). With several ranks, each computes its
  // columns of eh_proj's product, too, and gathers those of the others.
  void forward_nextn(const DeviceStep& step, const NextnInput& input, const DeviceKvCache& cache,
                     const DeviceOutputs& outputs, DeviceExec& exec) const;
  bool has_nextn() const { return weights_.nextn.has_value(); }
  // Returns the number of layers of a KV cache, including the NextN layer if it is loaded.
  int64_t num_cache_layers() const { return config_.num_hidden_layers + (has_nextn() ? 1 : 0); }

  struct StepBytes {
    size_t workspace = 0;
    int64_t part = 0;  // the largest that is exchanged at once (DeviceCommunicator::partial)
  };
  // Returns the bytes that suffice for any step of up to this many rows, including eager prefill with passes
  // of max_keys keys and absorbed prefill, and NextN over these rows if it is loaded.
  StepBytes step_bytes(int64_t max_tokens, int64_t max_prefill_tokens, int64_t max_keys,
                       int64_t max_logit_rows, const PrefillPaths& paths, cuda::GemmLibrary& gemm,
                       int num_sms, const cuda::ProductChoices* choices) const;

  int64_t num_moe_layers() const { return num_moe_layers_; }

 private:
  const ModelConfig& config_;
  const DeviceWeights& weights_;
  int64_t num_moe_layers_ = 0;
};

// Ranks gather columns, for example of logits, for as many rows at once as make a part of at most this size,
// but for at least one row.
inline constexpr int64_t kMostGatheredPartBytes = int64_t{64} << 20;

// A prefill pass has at most this many keys, which bounds the expanded keys and values ([keys, heads, 256] of
// 16 bits).
inline constexpr int64_t kMaxPrefillKeys = 16384;

}  // namespace hadal
