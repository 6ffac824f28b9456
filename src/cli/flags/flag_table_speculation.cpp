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
       .commands = kRuns | kBench,
       .group = "Speculation",
       .choices = "NEXTN|EAGLE",
       .text = "guess tokens with the model's NextN layer, and verify several of them in one step. The "
               "tokens stay the same (on a GPU, except where two tokens have almost the same probability); "
               "NEXTN and EAGLE mean the same"},
      {.name = "speculative-num-steps",
       .kind = kInteger,
       .commands = kRuns | kBench,
       .group = "Speculation",
       .value_name = "N",
       .min = 1,
       .max = kMaxSpeculationWidth - 1,
       .default_text = fmt::format("{}", kDefaultSpeculationSteps),
       .text = "largest number of tokens to guess one after the other for a step; fewer or none are guessed "
               "where they are not worth their cost"},
      {.name = "speculative-fixed",
       .kind = kSwitch,
       .commands = kRuns | kBench,
       .group = "Speculation",
       .text = "guess as many tokens in every step as the other flags allow, even where they are not worth "
               "their cost; bench one-batch always does this"},
      {.name = "speculative-eagle-topk",
       .kind = kInteger,
       .commands = kRuns | kBench,
       .group = "Speculation",
       .value_name = "N",
       .min = 1,
       .max = kMaxSpeculationWidth,
       .default_text = "1",
       .text =
           "above 1, a step verifies a tree of drafts: N after the newest token, and N after each of the N "
           "best drafts of a depth. DeepSeek-V3.2's models allow only 1"},
      {.name = "speculative-num-draft-tokens",
       .kind = kInteger,
       .commands = kRuns | kBench,
       .group = "Speculation",
       .value_name = "N",
       .min = 2,
       .max = kMaxSpeculationWidth,
       .default_text = "the number of steps, plus 1",
       .text = "rows of a step for a request: its newest token and the best N - 1 drafts of the tree. With "
               "--speculative-eagle-topk 1 it is always the number of steps, plus 1"},
      {.name = "speculative-draft-model-path",
       .kind = kOne,
       .commands = kRuns | kBench | kLogits,
       .group = "Speculation",
       .value_name = "DIR",
       .default_text = "the model's own layer",
       .text =
           "directory with the NextN layer that guesses: a checkpoint that has one, or SGLang's export "
           "of the layer, in any format on the CPU and in the model's on a GPU. It must fit the model. "
           "A hub id is fetched as that of --model-path is; if that fails, the model's own layer is used, "
           "with a warning"},
      {.name = "speculative-draft-load-format",
       .kind = kOne,
       .commands = kRuns | kBench | kLogits,
       .group = "Speculation",
       .choices = "auto|safetensors|dummy",
       .default_text = "that of --load-format",
       .text = "--load-format of the directory that --speculative-draft-model-path names"},
      {.name = "speculative-draft-model-quantization",
       .kind = kOne,
       .commands = kRuns | kBench | kLogits,
       .group = "Speculation",
       .choices = "fp8|w8a8_fp8|w8a8_int8|blockwise_int8|unquant",
       .default_text = "that of --quantization, if the files are not quantised",
       .text =
           "--quantization of the directory that --speculative-draft-model-path names; unquant: load it as "
           "it is stored"},
      {.name = "speculative-simulate-acceptance",
       .kind = kOne,
       .commands = kGen | kChat | kServe | kBench | kOffline,
       .group = "Speculation",
       .value_name = "LIST",
       .text = "for benchmarks, accept drafts at random: the chance at each depth given the one before, as "
               "0.92,0.72,0.36. The text has no meaning, and every report is marked \"simulated\""},
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

}  // namespace hadal::cli
