// Implements the GPUs' backend: weights on the devices, the plan of their memory, and the executors and
// runners. If several ranks share a model, each has a device (gpu_devices), or they take turns on one.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"
#include "engine/backend.h"
#include "engine/cuda/cuda_executor.h"
#include "engine/cuda/cuda_runner.h"
#include "engine/cuda/graph_buckets.h"
#include "engine/cuda/memory_plan.h"
#include "engine/cuda/rank_group_executor.h"
#include "engine/cuda/rank_group_runner.h"
#include "engine/cuda/rank_links.h"
#include "kernels/cuda/availability.h"
#include "kernels/params/matrix_window.h"
#include "model/cuda/device_weights_loader.h"
#include "model/cuda/device_weights_plan.h"
#include "model/info.h"
#include "tune/kernel_config.h"

namespace hadal {
namespace {

// A rank's thread is lost if the others wait for it longer than this. The limit bounds how much longer than
// the others a rank may need to load its code and capture its graphs.
constexpr std::chrono::seconds kRankDeadline{120};
// The matrix library allocates this for its context and a workspace when it starts.
constexpr size_t kLibraryBytes = size_t{512} << 20;

int64_t bytes_of(const DeviceMlp& mlp) {
  return matrix_bytes(mlp.gate_up) + matrix_bytes(mlp.down);
}

double gb(int64_t bytes) {
  return static_cast<double>(bytes) * 1e-9;
}

// A rank that is lost keeps its model.
using CudaRanks = std::vector<std::shared_ptr<CudaModel>>;

// Returns the sum of `bytes_of_rank` over the ranks.
template <typename BytesOf>
int64_t sum_over(const CudaRanks& ranks, const BytesOf& bytes_of_rank) {
  int64_t total = 0;
  for (const auto& rank : ranks) total += bytes_of_rank(rank->weights);
  return total;
}

class CudaBackend final : public Backend {
 public:
  // `ranks` has the model, or each rank's part of it, in order of rank.
  explicit CudaBackend(CudaRanks ranks) : ranks_(std::move(ranks)) {
    for (const auto& rank : ranks_) devices_.push_back(rank->device.index);
  }

  DeviceType device() const override { return DeviceType::kCuda; }
  const ModelConfig& config() const override { return ranks_[0]->config; }

  Result<void> size_cache(EngineOptions& options) override {
    HADAL_RETURN_IF_ERROR(check_gpu_kv_layout(options.kv_layout, compute_dtype()));
    HADAL_RETURN_IF_ERROR(check_speculation(options));
    HADAL_RETURN_IF_ERROR(check_gpu_batch("--max-running-requests", options.max_running_requests));
    if (options.max_running_requests == 0) {
      HADAL_ASSIGN_OR_RETURN(options.max_running_requests, choose_requests(options));
    }
    HADAL_ASSIGN_OR_RETURN(const DeviceMemoryPlan plan, plan_memory(options));
    const int64_t token_bytes = bytes_per_token(options.kv_layout);
    HADAL_RETURN_IF_ERROR(check_cache_fits(plan, token_bytes, options.max_total_tokens));
    if (options.max_total_tokens == 0) options.max_total_tokens = plan.max_total_tokens;
    log_info(
        "GPU memory ranks={} total_gb={:.2f} fraction={:.2f} weights_gb={:.2f} context_and_others_gb={:.2f} "
        "workspace_gb={:.2f} "
        "state_gb={:.2f} graphs_gb={:.2f} kv_gb={:.2f} max_total_tokens={} max_running_requests={}",
        ranks_.size(), gb(plan.total_bytes), plan.fraction, gb(plan.weight_bytes), gb(plan.context_bytes),
        gb(plan.workspace_bytes), gb(plan.state_bytes), gb(plan.graph_bytes),
        gb(options.max_total_tokens * token_bytes), options.max_total_tokens, options.max_running_requests);
    return {};
  }

  Result<std::unique_ptr<StepExecutor>> make_executor(const EngineOptions& options) override {
    // Buckets are computed even if graphs are off, because decode steps are padded to their sizes.
    DeviceOptions graphed = options.device;
    graphed.use_graphs = true;
    HADAL_ASSIGN_OR_RETURN(const std::vector<int64_t> buckets,
                           graph_buckets(graphed, options.max_running_requests));
    return make<StepExecutor, RankGroupExecutor>(
        "--mem-fraction-static or --max-total-tokens",
        [&](CudaModel& rank) { return step_bytes(rank, options); },
        [options, buckets](CudaModel& rank, size_t workspace_bytes, RankEnd end) {
          return std::make_unique<CudaExecutor>(rank, options, buckets, workspace_bytes, end);
        });
  }

  Result<std::unique_ptr<ModelRunner>> make_runner(int64_t num_pages, int64_t max_tokens,
                                                   KvLayout layout) override {
    HADAL_RETURN_IF_ERROR(check_gpu_kv_layout(layout, compute_dtype()));
    return make<ModelRunner, RankGroupRunner>(
        "the number of tokens",
        [&](CudaModel& rank) { return CudaRunner::step_bytes(rank, max_tokens, layout); },
        [=](CudaModel& rank, size_t workspace_bytes, RankEnd end) {
          return std::make_unique<CudaRunner>(rank, num_pages, max_tokens, layout, workspace_bytes, end);
        });
  }

  // Returns the bytes that all ranks read together. Each group of ranks that holds an expert reads it once
  // between them.
  int64_t weight_bytes_read(std::span<const int32_t> distinct_experts, bool /*selects_keys*/) const override {
    int64_t total = sum_over(ranks_, [](const DeviceWeights& w) { return matrix_bytes(w.lm_head); });
    const int64_t num_groups = ranks_[0]->weights.split.ep;
    size_t moe_idx = 0;
    for (size_t i = 0; i < ranks_[0]->weights.layers.size(); ++i) {
      const bool is_moe = ranks_[0]->weights.layers[i].is_moe;
      const int64_t hit = is_moe && moe_idx < distinct_experts.size() ? distinct_experts[moe_idx] : 0;
      moe_idx += is_moe ? 1 : 0;
      int64_t of_experts = 0;  // of one expert in each group
      for (const auto& rank : ranks_) {
        const DeviceLayer& layer = rank->weights.layers[i];
        const DeviceAttention& a = layer.attention;
        total += matrix_bytes(a.qkv_a) + matrix_bytes(a.q_b) + matrix_bytes(a.w_uk) +
                 matrix_bytes(a.kv_b) / 2 + matrix_bytes(a.o);
        // A step reads these weights whether or not its rows select keys.
        if (a.indexer.num_heads > 0)
          total += matrix_bytes(a.indexer.wq_b) + matrix_bytes(a.indexer.weights_proj);
        if (!layer.is_moe) {
          total += bytes_of(layer.mlp);
          continue;
        }
        total += matrix_bytes(layer.moe.gate) + layer.moe.num_shared * bytes_of(layer.moe.experts) +
                 bytes_of(layer.moe.shared);
        of_experts += bytes_of(layer.moe.experts);
      }
      total += hit * of_experts / num_groups;
    }
    return total;
  }

  std::optional<double> measure_bandwidth() override {
    // The copy must be far larger than the L2 cache; how much fits beside the weights is found by trying.
    cuda_set_device(devices_[0]);
    for (size_t bytes = size_t{1} << 30; bytes >= size_t{1} << 28; bytes /= 2) {
      try {
        return copy_bandwidth(bytes) * static_cast<double>(take_turns() ? 1 : ranks_.size());
      } catch (const OutOfDeviceMemory&) {
        continue;
      }
    }
    return std::nullopt;
  }

 private:
  DType compute_dtype() const { return ranks_[0]->weights.is_f16() ? DType::kF16 : DType::kBF16; }
  // The NextN layer, if it is loaded, has a layer of the cache.
  int64_t bytes_per_token(KvLayout layout) const {
    return kv_bytes_per_token(config(), layout, ranks_[0]->decoder.has_nextn());
  }
  Result<void> check_speculation(const EngineOptions& options) const {
    if (options.speculation_width == 0) return {};
    if (!ranks_[0]->decoder.has_nextn())
      return invalid_argument("speculation: {} has no NextN layer", to_string(config().architecture));
    return {};
  }
  bool take_turns() const { return ranks_.size() > 1 && hadal::take_turns(devices_); }
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

  // Makes the object that runs the model. With one rank that is make_rank(model, workspace_bytes, end); with
  // several ranks it is a Group of such objects, each made by its rank's thread. `bytes_of` tells what the
  // steps of a rank need; `flags` are the flags that reduce it.
  template <typename Made, typename Group, typename BytesOf, typename MakeRank>
  Result<std::unique_ptr<Made>> make(const char* flags, const BytesOf& bytes_of, const MakeRank& make_rank) {
    const auto short_of_memory = std::make_shared<std::atomic<int>>(-1);  // the first rank without enough
    try {
      std::vector<size_t> workspaces;
      int64_t part_bytes = 0;
      for (const auto& rank : ranks_) {
        const DeviceDecoder::StepBytes bytes = bytes_of(*rank);
        workspaces.push_back(bytes.workspace);
        part_bytes = std::max(part_bytes, bytes.part);
      }
      cuda_set_device(devices_[0]);
      const ModelSplit split = ranks_[0]->weights.split;
      if (split.is_whole()) return std::unique_ptr<Made>(make_rank(*ranks_[0], workspaces[0], RankEnd{}));
      const std::shared_ptr<RankLinks> links =
          ranks_.size() > 1
              ? connect_ranks(devices_, part_bytes)
              : lone_links(static_cast<int>(ranks_[0]->weights.rank), static_cast<int>(split.tp), part_bytes);
      return std::unique_ptr<Made>(std::make_unique<Group>(
          static_cast<int>(ranks_.size()), kRankDeadline,
          [ranks = ranks_, links, workspaces, make_rank, short_of_memory](
              int rank, Communicator& host) -> std::unique_ptr<Made> {
            CudaModel& model = *ranks[static_cast<size_t>(rank)];
            try {
              cuda_set_device(model.device.index);
              return make_rank(model, workspaces[static_cast<size_t>(rank)], links->end(host));
            } catch (const OutOfDeviceMemory&) {
              int none = -1;
              short_of_memory->compare_exchange_strong(none, rank);
              throw;
            }
          }));
    } catch (const OutOfDeviceMemory& error) {
      const int rank = short_of_memory->load();
      const std::string who = rank < 0 ? "" : fmt::format("rank {}: ", rank);
      return make_status(StatusCode::kResourceExhausted, "{}{}; lower {}", who, error.what(), flags);
    }
  }

  static DeviceDecoder::StepBytes step_bytes(CudaModel& rank, const EngineOptions& options) {
    const ExecutorSizes sizes = ExecutorSizes::of(options);
    return rank.decoder.step_bytes(sizes.max_tokens, sizes.max_prefill, kMaxPrefillKeys, sizes.max_logits,
                                   rank.prefill_paths(options.kv_layout), rank.gemm, rank.device.num_sms,
                                   rank.measured_choices());
  }

  // Chooses max_running_requests. Its errors are those of graph_buckets.
  Result<int64_t> choose_requests(EngineOptions options) {
    const int64_t most = most_requests_by_state(kMostDefaultRequests, [&](int64_t requests) {
      options.max_running_requests = requests;
      return CudaExecutor::state_bytes(*ranks_[0], options) -
             CudaExecutor::scoring_bytes(*ranks_[0], options);
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

  // Plans the memory of every rank and returns the plan with the smallest cache, because all ranks must have
  // pages for the same tokens. max_running_requests must not be 0. The errors are those of graph_buckets.
  Result<DeviceMemoryPlan> plan_memory(const EngineOptions& options) {
    HADAL_ASSIGN_OR_RETURN(const std::vector<int64_t> buckets,
                           graph_buckets(options.device, options.max_running_requests));
    std::vector<DeviceMemoryPlan> plans;
    int64_t part_bytes = 0;
    for (const auto& rank : ranks_) {
      const DeviceDecoder::StepBytes bytes = step_bytes(*rank, options);
      part_bytes = std::max(part_bytes, bytes.part);
      DeviceMemoryPlan& plan = plans.emplace_back();
      plan.fraction = options.device.mem_fraction_static;
      plan.weight_bytes = rank->weights.bytes;
      plan.workspace_bytes = static_cast<int64_t>(bytes.workspace);
      plan.state_bytes = CudaExecutor::state_bytes(*rank, options);
      plan.graph_bytes = std::ssize(graph_shapes(buckets, options, config().has_indexer())) * kGraphBytes;
    }
    size_t smallest = 0;
    for (size_t i = 0; i < plans.size(); ++i) {
      if (part_bytes > 0) plans[i].state_bytes += link_bytes(part_bytes);
      share_device(*ranks_[i], plans[i]);
      plans[i].fill_cache(bytes_per_token(options.kv_layout));
      if (plans[i].max_total_tokens < plans[smallest].max_total_tokens) smallest = i;
    }
    return plans[smallest];
  }

  // Sets the rank's share of its device's memory, and of the memory that others use there. Ranks that take
  // turns on a device have equal shares.
  void share_device(const CudaModel& rank, DeviceMemoryPlan& plan) const {
    const int64_t num_sharing = std::count(devices_.begin(), devices_.end(), rank.device.index);
    int64_t of_weights = 0;
    for (const auto& other : ranks_)
      of_weights += other->device.index == rank.device.index ? other->weights.bytes : 0;
    cuda_set_device(rank.device.index);
    const auto total = static_cast<int64_t>(rank.device.total_bytes);
    const int64_t others = total - static_cast<int64_t>(cuda_free_bytes()) - of_weights;
    plan.total_bytes = total / num_sharing;
    plan.context_bytes = std::max<int64_t>(others, 0) / num_sharing;
  }

  const CudaRanks ranks_;
  std::vector<int> devices_;  // [ranks]
};

Result<void> check_equal_gpus(const CudaDeviceInfo& first, const CudaDeviceInfo& other) {
  if (first.name == other.name && first.num_sms == other.num_sms && first.total_bytes == other.total_bytes)
    return {};
  return unsupported(
      "--tp-size: ranks need GPUs of one kind, but GPU {} is {} with {:.1f} GB and GPU {} is {} with {:.1f} "
      "GB; "
      "choose others by --base-gpu-id, --gpu-id-step or CUDA_VISIBLE_DEVICES",
      first.index, first.name, gb(static_cast<int64_t>(first.total_bytes)), other.index, other.name,
      gb(static_cast<int64_t>(other.total_bytes)));
}

}  // namespace

Result<std::unique_ptr<Backend>> load_cuda_backend(const std::filesystem::path& model_dir,
                                                   const ModelConfig& config, const BackendOptions& options,
                                                   ThreadPool& pool) {
  const cuda::Availability cuda = cuda::availability();
  if (!cuda.usable) return make_status(StatusCode::kUnsupported, "--device cuda: {}", cuda.reason);
  std::vector<CudaDeviceInfo> devices;
  std::vector<RankDevice> places;
  const bool is_lone = options.gpus.is_lone();
  const int64_t first_rank = is_lone ? options.gpus.lone_rank : 0;
  for (int64_t rank = first_rank; rank < (is_lone ? first_rank + 1 : options.split.tp); ++rank) {
    const int device = options.gpus.device(rank);
    cuda_set_device(device);
    devices.push_back(cuda_device_info(device));
    places.push_back({.rank = rank, .device = device});
    HADAL_RETURN_IF_ERROR(check_equal_gpus(devices.front(), devices.back()));
  }
  const CudaDeviceInfo& first = devices.front();
  cuda_set_device(first.index);
  HADAL_ASSIGN_OR_RETURN(cuda::ProductChoices choices,
                         load_kernel_configs(options.kernel_config_dirs, first.name, first.num_sms,
                                             options.named_kernel_config_dir));
  HADAL_ASSIGN_OR_RETURN(std::vector<DeviceWeights> weights,
                         load_device_weights(model_dir, config, options.load, options.split, places, pool));
  log_info("GPU name=\"{}\" compute={}.{} multiprocessors={} memory_gb={:.1f} ranks={}", first.name,
           first.compute_major, first.compute_minor, first.num_sms,
           gb(static_cast<int64_t>(first.total_bytes)), options.split.tp);
  CudaRanks ranks;
  try {
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      cuda_set_device(devices[rank].index);
      auto model = std::make_shared<CudaModel>(config, std::move(weights[rank]), devices[rank]);
      model->reference = options.kernels == KernelSet::kReference;
      model->fusion = options.fusion;
      model->seq_len_threshold = options.seq_len_threshold;
      model->choices = choices;
      ranks.push_back(std::move(model));
    }
  } catch (const Error& error) {  // usually the weights leave no room for what libraries allocate
    if (cuda_free_bytes() > kLibraryBytes) throw;
    return make_status(StatusCode::kResourceExhausted,
                       "{}; {:.2f} GB of GPU memory are free beside the weights: use --quantization fp8, "
                       "which needs less, or end other programs on the GPU",
                       error.what(), gb(static_cast<int64_t>(cuda_free_bytes())));
  }
  auto backend = std::make_unique<CudaBackend>(std::move(ranks));
  if (options.gpus.take_turns(options.split.tp))
    log_warning(
        "ranks take turns on one GPU, which shows that they compute the right thing, not how fast gpu={} "
        "ranks={}",
        first.index, options.split.tp);
  return std::unique_ptr<Backend>(std::move(backend));
}

Result<GpuEstimate> estimate_gpu(const ModelConfig& config, LoadQuantization quantization,
                                 DType compute_dtype, KvLayout layout, double mem_fraction, ModelSplit split,
                                 const GpuRanks& gpus) {
  const cuda::Availability cuda = cuda::availability();
  if (!cuda.usable) return make_status(StatusCode::kUnsupported, "--device cuda: {}", cuda.reason);
  HADAL_RETURN_IF_ERROR(check_gpu_kv_layout(layout, compute_dtype));
  cuda_set_device(gpus.device(0));
  const CudaDeviceInfo info = cuda_device_info(gpus.device(0));
  const int64_t num_sharing = gpus.take_turns(split.tp) ? split.tp : 1;
  DeviceMemoryPlan plan;
  plan.total_bytes = static_cast<int64_t>(info.total_bytes) / num_sharing;
  plan.fraction = mem_fraction;
  // Rank 0 has the largest parts.
  plan.weight_bytes = device_weight_bytes(config, quantization, compute_dtype, split, 0);
  plan.context_bytes = static_cast<int64_t>(info.total_bytes - info.free_bytes) / num_sharing;
  plan.fill_cache(kv_bytes_per_token(config, layout));
  return GpuEstimate{.name = info.name,
                     .num_sms = info.num_sms,
                     .free_bytes = static_cast<int64_t>(info.free_bytes),
                     .plan = plan};
}

}  // namespace hadal
