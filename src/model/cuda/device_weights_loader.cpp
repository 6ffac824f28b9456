#include "model/cuda/device_weights_loader.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kernels/cuda/weights/weights.h"
#include "model/cuda/device_upload.h"
#include "model/cuda/device_weights_plan.h"
#include "model/cuda/shard_reader.h"
#include "model/draft_layer.h"
#include "model/rope_table.h"
#include "model/weights_sources.h"

namespace hadal {
namespace {

std::vector<float> rope_rows(const ModelConfig& config, ThreadPool& pool) {
  const RopeTable table(config);
  std::vector<float> rows(static_cast<size_t>(config.max_position_embeddings) * kQkRopeHeadDim);
  pool.parallel_for(config.max_position_embeddings, 1024, [&](int64_t begin, int64_t end, int) {
    table.write(begin, end - begin, rows.data() + begin * kQkRopeHeadDim);
  });
  return rows;
}

bool rounds_float16(const DeviceWeightPlan& plan) {
  return std::any_of(plan.placements.begin(), plan.placements.end(), [](const WeightPlacement& placement) {
    return placement.source->dtype == DType::kF16 && placement.type == DType::kBF16;
  });
}

// DeviceNeed holds the bytes that the ranks on one GPU need, including staging, and the bytes that are free
// there.
struct DeviceNeed {
  int device = 0;
  size_t needed = 0;
  size_t free = 0;
};

class GroupLoader {
 public:
  GroupLoader(const std::filesystem::path& dir, const ModelConfig& config, const WeightLoadOptions& options,
              ModelSplit split, std::span<const RankDevice> ranks, ThreadPool& pool)
      : dir_(dir), config_(config), options_(options), split_(split), ranks_(ranks), pool_(pool) {}

  Result<std::vector<DeviceWeights>> load() {
    HADAL_ASSIGN_OR_RETURN(WeightSources sources, weight_sources(dir_, config_, options_));
    if (options_.loads_draft())
      HADAL_RETURN_IF_ERROR(add_draft_sources(config_, *options_.draft, options_.seed, sources));
    share_equal_copies(config_, sources.map, sources.map);
    TensorSource cos_sin = rope_source(config_);
    const std::vector<DeviceWeightPlan> measured = plan_at(sources, cos_sin, {});
    const std::vector<DeviceNeed> needs = needs_of(measured);
    for (const DeviceNeed& need : needs)
      if (need.needed > need.free) return out_of_memory(need);
    if (rounds_float16(measured.front()))
      log_info("weights stored as float16 are rounded to bfloat16 for the GPU");
    const std::vector<float> rope = rope_rows(config_, pool_);
    cos_sin.bytes = std::as_bytes(std::span<const float>(rope));

    DeviceNeed current = needs.front();  // of the GPU whose memory was allocated last
    try {
      std::vector<std::shared_ptr<const DeviceBuffer>> blocks;
      std::vector<std::byte*> bases;
      for (size_t i = 0; i < ranks_.size(); ++i) {
        cuda_set_device(ranks_[i].device);
        current = *std::find_if(needs.begin(), needs.end(),
                                [&](const DeviceNeed& need) { return need.device == ranks_[i].device; });
        blocks.push_back(
            std::make_shared<const DeviceBuffer>(static_cast<size_t>(measured[i].weights.bytes)));
        bases.push_back(blocks.back()->data());
      }
      std::vector<DeviceWeightPlan> plans = plan_at(sources, cos_sin, bases);
      upload_weights(uploads_of(plans, bases), sources.shards, pool_, options_.progress);
      std::vector<DeviceWeights> loaded;
      for (size_t i = 0; i < plans.size(); ++i) {
        loaded.push_back(std::move(plans[i].weights));
        loaded.back().storage = std::move(blocks[i]);
      }
      return loaded;
      // meanwhile another program has allocated memory that was free
    } catch (const OutOfDeviceMemory& error) {
      current.free = error.free_bytes;
      return out_of_memory(current);
    } catch (const ShardReadError& error) {
      return data_loss("{}", error.what());
    }
  }

 private:
  // Plans every rank at its base address. Without base addresses the plans only count bytes.
  std::vector<DeviceWeightPlan> plan_at(const WeightSources& sources, const TensorSource& cos_sin,
                                        std::span<std::byte* const> bases) const {
    std::vector<DeviceWeightPlan> plans(ranks_.size());
    pool_.parallel_for(static_cast<int64_t>(ranks_.size()), 1, [&](int64_t begin, int64_t end, int) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        plans[i] = plan_device_weights(config_, sources.map, cos_sin, options_.quantization,
                                       bases.empty() ? nullptr : bases[i], options_.compute_dtype, split_,
                                       ranks_[i].rank);
      }
    });
    return plans;
  }

  std::vector<RankUpload> uploads_of(std::span<const DeviceWeightPlan> plans,
                                     std::span<std::byte* const> bases) const {
    std::vector<RankUpload> uploads;
    for (size_t i = 0; i < plans.size(); ++i) {
      uploads.push_back(
          {.plan = &plans[i], .base = bases.empty() ? nullptr : bases[i], .device = ranks_[i].device});
    }
    return uploads;
  }

  std::vector<DeviceNeed> needs_of(std::span<const DeviceWeightPlan> plans) const {
    std::vector<DeviceNeed> needs;
    for (const DeviceBytes& staging : upload_staging_bytes(uploads_of(plans, {}), pool_.num_threads())) {
      cuda_set_device(staging.device);
      DeviceNeed need{
          .device = staging.device, .needed = static_cast<size_t>(staging.bytes), .free = cuda_free_bytes()};
      for (size_t i = 0; i < plans.size(); ++i) {
        if (ranks_[i].device == need.device) need.needed += static_cast<size_t>(plans[i].weights.bytes);
      }
      needs.push_back(need);
    }
    return needs;
  }

  Status out_of_memory(const DeviceNeed& need) const {
    const auto gib = [](size_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
    return make_status(
        StatusCode::kResourceExhausted,
        "{}: {:.2f} GiB of device memory are needed for weights{}, but {:.2f} GiB are free; end other "
        "programs on the GPU{}, or use a smaller model",
        options_.format == LoadFormat::kDummy ? "--load-format dummy" : dir_.string(), gib(need.needed),
        split_.is_whole() ? "" : fmt::format(" on GPU {}", need.device), gib(need.free),
        options_.quantization == LoadQuantization::kNone ? ", pass --quantization fp8" : "");
  }

  const std::filesystem::path& dir_;
  const ModelConfig& config_;
  const WeightLoadOptions& options_;
  const ModelSplit split_;
  const std::span<const RankDevice> ranks_;
  ThreadPool& pool_;
};

}  // namespace

Result<DeviceWeights> load_device_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                          const WeightLoadOptions& options, ThreadPool& pool) {
  const RankDevice whole{.rank = 0, .device = cuda::current_device()};
  HADAL_ASSIGN_OR_RETURN(std::vector<DeviceWeights> loaded,
                         load_device_weights(model_dir, config, options, {}, {&whole, 1}, pool));
  return std::move(loaded.front());
}

Result<std::vector<DeviceWeights>> load_device_weights(const std::filesystem::path& model_dir,
                                                       const ModelConfig& config,
                                                       const WeightLoadOptions& options, ModelSplit split,
                                                       std::span<const RankDevice> ranks, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  HADAL_CHECK(!ranks.empty(), "no rank to load");
  HADAL_RETURN_IF_ERROR(check_gpu_compute_dtype(config, options.quantization, options.compute_dtype));
  if (options.loads_draft())
    HADAL_RETURN_IF_ERROR(check_gpu_draft(*options.draft, config, options.quantization));
  auto loaded = GroupLoader(model_dir, config, options, split, ranks, pool).load();
  cuda_set_device(ranks.front().device);
  if (!loaded.ok()) return loaded;
  int64_t bytes = 0;
  for (const DeviceWeights& weights : *loaded) bytes += weights.bytes;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  log_info("weights loaded device_bytes={} ranks={} linears=\"{}\" seconds={:.3f} gb_per_s={:.1f}", bytes,
           ranks.size(), describe(config, options.quantization), seconds.count(),
           static_cast<double>(bytes) * 1e-9 / seconds.count());
  return loaded;
}

}  // namespace hadal
