// Fills ModelWeights from a checkpoint directory or with random numbers. The thread that owns the pool calls
// it once, at start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "base/thread_pool.h"
#include "model/config.h"
#include "model/quantization.h"
#include "model/weights.h"

namespace hadal {

enum class LoadFormat : uint8_t { kAuto, kDummy };

// done_bytes grows to total_bytes; `what` names the current work ("quantise to fp8"). One thread at a time
// calls it, but not always the same thread, and never after load_weights has returned.
using LoadProgress = std::function<void(size_t done_bytes, size_t total_bytes, std::string_view what)>;

// DraftLayer is a NextN layer in a directory other than the model's; draft_layer.h reads and checks it.
struct DraftLayer {
  std::filesystem::path dir;
  ModelConfig config;  // of its files, in which the layer is model.layers.<num_hidden_layers>
  LoadFormat format = LoadFormat::kAuto;
  LoadQuantization quantization = LoadQuantization::kNone;  // of its linears that are stored unquantised
};

struct WeightLoadOptions {
  LoadFormat format = LoadFormat::kAuto;  // dummy: no weight files are read
  // Applies to linears that the checkpoint stores unquantised.
  LoadQuantization quantization = LoadQuantization::kNone;
  DType compute_dtype = DType::kBF16;  // see resolve_compute_dtype
  uint64_t seed = 0;                   // for dummy weights
  bool load_nextn = true;              // false: the NextN layer is left out
  std::optional<DraftLayer> draft;     // with load_nextn: this layer is loaded instead of the model's own
  LoadProgress progress;

  bool loads_own_nextn() const { return load_nextn && !draft; }
  bool loads_draft() const { return load_nextn && draft; }
};

// Resolves --dtype: "auto" (config.torch_dtype), "float32", "bfloat16" or "float16". Any other is an error,
// and so is float16 for a model with an indexer.
Result<DType> resolve_compute_dtype(std::string_view flag, const ModelConfig& config);

// Loads the weights, whose quantisation has been resolved already (apply_quantization_flag). `model_dir`
// contains model.safetensors or model.safetensors.index.json with its shards; dummy weights do not use it.
// The errors are a directory without weights, damaged files, and tensors that are missing, unexpected, or of
// the wrong shape or type. One message reports all of these tensors and names the first twenty. If the config
// announces a NextN layer but the checkpoint has none of its tensors, the model loads without it. All tensors
// of a draft layer must be present, except embedding and head: the model's are used if the layer's are absent
// or have the same bytes and type. Errors about the draft layer's files name the flag (kDraftFlag).
Result<ModelWeights> load_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                  const WeightLoadOptions& options, ThreadPool& pool);

}  // namespace hadal
