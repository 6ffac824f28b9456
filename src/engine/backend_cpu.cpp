// The CPU's backend has weights in host memory, a thread pool, and KV pools that the system commits as they
// are touched.
#include <algorithm>
#include <utility>

#include "base/available_memory.h"
#include "engine/backend.h"
#include "engine/cpu_executor.h"
#include "engine/weight_traffic.h"
#include "model/info.h"

namespace hadal {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::unique_ptr<Model> owned, Model& model, ThreadPool& pool, KernelSet kernels)
      : owned_(std::move(owned)), model_(model), pool_(pool), kernels_(kernels) {}

  DeviceType device() const override { return DeviceType::kCpu; }
  const ModelConfig& config() const override { return model_.config(); }

  Result<void> size_cache(EngineOptions& options) override {
    if (options.max_running_requests == 0)
      options.max_running_requests = EngineOptions{}.max_running_requests;
    const auto available = available_memory_bytes();
    if (options.max_total_tokens == 0) {
      options.max_total_tokens = default_max_total_tokens(config(), options.kv_layout, options.context_length,
                                                          static_cast<int64_t>(available.value_or(0)));
    }
    // The system would allocate more memory than there is, and end the process once that is touched.
    if (!available) return {};
    return check_cpu_cache_fits(config(), options.kv_layout, options.max_total_tokens,
                                static_cast<int64_t>(*available));
  }

  Result<std::unique_ptr<StepExecutor>> make_executor(const EngineOptions& options) override {
    try {
      return std::unique_ptr<StepExecutor>(std::make_unique<CpuExecutor>(
          model_, pool_, options.max_total_tokens / kPageSize, options.kv_layout, kernels_));
    } catch (const Error& error) {
      return make_status(
          StatusCode::kResourceExhausted,
          "a KV cache of {} tokens ({} bytes per token) does not fit: {}; lower max-total-tokens",
          options.max_total_tokens, kv_bytes_per_token(config(), options.kv_layout), error.what());
    }
  }

  Result<std::unique_ptr<ModelRunner>> make_runner(int64_t num_pages, int64_t /*max_tokens*/,
                                                   KvLayout layout) override {
    try {
      return std::unique_ptr<ModelRunner>(
          std::make_unique<CpuRunner>(model_, pool_, num_pages, layout, kernels_));
    } catch (const Error& error) {
      return make_status(StatusCode::kResourceExhausted, "a KV cache of {} tokens does not fit: {}",
                         num_pages * kPageSize, error.what());
    }
  }

  int64_t weight_bytes_read(std::span<const int32_t> distinct_experts) const override {
    return hadal::weight_bytes_read(model_.weights(), distinct_experts);
  }

  std::optional<double> measure_bandwidth() override { return std::nullopt; }

 private:
  const std::unique_ptr<Model> owned_;  // null if the caller owns the model
  Model& model_;
  ThreadPool& pool_;
  const KernelSet kernels_;
};

}  // namespace

Result<void> check_cpu_cache_fits(const ModelConfig& config, KvLayout layout, int64_t max_total_tokens,
                                  int64_t available_bytes) {
  const int64_t token_bytes = kv_bytes_per_token(config, layout);
  const int64_t most = std::max(available_bytes / token_bytes, int64_t{kPageSize});
  if (max_total_tokens <= most) return {};
  return make_status(StatusCode::kResourceExhausted,
                     "max-total-tokens is {}; allowed: at most {}, because {:.1f} GB of memory are free and "
                     "a token needs {} bytes",
                     max_total_tokens, most, static_cast<double>(available_bytes) * 1e-9, token_bytes);
}

std::unique_ptr<Backend> make_cpu_backend(Model& model, ThreadPool& pool, KernelSet kernels) {
  return std::make_unique<CpuBackend>(nullptr, model, pool, kernels);
}

Result<std::unique_ptr<Backend>> load_backend(DeviceType device, const std::filesystem::path& model_dir,
                                              const ModelConfig& config, const BackendOptions& options,
                                              ThreadPool& pool) {
  if (device == DeviceType::kCuda) return load_cuda_backend(model_dir, config, options, pool);
  HADAL_ASSIGN_OR_RETURN(ModelWeights weights, load_weights(model_dir, config, options.load, pool));
  HADAL_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, make_model(config, std::move(weights)));
  Model& loaded = *model;
  return std::unique_ptr<Backend>(
      std::make_unique<CpuBackend>(std::move(model), loaded, pool, options.kernels));
}

}  // namespace hadal
