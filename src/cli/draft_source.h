// Finds the NextN layer that --speculative-draft-model-path names. Only the main thread uses it.
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"
#include "cli/options.h"
#include "model/config.h"
#include "model/weights_loader.h"

namespace hadal::cli {

// Returns the layer, which fits the model `config` in `model_dir`. It returns nullopt where the model's own
// layer is used: without the flag; where it names the model itself, and no other flag of the draft layer says
// how to load it; and where it names a model on the hub that is not in the cache, about which it warns. The
// errors are those of read_draft_layer and check_draft_fits, and kNotFound for a path where no directory is.
Result<std::optional<DraftLayer>> find_draft_layer(const ParsedFlags& flags, const Environment& environment,
                                                   const ModelOptions& options,
                                                   const std::filesystem::path& model_dir,
                                                   const ModelConfig& config);

}  // namespace hadal::cli
