// Resolves the flags of speculation. The functions are pure, except that they log a warning when a flag is
// not fully supported.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "model/config.h"
#include "tensor/device.h"

namespace hadal::cli {

inline constexpr int64_t kDefaultSpeculationSteps = 3;

// Returns EngineOptions::draft_shape. On a GPU drafts are chains.
DraftShape draft_shape(const ParsedFlags& flags, DeviceType device);

// Returns EngineOptions::speculation_width: the number of steps plus 1, or 0 without --speculative-algorithm.
// If the flags ask for trees it is the number of draft tokens, which on a GPU may only make a chain shorter.
int64_t speculation_width(const ParsedFlags& flags, DeviceType device);

// Returns EngineOptions::simulated_acceptance. The error (kInvalidArgument) names the flag, its value and
// what is allowed.
Result<std::vector<double>> simulated_acceptance(const ParsedFlags& flags, DeviceType device);

// Checks the flags against each other. The errors (kInvalidArgument) name the flag.
Result<void> check_speculation_flags(const ParsedFlags& flags, DeviceType device);

// Checks that the model has a NextN layer, if options.load_nextn. The error is kInvalidArgument.
Result<void> check_has_nextn(const ModelOptions& options, const ModelConfig& config);

}  // namespace hadal::cli
