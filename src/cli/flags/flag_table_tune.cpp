// Holds the flags of `hadal tune`.
#include <iterator>
#include <vector>

#include "cli/flags/flag_sets.h"
#include "kernels/cuda/experts/choice.h"

namespace hadal::cli {

using namespace flag_sets;

namespace {

constexpr double kMaxSize = 1 << 22;  // limit of the kernels' indices

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
                "tune fp8-gemm: number of outputs; tune moe: intermediate size of an expert, which is "
                "rounded up to a multiple of 128"),
      size_flag("k", kTune, "tune fp8-gemm: number of inputs; tune moe: hidden size"),
      size_flag("experts", kTuneMoe, "number of experts, shared ones included", cuda::kMaxTiledExperts),
      size_flag("top-k", kTuneMoe, "number of experts per token", cuda::kMaxTiledExperts),
      {.name = "m",
       .kind = kList,
       .commands = kTune,
       .group = "Shapes",
       .value_name = "N",
       .min = 1,
       .max = 1 << 16,
       .default_text = "1 2 4 8 16 24 32 48 64 96 128 256 512 1024 1536 2048 3072 4096",
       .text = "batch sizes in tokens; some sizes of the default list are measured only if the best choices "
               "of their two neighbours differ"},
      {.name = "weight-type",
       .kind = kOne,
       .commands = kTune,
       .group = "Shapes",
       .choices = "fp8|w8a8_fp8|w8a8_int8|blockwise_int8|bf16",
       .default_text = "fp8",
       .text = "with --n and --k: type of the weights, named as in --quantization; with --model-path the "
               "model sets it. For float16 weights the choices measured with bf16 are used"},
      {.name = "tp-size",
       .kind = kInteger,
       .commands = kTune,
       .group = "Shapes",
       .value_name = "N",
       .min = 1,
       .max = 1024,
       .default_text = "1",
       .text = "with --model-path: measure the shapes that one of N GPUs has under tensor parallelism"},
      {.name = "ep-size",
       .kind = kInteger,
       .commands = kTune,
       .group = "Shapes",
       .value_name = "N",
       .min = 1,
       .max = 1024,
       .default_text = "1",
       .text = "with --model-path: number of GPUs that divide the experts among them; if it is less than "
               "--tp-size, several GPUs share each expert"},
      {.name = "output-dir",
       .kind = kOne,
       .commands = kTune,
       .group = "Output",
       .value_name = "DIR",
       .default_text = ".",
       .text = "directory to write the files to, which other commands read by --kernel-config-dir; results "
               "that it already holds are kept"},
      {.name = "exhaustive",
       .commands = kTune,
       .group = "Output",
       .text =
           "measure every choice for every batch size, instead of the likely choices and their neighbours"},
      {.name = "retune",
       .commands = kTune,
       .group = "Output",
       .text = "also measure what the files already hold"},
      {.name = "time-budget",
       .kind = kNumber,
       .commands = kTune,
       .group = "Output",
       .value_name = "S",
       .min = 0,
       .max = 1e6,
       .min_open = true,
       .default_text = "280",
       .text = "seconds for the whole run; the next run continues where this one ended"},
      {.name = "dry-run",
       .commands = kTune,
       .group = "Output",
       .text = "print the shapes, the choices of the heuristic and how many choices there are; needs no GPU"},
  };
  std::move(rows.begin(), rows.end(), std::back_inserter(out));
}

}  // namespace hadal::cli
