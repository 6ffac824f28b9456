// The CPU's backend has weights in host memory, a thread pool, and KV pools whose memory the system commits
// when it is first touched. Several ranks have views of the same weights, and each has a KV cache.
#include <algorithm>
#include <utility>

#include "base/available_memory.h"
#include "base/log.h"
#include "engine/backend.h"
#include "engine/cpu/cpu_executor.h"
#include "engine/cpu/rank_runner.h"
#include "engine/speculation/weight_traffic.h"
#include "model/info.h"
#include "model/shard_weights.h"

namespace hadal {
namespace {

class CpuBackend final : public Backend {
 public:
  // `ranks` has a model for each rank; `whole` has the weights of all of them.
  CpuBackend(std::vector<std::shared_ptr<Model>> ranks, ModelWeights whole, ThreadPool& pool,
             KernelSet kernels)
      : ranks_(std::move(ranks)), whole_(std::move(whole)), pool_(pool), kernels_(kernels) {}

  DeviceType device() const override { return DeviceType::kCpu; }
  const ModelConfig& config() const override { return ranks_[0]->config(); }

  Result<void> size_cache(EngineOptions& options) override {
    if (options.max_running_requests == 0)
      options.max_running_requests = EngineOptions{}.max_running_requests;
    const auto available = available_memory_bytes();
    if (options.max_total_tokens == 0) {
      options.max_total_tokens = default_max_total_tokens(
          config(), options.kv_layout, options.context_length,
          static_cast<int64_t>(available.value_or(0)) / num_ranks(), whole_.mtp.has_value());
    }
    // The system would allocate more memory than there is, and would end the process once that memory is
    // touched.
    if (!available) return {};
    return check_cpu_cache_fits(config(), options.kv_layout, num_ranks(), options.max_total_tokens,
                                static_cast<int64_t>(*available), whole_.mtp.has_value());
  }

  Result<std::unique_ptr<StepExecutor>> make_executor(const EngineOptions& options) override {
    const bool speculates = options.speculation_width > 0;
    if (speculates && !whole_.mtp) {
      return invalid_argument("speculation: {} has no NextN layer", to_string(config().architecture));
    }
    try {
      return std::unique_ptr<StepExecutor>(std::make_unique<CpuExecutor>(
          host_runner(options.max_total_tokens / kPageSize, options.kv_layout), pool_, speculates,
          options.simulated_acceptance, options.draft_shape));
    } catch (const std::exception& error) {
      return make_status(
          StatusCode::kResourceExhausted,
          "a KV cache of {} tokens ({} bytes per token) does not fit: {}; lower max-total-tokens",
          options.max_total_tokens, kv_bytes_per_token(config(), options.kv_layout, whole_.mtp.has_value()),
          error.what());
    }
  }

  Result<std::unique_ptr<ModelRunner>> make_runner(int64_t num_pages, int64_t /*max_tokens*/,
                                                   KvLayout layout) override {
    try {
      return std::unique_ptr<ModelRunner>(host_runner(num_pages, layout));
    } catch (const std::exception& error) {
      return make_status(StatusCode::kResourceExhausted, "a KV cache of {} tokens does not fit: {}",
                         num_pages * kPageSize, error.what());
    }
  }

  int64_t weight_bytes_read(std::span<const int32_t> distinct_experts, bool selects_keys) const override {
    return hadal::weight_bytes_read(whole_, distinct_experts, selects_keys);
  }

  std::optional<double> measure_bandwidth() override { return std::nullopt; }

 private:
  int64_t num_ranks() const { return static_cast<int64_t>(ranks_.size()); }

  std::unique_ptr<HostRunner> host_runner(int64_t num_pages, KvLayout layout) {
    if (ranks_.size() == 1)
      return std::make_unique<CpuRunner>(*ranks_[0], pool_, num_pages, layout, kernels_);
    return std::make_unique<RankRunner>(ranks_, RankRunnerOptions{.num_pages = num_pages,
                                                                  .layout = layout,
                                                                  .kernels = kernels_,
                                                                  .num_threads = pool_.num_threads()});
  }

  const std::vector<std::shared_ptr<Model>> ranks_;
  const ModelWeights whole_;
  ThreadPool& pool_;
  const KernelSet kernels_;
};

}  // namespace

Result<void> check_cpu_cache_fits(const ModelConfig& config, KvLayout layout, int64_t num_ranks,
                                  int64_t max_total_tokens, int64_t available_bytes, bool with_nextn) {
  const int64_t token_bytes = kv_bytes_per_token(config, layout, with_nextn) * num_ranks;
  const int64_t most = std::max(available_bytes / token_bytes, int64_t{kPageSize});
  if (max_total_tokens <= most) return {};
  return make_status(StatusCode::kResourceExhausted,
                     "max-total-tokens is {}; allowed: at most {}, because {:.1f} GB of memory are free and "
                     "a token needs {} bytes{}",
                     max_total_tokens, most, static_cast<double>(available_bytes) * 1e-9, token_bytes,
                     num_ranks == 1 ? "" : fmt::format(" on {} ranks together", num_ranks));
}

std::unique_ptr<Backend> make_cpu_backend(Model& model, ThreadPool& pool, KernelSet kernels) {
  std::vector<std::shared_ptr<Model>> one{std::shared_ptr<Model>(&model, [](Model*) {})};  // the caller's
  return std::make_unique<CpuBackend>(std::move(one), model.weights(), pool, kernels);
}

Result<std::unique_ptr<Backend>> load_backend(DeviceType device, const std::filesystem::path& model_dir,
                                              const ModelConfig& config, const BackendOptions& options,
                                              ThreadPool& pool) {
  if (device == DeviceType::kCuda) return load_cuda_backend(model_dir, config, options, pool);
  HADAL_ASSIGN_OR_RETURN(ModelWeights whole, load_weights(model_dir, config, options.load, pool));
  std::vector<std::shared_ptr<Model>> ranks;
  for (int64_t rank = 0; rank < options.split.tp; ++rank) {
    HADAL_ASSIGN_OR_RETURN(
        std::unique_ptr<Model> model,
        make_model(config,
                   options.split.is_whole() ? whole : shard_weights(whole, config, options.split, rank)));
    ranks.push_back(std::move(model));
    if (!options.split.is_whole())
      log_info("rank ready rank={} weight_bytes={}", rank, bytes_of(ranks.back()->weights()));
  }
  return std::unique_ptr<Backend>(
      std::make_unique<CpuBackend>(std::move(ranks), std::move(whole), pool, options.kernels));
}

}  // namespace hadal
