// Holds the flags of speculation that do something here. Those that correspond to nothing are in
// flag_table_sglang.cpp.
#include <fmt/format.h>

#include <iterator>
#include <vector>

#include "cli/flags/flag_sets.h"
#include "cli/speculation_options.h"
#include "engine/engine.h"

namespace hadal::cli {

using namespace flag_sets;

void append_speculation_rows(std::vector<Flag>& out) {
  std::vector<Flag> rows = {
      {.name = "speculative-algorithm",
       .kind = kOne,
       .commands = kRuns,
       .group = "Speculation",
       .choices = "NEXTN|EAGLE",
       .text = "guess tokens with the model's NextN layer, and verify several of them in one step (CPU). The "
               "tokens are those without it; both values mean the same"},
      {.name = "speculative-num-steps",
       .kind = kInteger,
       .commands = kRuns,
       .group = "Speculation",
       .value_name = "N",
       .min = 1,
       .max = kMaxSpeculationWidth - 1,
       .default_text = fmt::format("{}", kDefaultSpeculationSteps),
       .text = "tokens that are guessed for a step"},
      {.name = "speculative-eagle-topk",
       .kind = kInteger,
       .commands = kRuns,
       .group = "Speculation",
       .value_name = "N",
       .min = 1,
       .max = kMaxSpeculationWidth,
       .default_text = "1",
       .text = "guesses for each position; this version verifies one, and says so if there are to be more"},
      {.name = "speculative-num-draft-tokens",
       .kind = kInteger,
       .commands = kRuns,
       .group = "Speculation",
       .value_name = "N",
       .min = 2,
       .max = kMaxSpeculationWidth,
       .default_text = "the number of steps, plus 1",
       .text =
           "tokens that a step may sample for a request; with one guess for each position it is always the "
           "number of steps, plus 1"},
      {.name = "speculative-draft-model-path",
       .kind = kOne,
       .commands = kRuns,
       .group = "Speculation",
       .value_name = "ID",
       .text =
           "a published copy of the model's NextN layer; the layer in the checkpoint itself is used instead, "
           "and a directory is an error"},
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

}  // namespace hadal::cli
