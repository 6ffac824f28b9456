// Finds the NextN layer that --speculative-draft-model-path names. Only the main thread uses it.
#pragma once

#include <filesystem>
#include <optional>

#include "base/result.h"
#include "cli/options.h"
#include "model/config.h"
#include "model/weights_loader.h"

namespace hadal::cli {

// Returns the layer, after checking that it fits the model `config` in `model_dir`. A layer on the hub is
// fetched unless it is in the cache. Returns nullopt if the model's own layer is used. That is so without the
// flag; if the flag names the model itself and no other flag says how to load the draft layer; and, with a
// warning, if it names a model on the hub that cannot be fetched. The errors are those of find_draft for a
// path that is no id, of read_draft_layer and of check_draft_fits.
Result<std::optional<DraftLayer>> find_draft_layer(const ParsedFlags& flags, const Environment& environment,
                                                   const ModelOptions& options,
                                                   const std::filesystem::path& model_dir,
                                                   const ModelConfig& config);

}  // namespace hadal::cli
