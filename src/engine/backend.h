// A Backend is a loaded model on the device that runs it. The engine and the commands use the device only
// through it: it loads weights, sizes the KV cache and makes the executors and runners that run steps. The
// main thread uses the backend. Each executor or runner is then used by one thread, and at most one of those
// that a backend has made may run at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/cuda/memory_plan.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/step_executor.h"
#include "model/shard.h"
#include "model/weights_loader.h"
#include "tensor/device.h"

namespace hadal {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceType device() const = 0;
  virtual const ModelConfig& config() const = 0;

  // Sets options.max_total_tokens and options.max_running_requests where they are 0, and checks that such a
  // cache fits into memory beside everything else. The other options must have been checked already. The
  // errors are kUnsupported (a KV format), kInvalidArgument (more requests than the device runs together),
  // and kResourceExhausted.
  virtual Result<void> size_cache(EngineOptions& options) = 0;

  // Call this after size_cache, with whole pages in `options`. The error is kResourceExhausted. The executor
  // must not outlive what the backend was made from, nor, on a GPU, the backend itself.
  virtual Result<std::unique_ptr<StepExecutor>> make_executor(const EngineOptions& options) = 0;

  // Makes a runner for batches of up to max_tokens rows over num_pages pages. Errors are as above.
  virtual Result<std::unique_ptr<ModelRunner>> make_runner(int64_t num_pages, int64_t max_tokens,
                                                           KvLayout layout) = 0;

  // Returns the bytes of weights that a decode step must read at least: the layers, with only the experts
  // that were hit (distinct_experts has one number per MoE layer, in order), and the head. `selects_keys`
  // tells whether its tokens have more keys than they attend to (ModelConfig::selects_keys).
  virtual int64_t weight_bytes_read(std::span<const int32_t> distinct_experts, bool selects_keys) const = 0;

  // Measures how many bytes per second a plain copy reaches on the device, or on all of several GPUs
  // together, counting reads and writes. Returns nullopt on the CPU, where the caller must measure, and when
  // a GPU has no room for the copy.
  virtual std::optional<double> measure_bandwidth() = 0;
};

// Says which GPU each rank uses: rank r uses GPU base_gpu_id + r · gpu_id_step.
struct GpuRanks {
  int base_gpu_id = 0;
  int gpu_id_step = 1;  // 0: all ranks take turns on one GPU
  // Runs this rank alone, on GPU base_gpu_id, to measure its weights and kernels. It uses its own part in
  // place of the parts of the others, so its results have no meaning. −1: all ranks run.
  int64_t lone_rank = -1;

  bool is_lone() const { return lone_rank >= 0; }
  int device(int64_t rank) const {
    return base_gpu_id + (is_lone() ? 0 : static_cast<int>(rank) * gpu_id_step);
  }
  bool take_turns(int64_t num_ranks) const { return num_ranks > 1 && gpu_id_step == 0 && !is_lone(); }
};

struct BackendOptions {
  WeightLoadOptions load;
  KernelSet kernels = KernelSet::kOptimised;
  ModelSplit split;    // has been checked (check_split)
  GpuRanks gpus;       // has been checked (check_ranks)
  bool fusion = true;  // GPU: false launches one kernel per elementary operation
  // GPU, models with an indexer: tokens of prompts that see more keys than this attend absorbed; −1: than
  // index_topk (PrefillPaths).
  int64_t seq_len_threshold = -1;
  // Folders of kernel choices measured on a GPU (tune/kernel_config.h); later ones take precedence over
  // earlier ones.
  std::vector<std::filesystem::path> kernel_config_dirs;
  std::optional<std::filesystem::path> named_kernel_config_dir;  // the folder among them that the user named
};

// Returns "bfloat16", "fp8_e4m3", …, as in --kv-cache-dtype and in every report.
const char* to_string(KvFormat format);

// Checks that ranks find their GPUs, of which the machine has num_gpus. On the CPU any number of ranks is
// accepted. The errors (kInvalidArgument) name the flag, its value, the number of GPUs and what is allowed.
Result<void> check_ranks(DeviceType device, ModelSplit split, const GpuRanks& gpus, int num_gpus);

// Loads the weights. `pool` must outlive the backend. The errors are those of load_weights, and kUnsupported
// for a device that this build or machine does not have or for GPUs that differ.
Result<std::unique_ptr<Backend>> load_backend(DeviceType device, const std::filesystem::path& model_dir,
                                              const ModelConfig& config, const BackendOptions& options,
                                              ThreadPool& pool);

// Makes a backend over a loaded model; `model` and `pool` must outlive it.
std::unique_ptr<Backend> make_cpu_backend(Model& model, ThreadPool& pool, KernelSet kernels);

// Checks that a KV cache of this many tokens fits into memory on the CPU beside weights that are loaded. A
// cache of one page always passes. Each of num_ranks ranks has a cache of its own. The error is
// kResourceExhausted, which names the largest number of tokens that fits.
Result<void> check_cpu_cache_fits(const ModelConfig& config, KvLayout layout, int64_t num_ranks,
                                  int64_t max_total_tokens, int64_t available_bytes, bool with_nextn = false);

// GpuEstimate says how a GPU's memory would be used by a model, or by one rank's part of it. It is computed
// from the model's config alone.
struct GpuEstimate {
  std::string name;
  int num_sms = 0;         // multiprocessors
  int64_t free_bytes = 0;  // now
  DeviceMemoryPlan plan;   // without workspace, state and graphs, whose sizes need loaded weights
};
// The error is kUnsupported. A model that does not fit is no error: its plan has no room for a cache.
Result<GpuEstimate> estimate_gpu(const ModelConfig& config, LoadQuantization quantization,
                                 DType compute_dtype, KvLayout layout, double mem_fraction, ModelSplit split,
                                 const GpuRanks& gpus);

// Checks that a GPU with this compute type supports such a cache. With float16 the cache must be float16;
// with bfloat16 it may be anything but float16 and float32. The error is kUnsupported, about
// --kv-cache-dtype.
Result<void> check_gpu_kv_layout(KvLayout layout, DType compute_dtype);

// Checks that a GPU's kernels support a decode step of this many requests. `flag` is the flag that set the
// number. The error is kInvalidArgument, which names flag, number and limit.
Result<void> check_gpu_batch(std::string_view flag, int64_t num_requests);

// Loads a model on the GPUs of options.gpus. In builds without CUDA cuda/backend_stub.cpp returns an error
// instead.
Result<std::unique_ptr<Backend>> load_cuda_backend(const std::filesystem::path& model_dir,
                                                   const ModelConfig& config, const BackendOptions& options,
                                                   ThreadPool& pool);

}  // namespace hadal
