// Resolves the flags of speculation, by pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "cli/options.h"
#include "engine/engine.h"
#include "model/config.h"

namespace hadal::cli {

inline constexpr int64_t kDefaultSpeculationSteps = 3;

// Returns EngineOptions::draft_shape.
DraftShape draft_shape(const ParsedFlags& flags);

// Returns EngineOptions::speculation_width: the number of steps plus 1, or 0 without --speculative-algorithm.
// If the flags ask for trees it is the number of draft tokens.
int64_t speculation_width(const ParsedFlags& flags);

// Returns EngineOptions::simulated_acceptance. The error (kInvalidArgument) names the flag, its value and
// what is allowed.
Result<std::vector<double>> simulated_acceptance(const ParsedFlags& flags);

// Checks the flags against each other. The errors (kInvalidArgument) name the flag.
Result<void> check_speculation_flags(const ParsedFlags& flags);

// Checks that the model has a NextN layer, if options.load_nextn. The error is kInvalidArgument.
Result<void> check_has_nextn(const ModelOptions& options, const ModelConfig& config);

}  // namespace hadal::cli
