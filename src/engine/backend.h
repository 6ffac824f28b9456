// A loaded model on the device it runs on: what the engine and the commands know of a device. Loading, sizing
// the KV cache, making what runs steps. Main thread; executors and runners are then used by one thread each,
// and by one at a time of all that a backend has made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_pool.h"
#include "engine/engine.h"
#include "engine/model_runner.h"
#include "engine/step_executor.h"
#include "model/weights_loader.h"
#include "tensor/device.h"

namespace hadal {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceType device() const = 0;
  virtual const ModelConfig& config() const = 0;

  // Sets options.max_total_tokens where it is 0, and checks that such a cache fits beside everything else.
  // The other options are checked already. Errors: kUnsupported (a KV format), kResourceExhausted.
  virtual Result<void> size_cache(EngineOptions& options) = 0;

  // options: after size_cache, with whole pages. Errors: kResourceExhausted. The executor needs what the
  // backend was made of, and on a GPU the backend itself, for as long as it lives.
  virtual Result<std::unique_ptr<StepExecutor>> make_executor(const EngineOptions& options) = 0;

  // For batches of up to max_tokens rows over num_pages pages. Errors as above.
  virtual Result<std::unique_ptr<ModelRunner>> make_runner(int64_t num_pages, int64_t max_tokens,
                                                           KvLayout layout) = 0;

  // Bytes of weights that a decode step has to read at least: layers with only the experts that were hit
  // (distinct_experts: of each MoE layer in order), and the head.
  virtual int64_t weight_bytes_read(std::span<const int32_t> distinct_experts) const = 0;

  // Bytes a second that the device's memory gives to a plain copy, reads and writes counted; measured by the
  // call. nullopt: the caller measures (the CPU), or (a GPU) there is no room to copy in.
  virtual std::optional<double> measure_bandwidth() = 0;
};

struct BackendOptions {
  WeightLoadOptions load;
  KernelSet kernels = KernelSet::kOptimised;
  bool fusion = true;  // GPU: false launches one kernel for each elementary operation
  // GPU: folders of measured kernel choices (engine/kernel_config.h); later ones count before earlier ones.
  std::vector<std::filesystem::path> kernel_config_dirs;
  std::optional<std::filesystem::path> named_kernel_config_dir;  // the one of them that the user named
};

// Loads the weights. `pool` must outlive the backend. Errors: those of load_weights; kUnsupported for a
// device that this build or machine does not have.
Result<std::unique_ptr<Backend>> load_backend(DeviceType device, const std::filesystem::path& model_dir,
                                              const ModelConfig& config, const BackendOptions& options,
                                              ThreadPool& pool);

// Over a model that is there already; both outlive the backend.
std::unique_ptr<Backend> make_cpu_backend(Model& model, ThreadPool& pool, KernelSet kernels);

// Whether a KV cache of so many tokens fits into memory on the CPU beside weights that are loaded; one page
// always does. Errors: kResourceExhausted, with the most that fits.
Result<void> check_cpu_cache_fits(const ModelConfig& config, KvLayout layout, int64_t max_total_tokens,
                                  int64_t available_bytes);

// What a GPU would do with a model, from its config alone.
struct GpuEstimate {
  std::string name;
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;        // now
  int64_t weight_bytes = 0;      // as the device holds them
  int64_t max_total_tokens = 0;  // KV capacity at mem_fraction, before scratch: at most; whole pages
};
// Errors: kUnsupported; kResourceExhausted when a cache of wanted_tokens (0: as many as fit) does not fit.
Result<GpuEstimate> estimate_gpu(const ModelConfig& config, LoadQuantization quantization,
                                 DType compute_dtype, KvLayout layout, double mem_fraction,
                                 int64_t wanted_tokens);

// Whether a GPU that computes in this type keeps such a cache: float16 and float16, or bfloat16 and any
// other but float32. Error: kUnsupported, about --kv-cache-dtype.
Result<void> check_gpu_kv_layout(KvLayout layout, DType compute_dtype);

// GPU 0. cuda/backend_stub.cpp answers in builds without CUDA.
Result<std::unique_ptr<Backend>> load_cuda_backend(const std::filesystem::path& model_dir,
                                                   const ModelConfig& config, const BackendOptions& options,
                                                   ThreadPool& pool);

}  // namespace hadal
