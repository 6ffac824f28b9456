// Model is a loaded model: its weights, a forward pass over a mixed batch of prefill chunks and decode
// tokens, and a forward pass of the NextN layer. One thread at a time may run these passes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cpu/ops/exec_context.h"
#include "kernels/params/kv_layout.h"
#include "kernels/params/mla.h"
#include "model/config.h"
#include "model/weights.h"
#include "tensor/buffer.h"

namespace hadal {

// Returns the layout of a model's KV cache in a format. A model with index keys has V3.2's scales by default,
// and other models have one scale per token. The error (kUnsupported) is a format that cannot store what a
// model with an indexer needs.
Result<KvLayout> cache_layout(const ModelConfig& config, KvFormat format,
                              std::optional<KvScales> scales = {});

// KvCache holds the KV pools of all layers, [num_pages, kPageSize, row_bytes] each, and the pools of index
// keys of a model with an indexer, [num_pages, index_page_bytes] each. A page has the same id in both. The
// operating system commits memory when it is first touched.
class KvCache {
 public:
  KvCache(int64_t num_layers, int64_t num_pages, KvLayout layout);
  std::byte* layer(int64_t layer_idx) const { return pools_[layer_idx].data(); }
  // Returns null if the layout has no index keys.
  std::byte* index_layer(int64_t layer_idx) const {
    return index_pools_.empty() ? nullptr : index_pools_[layer_idx].data();
  }
  int64_t num_pages() const { return num_pages_; }
  const KvLayout& layout() const { return layout_; }

 private:
  std::vector<Buffer> pools_;
  std::vector<Buffer> index_pools_;
  int64_t num_pages_;
  KvLayout layout_;
};

// ForwardBatch is one step's work on the host. Rows [0, num_prefill_tokens) are prompt tokens, in segments,
// which use the un-absorbed attention path. The other rows use the absorbed path, and each has its own
// sequence and length. They are decode tokens, and prompt tokens that the plan puts there
// (WorkKind::kAbsorbedPrefill), which num_prefill_tokens does not count. The CPU's model supports rows of
// draft trees, but only where they attend to all keys.
struct ForwardBatch {
  std::vector<int32_t> token_ids;  // [num_tokens]
  std::vector<int32_t> positions;  // [num_tokens]
  std::vector<int64_t> slots;      // [num_tokens]: page · kPageSize + offset
  int64_t num_prefill_tokens = 0;
  std::vector<PrefillSegment> segments;  // segments of the prefill rows
  std::vector<int32_t> decode_seq_idx;   // [num decode tokens]: row of page_table
  std::vector<int32_t> decode_kv_len;    // [num decode tokens]
  // [num decode tokens]: the masks of draft_tree.h; empty: every row sees the records of its own positions.
  std::vector<uint64_t> decode_ancestors;
  std::vector<int32_t> page_table;  // [num_seqs, page_table_stride]
  int64_t page_table_stride = 0;
  std::vector<int32_t> logit_rows;  // ascending rows whose logits are wanted

  int64_t num_tokens() const { return static_cast<int64_t>(token_ids.size()); }
  void clear();
};

struct ExpertStats {  // distinct experts that at least one token was routed to, per MoE layer of the last
                      // forward
  std::vector<int32_t> distinct_experts;
};

// ForwardOutputs says where a forward pass writes, in host memory.
struct ForwardOutputs {
  // float32 [logit_rows.size(), lm_head.n]. The rows are vocab_size apart, so this is the first column of the
  // rank in a buffer [logit_rows.size(), vocab_size], into which the ranks of one process write side by side.
  float* logits = nullptr;
  // float32 [rows, hidden], after the last norm; null: not wanted. All ranks have the same values.
  float* hidden = nullptr;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const ModelWeights& weights() const = 0;
  // Computes the logits of the wanted rows, and the hidden states of all rows if those are wanted, and writes
  // the step's records to the cache.
  //
  // A model that holds the weights of one rank (shard_weights.h) exchanges sums through exec.comm: all ranks
  // run the same batch at the same time.
  virtual void forward(const ForwardBatch& batch, KvCache& cache, const ForwardOutputs& outputs,
                       ExecContext& exec) = 0;
  // Runs the NextN layer (MtpWeights, which must be loaded). Row r has position t, batch.token_ids[r] is the
  // token at t + 1, and row r of `hidden` float32 [num_tokens, hidden] is the target's hidden state at t, or,
  // in a further draft step, the layer's own. The logits are those of the token at t + 2. It computes logits
  // and hidden states only for the wanted rows, and writes the records of all rows to the cache's layer
  // num_hidden_layers. So the record at t depends on the token at t + 1.
  virtual void forward_nextn(const ForwardBatch& batch, const float* hidden, KvCache& cache,
                             const ForwardOutputs& outputs, ExecContext& exec) = 0;
  virtual const ExpertStats& expert_stats() const = 0;
};

// Returns the number of layers of the model's KV cache, including the NextN layer if it is loaded.
int64_t num_cache_layers(const Model& model);

// Makes the model of the family that config.architecture names.
Result<std::unique_ptr<Model>> make_model(ModelConfig config, ModelWeights weights);

}  // namespace hadal
