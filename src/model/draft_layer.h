// Reads a directory that has a NextN layer for the model of another directory
// (--speculative-draft-model-path), and checks that the layer fits. The directory is one of
// - a whole checkpoint whose config.json has num_nextn_predict_layers 1: the layer is
//   model.layers.<num_hidden_layers>;
// - SGLang's export of the layer alone: the architecture DeepseekV3ForCausalLMNextN, or the tensor
//   model.layers.0.eh_proj beside num_hidden_layers 1. The layer is model.layers.0 and has experts, whatever
//   first_k_dense_replace says. The other fields are those of the checkpoint from which it was exported.
// The functions read files and change nothing; any thread may call them.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "base/result.h"
#include "model/config.h"
#include "model/quantization.h"
#include "model/weights_loader.h"

namespace hadal {

inline constexpr std::string_view kDraftFlag = "--speculative-draft-model-path";
inline constexpr std::string_view kDraftQuantizationFlag = "--speculative-draft-model-quantization";

// DraftRequest holds the options of the command line.
struct DraftRequest {
  std::filesystem::path dir;
  LoadFormat format = LoadFormat::kAuto;         // dummy: config.json alone is read
  std::optional<LoadQuantization> quantization;  // kDraftQuantizationFlag; nullopt: not given
  LoadQuantization model_quantization = LoadQuantization::kNone;  // the model's
};

// Reads config.json, and the headers of the weight files. Linears that are stored quantised keep their
// format, whether config.json states it or only the tensors show it, and the flag must not name another
// format. Other linears are quantised as the flag says or, without the flag, as the model's are. The errors,
// which name kDraftFlag, are those of parse_model_config (kDataLoss), of refuse_other_model and of
// Checkpoint::open; a directory without config.json or without the layer's eh_proj; and kInvalidArgument for
// a config that has no NextN layer and for quantisations that contradict each other.
Result<DraftLayer> read_draft_layer(const DraftRequest& request);

// Checks that the layer has the dimensions, the router and the positions of the model, because the two share
// a forward pass and pages of the KV cache. The error (kInvalidArgument) names the flag, the first field that
// differs and both values.
Result<void> check_draft_fits(const DraftLayer& draft, const ModelConfig& model);

// Checks that a GPU can hold the layer beside the model, which requires that both have the same format of
// 8-bit linears. `quantization` is the model's. The error (kUnsupported) names the flag and both formats.
Result<void> check_gpu_draft(const DraftLayer& draft, const ModelConfig& model,
                             LoadQuantization quantization);

// Returns the status with the flag in front of its message.
Status about_draft(Status status);

}  // namespace hadal
