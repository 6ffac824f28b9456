#include "cli/speculation_options.h"

#include "cli/flags/flag_values.h"
#include "engine/engine.h"

namespace hadal::cli {

DraftShape draft_shape(const ParsedFlags& flags) {
  return {.num_steps = flags.integer("speculative-num-steps").value_or(kDefaultSpeculationSteps),
          .topk = flags.integer("speculative-eagle-topk").value_or(1)};
}

int64_t speculation_width(const ParsedFlags& flags) {
  if (!flags.has("speculative-algorithm")) return 0;
  const DraftShape shape = draft_shape(flags);
  const int64_t chain = shape.num_steps + 1;
  return shape.topk == 1 ? chain : flags.integer("speculative-num-draft-tokens").value_or(chain);
}

Result<std::vector<double>> simulated_acceptance(const ParsedFlags& flags) {
  std::vector<double> chances;
  const auto text = flags.text("speculative-simulate-acceptance");
  if (!text) return chances;
  const std::string field = fmt::format("--speculative-simulate-acceptance {}:", *text);
  for (const std::string_view part : split(*text, ",")) {
    const std::optional<double> chance = number_from<double>(part);
    if (!chance) {
      return invalid_argument("{} {} is not a number; allowed: numbers in [0, 1], separated by commas", field,
                              part);
    }
    chances.push_back(*chance);
  }
  if (chances.empty()) {
    return invalid_argument("{} it is empty; allowed: numbers in [0, 1], separated by commas", field);
  }
  HADAL_RETURN_IF_ERROR(
      check_simulated_acceptance(chances, speculation_width(flags), draft_shape(flags), field));
  return chances;
}

Result<void> check_speculation_flags(const ParsedFlags& flags) {
  for (const char* name : {"speculative-draft-load-format", "speculative-draft-model-quantization"}) {
    if (flags.has(name) && !flags.has("speculative-draft-model-path")) {
      return invalid_argument(
          "--{}: needs --speculative-draft-model-path; the model's own NextN layer is loaded as the model is",
          name);
    }
  }
  if (!flags.has("speculative-algorithm")) {
    for (const char* name :
         {"speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens",
          "speculative-fixed", "speculative-simulate-acceptance"}) {
      if (flags.has(name))
        return invalid_argument("--{}: needs --speculative-algorithm, without which nothing speculates",
                                name);
    }
    if (!flags.has("speculative-draft-model-path") || flags.has("nextn")) return {};
    return invalid_argument(
        "--speculative-draft-model-path: needs {}, without which no NextN layer is loaded",
        flags.command() == Command::kLogits ? "--nextn" : "--speculative-algorithm");
  }
  HADAL_RETURN_IF_ERROR(simulated_acceptance(flags));
  const DraftShape shape = draft_shape(flags);
  const int64_t width = speculation_width(flags);
  if (width > shape.most_nodes()) {
    return invalid_argument(
        "--speculative-num-draft-tokens {}: allowed: at most {}, because --speculative-num-steps {} with "
        "--speculative-eagle-topk {} gives no larger tree",
        width, shape.most_nodes(), shape.num_steps, shape.topk);
  }
  return {};
}

Result<void> check_has_nextn(const ModelOptions& options, const ModelConfig& config) {
  if (!options.load_nextn || config.num_nextn_predict_layers > 0) return {};
  return invalid_argument("{}: {} has no NextN layer (num_nextn_predict_layers is 0)", options.nextn_flag,
                          options.model_path);
}

}  // namespace hadal::cli
