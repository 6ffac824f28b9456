// Flags of `hadal tune`.
#include <iterator>
#include <vector>

#include "cli/flag_sets.h"
#include "kernels/cuda/moe/choice.h"

namespace hadal::cli {

using namespace flag_sets;

namespace {

constexpr double kMaxSize = 1 << 22;  // that the kernels' indices have room for

Flag size_flag(std::string_view name, CommandSet commands, std::string_view text, double max = kMaxSize) {
  return {.name = std::string(name),
          .kind = kInteger,
          .commands = commands,
          .group = "Shapes",
          .value_name = "N",
          .min = 1,
          .max = max,
          .text = std::string(text)};
}

}  // namespace

void append_tune_rows(std::vector<Flag>& out) {
  std::vector<Flag> rows = {
      size_flag("n", kTune,
                "tune fp8-gemm: outputs; tune moe: intermediate size of an expert, in "
                "whole blocks of 128"),
      size_flag("k", kTune, "tune fp8-gemm: inputs; tune moe: hidden size"),
      size_flag("experts", kTuneMoe, "experts of the products, shared ones among them",
                cuda::kMaxTiledExperts),
      size_flag("top-k", kTuneMoe, "experts of a token", cuda::kMaxTiledExperts),
      {.name = "m",
       .kind = kList,
       .commands = kTune,
       .group = "Shapes",
       .value_name = "N",
       .min = 1,
       .max = 1 << 16,
       .default_text = "1 2 4 8 16 24 32 48 64 96 128 256 512 1024 1536 2048 3072 4096",
       .text = "batch sizes, in tokens; of the default ones those between others are compared only where "
               "the choices around them differ"},
      {.name = "weight-type",
       .kind = kOne,
       .commands = kTune,
       .group = "Shapes",
       .choices = "fp8|w8a8_fp8|w8a8_int8|blockwise_int8|bf16",
       .default_text = "fp8",
       .text =
           "of --n and --k, with the names of --quantization; a model says it itself; float16 takes what was "
           "measured of bf16"},
      {.name = "tp-size",
       .kind = kInteger,
       .commands = kTune,
       .group = "Shapes",
       .value_name = "N",
       .min = 1,
       .max = 1024,
       .default_text = "1",
       .text = "with --model-path: the shapes of one of so many GPUs"},
      {.name = "ep-size",
       .kind = kInteger,
       .commands = kTune,
       .group = "Shapes",
       .value_name = "N",
       .min = 1,
       .max = 1024,
       .default_text = "1",
       .text = "with --model-path: so many of these share the experts as a whole, the rest each expert"},
      {.name = "output-dir",
       .kind = kOne,
       .commands = kTune,
       .group = "Output",
       .value_name = "DIR",
       .default_text = ".",
       .text =
           "where the files go, for --kernel-config-dir of other commands; what is there already is kept"},
      {.name = "exhaustive",
       .commands = kTune,
       .group = "Output",
       .text = "measure every choice for every batch size; else the likely ones and their neighbours"},
      {.name = "retune", .commands = kTune, .group = "Output", .text = "measure also what the files have"},
      {.name = "time-budget",
       .kind = kNumber,
       .commands = kTune,
       .group = "Output",
       .value_name = "S",
       .min = 0,
       .max = 1e6,
       .min_open = true,
       .default_text = "280",
       .text = "seconds for everything; a run with more goes on where this one ended"},
      {.name = "dry-run",
       .commands = kTune,
       .group = "Output",
       .text = "print the shapes, what the heuristic chooses and how many choices there are; needs no GPU"},
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

}  // namespace hadal::cli
