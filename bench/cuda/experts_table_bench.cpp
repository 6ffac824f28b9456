// Measures experts as an engine runs them (model/cuda/device_experts.cpp): router, gate and permutation,
// gathered or sorted products, activation, and the next norm, which sums the experts' rows into the residual.
// All these kernels form one call inside a CUDA graph. The models are V3 at TP8 (256 experts of 256, top 8,
// one shared; FP8) and V2-Lite (64 of 1408, top 6, two shared; bf16, or float16 on request).
//   cuda_experts_table_bench [--models v3_fp8,v2_bf16] [--m 1,64] [--no-stages] [--separate] [--splits N]
//       [--check] [--gate-up CHOICE] [--down CHOICE] [--kernel-config-dir DIR] [--json FILE]
// For few tokens, where few_experts is faster, its two kernels run: the router, then all of the experts. With
// --separate the separate kernels run for few tokens, too. --splits sets the number of splits of gate_up for
// few tokens. --check does not measure, but compares few tokens' rows with those of the separate kernels. A
// CHOICE is, for example, "tiled 64x256 stages 5".
//
// The floor counts the weights of the distinct experts that are hit (`hit`, the mean over the calls of a
// graph) and of the shared experts, the router, the inputs and the residual, each read or written once. The
// router's weights are such that tokens spread over the experts. Each call of a graph has its own tokens and
// rotates over three sets of weights, so that no call finds data of another call in the L2. A stage is the
// same chain cut off after one of its kernels; `us_to_gate_up` is the time from the beginning to the end of
// gate_up.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/experts_chain.h"
#include "bench/cuda/graph_timer.h"
#include "bench/cuda/measured_choices.h"
#include "bench/cuda/table_rows.h"

namespace hadal::bench {
namespace {

struct Choice {
  std::vector<std::string> models = {"v3_fp8", "v2_bf16"};
  std::vector<int64_t> rows;  // empty: all
  bool stages = true;
  std::string json;
  std::filesystem::path kernel_configs;  // directory of measured choices; empty: none
  bool few = true;                       // run few tokens in two kernels (few_experts)
  int splits = 0;                        // splits of these kernels; 0: by shape
  std::string gate_up, down;             // forced choices; empty: none
  bool check = false;
};

double relative_error(const std::vector<uint16_t>& out, const std::vector<uint16_t>& ref, bool is_f16) {
  const auto value = [&](uint16_t bits) {
    return static_cast<double>(is_f16 ? to_float(f16{bits}) : to_float(bf16{bits}));
  };
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < ref.size(); ++i) {
    const double r = value(ref[i]);
    difference += std::pow(value(out[i]) - r, 2);
    norm += r * r;
  }
  return std::sqrt(difference / norm);
}

// This bounds the difference between two orders of float32 sums with one rounding to 16 bits, as in the
// products' tests.
constexpr double kMostDifference = 2.5e-3;

// Compares few tokens' rows with those of the separate kernels over some calls; returns false if they differ
// or contain NaN.
bool check(const Model& model, int64_t m, const Chain& chain, const Chain& separate, CudaStream& stream) {
  double worst = 0.0;
  separate.copy_inputs(chain, stream);
  for (int call = 0; call < 6; ++call) {
    const double error =
        relative_error(chain.rows_of(call, stream), separate.rows_of(call, stream), model.is_f16);
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
  }
  const bool right = worst < kMostDifference;
  fmt::print("check {} m {}: {:.2e}{}\n", model.name, m, worst, right ? "" : "  WRONG");
  return right;
}

cuda::ProductChoices with_forced(const cuda::ProductChoices& loaded, const Choice& choice, const Model& model,
                                 int64_t m) {
  cuda::ProductChoices choices = loaded;
  const WeightType type = model.is_fp8   ? WeightType::kFp8Block
                          : model.is_f16 ? WeightType::kF16
                                         : WeightType::kBF16;
  const auto force = [&](const std::string& text, int64_t n, int64_t k) {
    if (text.empty()) return;
    choices.grouped.set(type, model.experts(), n, k, m * model.slots(), cuda::parse_choice(text).value());
  };
  force(choice.gate_up, 2 * model.intermediate, model.hidden);
  force(choice.down, model.hidden, model.intermediate);
  return choices;
}

int run_models(const Choice& choice) {
  Table table(choice.json, false);
  CudaStream stream;
  CoolTimer timer;
  cuda::GemmLibrary library;
  const CudaDeviceInfo info = cuda_device_info(0);
  const cuda::Launch launch{.stream = stream.handle(), .num_sms = info.num_sms};
  const cuda::ProductChoices loaded = measured_choices(choice.kernel_configs, info);
  table.print_head();
  bool right = true;
  const std::vector<Model> models = experts_models();
  for (const Model& model : models) {
    if (std::find(choice.models.begin(), choice.models.end(), model.name) == choice.models.end()) continue;
    const Weights weights(model, stream);
    for (const int64_t m : choice.rows.empty() ? model.rows : choice.rows) {
      const cuda::ProductChoices choices = with_forced(loaded, choice, model, m);
      const auto chain_of = [&](bool few) {
        return Chain(model, weights, m, library, stream, launch, choices, few, choice.splits);
      };
      if (choice.check) {
        const Chain chain = chain_of(true);
        const Chain separate = chain_of(false);
        if (chain.few() && !check(model, m, chain, separate, stream)) right = false;
        continue;
      }
      table.add("", [&] {
        const Chain chain = chain_of(choice.few);
        const auto time_to = [&](Stage last) {
          return time_call(
              stream, timer, [&](int i) { chain.run(i, last); }, kWeightSets);
        };
        const double hit = chain.mean_hit(16, stream);
        TableRow row{.kind = fmt::format("moe_{}", model.name),
                     .shape = {m, model.hidden, model.intermediate, model.experts()},
                     .time = time_to(Stage::kCombine),
                     .bytes = chain.bytes(hit),
                     .flop = chain.flop(),
                     .teraflops = model.is_fp8 ? kFp8Teraflops : kBf16Teraflops,
                     .goal = model.in_table ? moe_goal(model.is_fp8, m) : Goal{},
                     .more = {{"hit", hit}}};
        for (size_t i = 0; choice.stages && i < kStageNames.size(); ++i) {
          const auto stage = static_cast<Stage>(i);
          if (stage == Stage::kPermute && !chain.wants_sorted()) continue;
          if (stage == Stage::kActivation && chain.activates()) continue;
          if (stage != Stage::kRouter && stage != Stage::kDown && chain.few()) continue;
          row.more.emplace_back(kStageNames[i], time_to(stage).us);
        }
        return row;
      });
    }
  }
  table.print_summary();
  return right ? 0 : 1;
}

int usage(const std::string& what) {
  fmt::print(stderr,
             "{}\ncuda_experts_table_bench [--models v3_fp8,v2_bf16] [--m 1,64] [--no-stages] "
             "[--separate] [--splits N] [--check] [--gate-up CHOICE] [--down CHOICE] "
             "[--kernel-config-dir DIR] [--json FILE]\n",
             what);
  return 2;
}

int run(int argc, char** argv) {
  Choice choice;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--no-stages") {
      choice.stages = false;
    } else if (arg == "--separate") {
      choice.few = false;
    } else if (arg == "--check") {
      choice.check = true;
    } else if (arg == "--splits" && i + 1 < argc) {
      choice.splits = static_cast<int>(numbers("--splits", argv[++i]).front());
    } else if (arg == "--gate-up" && i + 1 < argc) {
      choice.gate_up = argv[++i];
    } else if (arg == "--down" && i + 1 < argc) {
      choice.down = argv[++i];
    } else if (arg == "--json" && i + 1 < argc) {
      choice.json = argv[++i];
    } else if (arg == "--kernel-config-dir" && i + 1 < argc) {
      choice.kernel_configs = argv[++i];
    } else if (arg == "--m" && i + 1 < argc) {
      choice.rows = numbers("--m", argv[++i]);
      if (*std::min_element(choice.rows.begin(), choice.rows.end()) < 1)
        return usage("--m: counts of tokens, from 1 on");
    } else if (arg == "--models" && i + 1 < argc) {
      choice.models = words_of(argv[++i]);
      for (const std::string& name : choice.models) {
        const std::vector<Model> models = experts_models();
        if (std::none_of(models.begin(), models.end(),
                         [&](const Model& model) { return name == model.name; }))
          return usage(fmt::format("unknown model '{}'", name));
      }
    } else {
      return usage(fmt::format("unknown argument, or one without its value: '{}'", arg));
    }
  }
  return run_models(choice);
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
