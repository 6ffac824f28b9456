// Implements the GPU's backend: weights on the device, the plan of its memory, and executors and runners on
// top.
#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/backend.h"
#include "engine/cuda/cuda_executor.h"
#include "engine/cuda/cuda_runner.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/memory_plan.h"
#include "kernels/cuda/availability.h"
#include "kernels/params/matrix_window.h"
#include "model/cuda/device_weights_loader.h"
#include "model/cuda/device_weights_plan.h"
#include "model/info.h"
#include "tune/kernel_config.h"

namespace hadal {
namespace {

constexpr int kDevice = 0;
// The matrix library allocates this at its start: its own context and a workspace.
constexpr size_t kLibraryBytes = size_t{512} << 20;

int64_t bytes_of(const DeviceMlp& mlp) {
  return matrix_bytes(mlp.gate_up) + matrix_bytes(mlp.down);
}

double gb(int64_t bytes) {
  return static_cast<double>(bytes) * 1e-9;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const ModelConfig& config, DeviceWeights weights, const CudaDeviceInfo& info,
              const BackendOptions& options, cuda::ProductChoices choices)
      : model_(config, std::move(weights), info) {
    model_.reference = options.kernels == KernelSet::kReference;
    model_.fusion = options.fusion;
    model_.choices = std::move(choices);
  }

  DeviceType device() const override { return DeviceType::kCuda; }
  const ModelConfig& config() const override { return model_.config; }

  Result<void> size_cache(EngineOptions& options) override {
    HADAL_RETURN_IF_ERROR(check_gpu_kv_layout(options.kv_layout, compute_dtype()));
    HADAL_RETURN_IF_ERROR(check_gpu_batch("--max-running-requests", options.max_running_requests));
    if (options.max_running_requests == 0) {
      HADAL_ASSIGN_OR_RETURN(options.max_running_requests, choose_requests(options));
    }
    HADAL_ASSIGN_OR_RETURN(const DeviceMemoryPlan plan, plan_memory(options));
    const int64_t token_bytes = kv_bytes_per_token(config(), options.kv_layout);
    HADAL_RETURN_IF_ERROR(check_cache_fits(plan, token_bytes, options.max_total_tokens));
    if (options.max_total_tokens == 0) options.max_total_tokens = plan.max_total_tokens;
    log_info(
        "GPU memory total_gb={:.2f} fraction={:.2f} weights_gb={:.2f} context_and_others_gb={:.2f} "
        "workspace_gb={:.2f} "
        "state_gb={:.2f} graphs_gb={:.2f} kv_gb={:.2f} max_total_tokens={} max_running_requests={}",
        gb(plan.total_bytes), plan.fraction, gb(plan.weight_bytes), gb(plan.context_bytes),
        gb(plan.workspace_bytes), gb(plan.state_bytes), gb(plan.graph_bytes),
        gb(options.max_total_tokens * token_bytes), options.max_total_tokens, options.max_running_requests);
    return {};
  }

  Result<std::unique_ptr<StepExecutor>> make_executor(const EngineOptions& options) override {
    // Buckets are computed even if graphs are off, because decode steps are padded to their sizes.
    DeviceOptions graphed = options.device;
    graphed.use_graphs = true;
    HADAL_ASSIGN_OR_RETURN(std::vector<int64_t> buckets,
                           graph_buckets(graphed, options.max_running_requests));
    return or_out_of_memory<StepExecutor>("--mem-fraction-static or --max-total-tokens", [&] {
      return std::make_unique<CudaExecutor>(model_, options, std::move(buckets), workspace_bytes(options));
    });
  }

  Result<std::unique_ptr<ModelRunner>> make_runner(int64_t num_pages, int64_t max_tokens,
                                                   KvLayout layout) override {
    HADAL_RETURN_IF_ERROR(check_gpu_kv_layout(layout, compute_dtype()));
    return or_out_of_memory<ModelRunner>("the number of tokens", [&] {
      return std::make_unique<CudaRunner>(model_, num_pages, max_tokens, layout);
    });
  }

  int64_t weight_bytes_read(std::span<const int32_t> distinct_experts, bool /*selects_keys*/) const override {
    int64_t total = matrix_bytes(model_.weights.lm_head);
    size_t moe_idx = 0;
    for (const DeviceLayer& layer : model_.weights.layers) {
      const DeviceAttention& a = layer.attention;
      total += matrix_bytes(a.qkv_a) + matrix_bytes(a.q_b) + matrix_bytes(a.w_uk) + matrix_bytes(a.kv_b) / 2 +
               matrix_bytes(a.o);
      if (!layer.is_moe) {
        total += bytes_of(layer.mlp);
        continue;
      }
      const int64_t hit = moe_idx < distinct_experts.size() ? distinct_experts[moe_idx] : 0;
      ++moe_idx;
      total += matrix_bytes(layer.moe.gate) + (hit + layer.moe.num_shared) * bytes_of(layer.moe.experts);
    }
    return total;
  }

  std::optional<double> measure_bandwidth() override {
    // The copy must be far larger than the L2 cache; how much fits beside the weights is found by trying.
    cuda_set_device(model_.device.index);
    for (size_t bytes = size_t{1} << 30; bytes >= size_t{1} << 28; bytes /= 2) {
      try {
        return copy_bandwidth(bytes);
      } catch (const OutOfDeviceMemory&) {
        continue;
      }
    }
    return std::nullopt;
  }

 private:
  DType compute_dtype() const { return model_.weights.is_f16() ? DType::kF16 : DType::kBF16; }
  // Returns bytes read and written per second.
  static double copy_bandwidth(size_t bytes) {
    const DeviceBuffer from(bytes);
    const DeviceBuffer to(bytes);
    const CudaStream stream;
    fill_device(from.data(), 0x5a, bytes, stream.handle());
    double best = 0.0;
    for (int i = 0; i < 5; ++i) {
      CudaEvent begin(true);
      CudaEvent end(true);
      begin.record(stream.handle());
      copy_on_device(to.data(), from.data(), bytes, stream.handle());
      end.record(stream.handle());
      end.wait();
      best = std::max(best,
                      2.0 * static_cast<double>(bytes) / (static_cast<double>(end.ms_since(begin)) * 1e-3));
    }
    return best;
  }

  template <typename Made, typename Make>
  Result<std::unique_ptr<Made>> or_out_of_memory(const char* flags, const Make& make) {
    try {
      cuda_set_device(model_.device.index);
      return std::unique_ptr<Made>(make());
    } catch (const OutOfDeviceMemory& error) {
      return make_status(StatusCode::kResourceExhausted, "{}; lower {}", error.what(), flags);
    }
  }

  size_t workspace_bytes(const EngineOptions& options) {
    const ExecutorSizes sizes = ExecutorSizes::of(options);
    return model_.decoder.workspace_bytes(sizes.max_tokens, sizes.max_prefill, kMaxPrefillKeys,
                                          sizes.max_tokens, options.kv_layout, model_.gemm,
                                          model_.device.num_sms, model_.measured_choices());
  }

  // Chooses max_running_requests. Its errors are those of graph_buckets.
  Result<int64_t> choose_requests(EngineOptions options) {
    const int64_t most = most_requests_by_state(kMostDefaultRequests, [&](int64_t requests) {
      options.max_running_requests = requests;
      return CudaExecutor::state_bytes(model_, options);
    });
    options.max_running_requests = 1;
    HADAL_RETURN_IF_ERROR(plan_memory(options));  // its errors are the same for any number of requests
    return most_requests_by_cache(most, options.context_length, [&](int64_t requests) {
      options.max_running_requests = requests;
      const int64_t tokens = plan_memory(options).value().max_total_tokens;
      if (options.max_total_tokens == 0) return tokens;
      return tokens >= options.max_total_tokens ? options.max_total_tokens : int64_t{0};
    });
  }

  // Plans memory; max_running_requests must not be 0. Its errors are those of graph_buckets.
  Result<DeviceMemoryPlan> plan_memory(const EngineOptions& options) {
    HADAL_ASSIGN_OR_RETURN(const std::vector<int64_t> buckets,
                           graph_buckets(options.device, options.max_running_requests));
    DeviceMemoryPlan plan;
    plan.total_bytes = static_cast<int64_t>(model_.device.total_bytes);
    plan.fraction = options.device.mem_fraction_static;
    plan.weight_bytes = model_.weights.bytes;
    plan.context_bytes =
        std::max<int64_t>(plan.total_bytes - static_cast<int64_t>(cuda_free_bytes()) - plan.weight_bytes, 0);
    plan.workspace_bytes = static_cast<int64_t>(workspace_bytes(options));
    plan.state_bytes = CudaExecutor::state_bytes(model_, options);
    plan.graph_bytes = static_cast<int64_t>(buckets.size()) * kGraphBytes;
    plan.fill_cache(kv_bytes_per_token(config(), options.kv_layout));
    return plan;
  }

  CudaModel model_;
};

}  // namespace

Result<std::unique_ptr<Backend>> load_cuda_backend(const std::filesystem::path& model_dir,
                                                   const ModelConfig& config, const BackendOptions& options,
                                                   ThreadPool& pool) {
  const cuda::Availability cuda = cuda::availability();
  if (!cuda.usable) return make_status(StatusCode::kUnsupported, "--device cuda: {}", cuda.reason);
  cuda_set_device(kDevice);
  const CudaDeviceInfo info = cuda_device_info(kDevice);
  HADAL_ASSIGN_OR_RETURN(cuda::ProductChoices choices,
                         load_kernel_configs(options.kernel_config_dirs, info.name, info.num_sms,
                                             options.named_kernel_config_dir));
  HADAL_ASSIGN_OR_RETURN(DeviceWeights weights, load_device_weights(model_dir, config, options.load, pool));
  log_info("GPU name=\"{}\" compute={}.{} multiprocessors={} memory_gb={:.1f}", info.name, info.compute_major,
           info.compute_minor, info.num_sms, gb(static_cast<int64_t>(info.total_bytes)));
  try {
    return std::unique_ptr<Backend>(
        std::make_unique<CudaBackend>(config, std::move(weights), info, options, std::move(choices)));
  } catch (const Error& error) {  // usually there is no room beside the weights for what libraries allocate
    if (cuda_free_bytes() > kLibraryBytes) throw;
    return make_status(StatusCode::kResourceExhausted,
                       "{}; {:.2f} GB of GPU memory are free beside the weights: use --quantization fp8, "
                       "which needs less, or end other programs on the GPU",
                       error.what(), gb(static_cast<int64_t>(cuda_free_bytes())));
  }
}

Result<GpuEstimate> estimate_gpu(const ModelConfig& config, LoadQuantization quantization,
                                 DType compute_dtype, KvLayout layout, double mem_fraction) {
  const cuda::Availability cuda = cuda::availability();
  if (!cuda.usable) return make_status(StatusCode::kUnsupported, "--device cuda: {}", cuda.reason);
  HADAL_RETURN_IF_ERROR(check_gpu_kv_layout(layout, compute_dtype));
  cuda_set_device(kDevice);
  const CudaDeviceInfo info = cuda_device_info(kDevice);
  DeviceMemoryPlan plan;
  plan.total_bytes = static_cast<int64_t>(info.total_bytes);
  plan.fraction = mem_fraction;
  plan.weight_bytes = device_weight_bytes(config, quantization, compute_dtype);
  plan.context_bytes = static_cast<int64_t>(info.total_bytes - info.free_bytes);
  plan.fill_cache(kv_bytes_per_token(config, layout));
  return GpuEstimate{.name = info.name,
                     .num_sms = info.num_sms,
                     .free_bytes = static_cast<int64_t>(info.free_bytes),
                     .plan = plan};
}

}  // namespace hadal
