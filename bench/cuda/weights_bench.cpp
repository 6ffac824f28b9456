// Measures the seconds and GB/s of loading a checkpoint directory to the device, several times. The first
// load also warms the page cache and the runtime. The arguments are a directory, or dummy:PRESET (generated
// on the device), then repetitions (default 3), threads (default: one per core), and "fp8" to quantise while
// loading.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "base/mapped_file.h"
#include "model/cuda/device_weights_loader.h"
#include "model/cuda/device_weights_plan.h"
#include "model/presets.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

hadal::Result<void> run(int argc, char** argv) {
  const std::string name = argv[1];
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 3;
  const int threads = argc > 3 ? std::atoi(argv[3]) : 0;
  hadal::WeightLoadOptions options;
  if (argc > 4 && std::string(argv[4]) == "fp8") options.quantization = hadal::LoadQuantization::kFp8;
  std::string text;
  if (name.starts_with("dummy:")) {
    options.format = hadal::LoadFormat::kDummy;
    HADAL_ASSIGN_OR_RETURN(text, hadal::preset_config_json(name.substr(6)));
  } else {
    HADAL_ASSIGN_OR_RETURN(text, hadal::read_text_file(name + "/config.json"));
  }
  const std::string overrides = argc > 5 ? argv[5] : "";
  HADAL_ASSIGN_OR_RETURN(const hadal::ModelConfig config,
                         hadal::parse_model_config(text, "config.json", overrides));
  auto start = Clock::now();
  const int64_t bytes = hadal::device_weight_bytes(config, options.quantization);
  const double plan_seconds = seconds_since(start);
  start = Clock::now();
  hadal::cuda_set_device(0);
  const auto info = hadal::cuda_device_info(0);
  fmt::print("{}: {:.2f} GiB on {}, plan {:.3f} s, context {:.3f} s\n", name,
             static_cast<double>(bytes) / 0x1p30, info.name, plan_seconds, seconds_since(start));
  hadal::ThreadPool pool(threads);
  for (int i = 0; i < repetitions; ++i) {
    start = Clock::now();
    {
      HADAL_ASSIGN_OR_RETURN(const hadal::DeviceWeights weights,
                             hadal::load_device_weights(name, config, options, pool));
      const double seconds = seconds_since(start);
      fmt::print("threads {} load {:.3f} s, {:.1f} GB/s of device memory\n", pool.num_threads(), seconds,
                 static_cast<double>(weights.bytes) * 1e-9 / seconds);
      start = Clock::now();
    }
    fmt::print("  freed in {:.3f} s\n", seconds_since(start));
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: {} DIR|dummy:PRESET [repetitions] [threads] [none|fp8] [override JSON]\n",
               argv[0]);
    return 2;
  }
  const auto result = run(argc, argv);
  if (!result.ok()) fmt::print(stderr, "{}\n", result.status().message);
  return result.ok() ? 0 : 1;
}
