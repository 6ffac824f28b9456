#include "model/cuda/device_weights_loader.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "base/log.h"
#include "model/cuda/device_upload.h"
#include "model/cuda/device_weights_plan.h"
#include "model/cuda/shard_reader.h"
#include "model/rope_table.h"
#include "model/weights_sources.h"

namespace hadal {
namespace {

TensorSource rope_source(const ModelConfig& config) {
  TensorSource source;
  source.dtype = DType::kF32;
  source.rows = config.max_position_embeddings;
  source.cols = kQkRopeHeadDim;
  return source;
}

std::vector<float> rope_rows(const ModelConfig& config, ThreadPool& pool) {
  const RopeTable table(config);
  std::vector<float> rows(static_cast<size_t>(config.max_position_embeddings) * kQkRopeHeadDim);
  pool.parallel_for(config.max_position_embeddings, 1024, [&](int64_t begin, int64_t end, int) {
    table.write(begin, end - begin, rows.data() + begin * kQkRopeHeadDim);
  });
  return rows;
}

Status out_of_memory(const std::filesystem::path& dir, const WeightLoadOptions& options, size_t needed,
                     size_t free) {
  const auto gib = [](size_t bytes) { return static_cast<double>(bytes) / 0x1p30; };
  return make_status(
      StatusCode::kResourceExhausted,
      "{}: {:.2f} GiB of device memory are needed for weights, but {:.2f} GiB are free; end other programs "
      "on the GPU{}, or use a smaller model",
      options.format == LoadFormat::kDummy ? "--load-format dummy" : dir.string(), gib(needed), gib(free),
      options.quantization == LoadQuantization::kNone ? ", pass --quantization fp8" : "");
}

bool rounds_float16(const DeviceWeightPlan& plan) {
  return std::any_of(plan.placements.begin(), plan.placements.end(), [](const WeightPlacement& placement) {
    return placement.source->dtype == DType::kF16 && placement.type == DType::kBF16;
  });
}

}  // namespace

Result<DeviceWeights> load_device_weights(const std::filesystem::path& model_dir, const ModelConfig& config,
                                          const WeightLoadOptions& options, ThreadPool& pool) {
  const auto start = std::chrono::steady_clock::now();
  HADAL_RETURN_IF_ERROR(check_gpu_compute_dtype(config, options.quantization, options.compute_dtype));
  WeightLoadOptions source_options = options;
  source_options.load_nextn = false;
  HADAL_ASSIGN_OR_RETURN(const WeightSources sources, weight_sources(model_dir, config, source_options));

  TensorSource cos_sin = rope_source(config);
  const auto plan_at = [&](std::byte* base) {
    return plan_device_weights(config, sources.map, cos_sin, options.quantization, base,
                               options.compute_dtype);
  };
  const DeviceWeightPlan measured = plan_at(nullptr);
  if (measured.error) return *measured.error;
  const auto needed = static_cast<size_t>(measured.weights.bytes +
                                          upload_staging_bytes(measured.placements, pool.num_threads()));
  const size_t free = cuda_free_bytes();
  if (needed > free) return out_of_memory(model_dir, options, needed, free);
  if (rounds_float16(measured)) log_info("weights stored as float16 are rounded to bfloat16 for the GPU");

  try {
    DeviceBuffer block(static_cast<size_t>(measured.weights.bytes));
    const std::vector<float> rope = rope_rows(config, pool);
    cos_sin.bytes = std::as_bytes(std::span<const float>(rope));
    DeviceWeightPlan plan = plan_at(block.data());
    upload_weights(plan, block.data(), sources.shards, pool, options.progress);
    plan.weights.storage.push_back(std::move(block));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const auto bytes = static_cast<double>(plan.weights.bytes);
    log_info("weights loaded device_bytes={} linears=\"{}\" seconds={:.3f} gb_per_s={:.1f}",
             plan.weights.bytes, describe(config, options.quantization), seconds.count(),
             bytes * 1e-9 / seconds.count());
    return std::move(plan.weights);
    // another program has allocated the memory that was free a moment ago
  } catch (const OutOfDeviceMemory& error) {
    return out_of_memory(model_dir, options, needed, error.free_bytes);
  } catch (const ShardReadError& error) {
    return data_loss("{}", error.what());
  }
}

int64_t device_weight_bytes(const ModelConfig& config, LoadQuantization quantization, DType compute_dtype) {
  TensorSources sources;
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (!spec.optional && !spec.nextn) sources.emplace(spec.name, source_of(spec, spec.dtype));
  }
  return plan_device_weights(config, sources, rope_source(config), quantization, nullptr, compute_dtype)
      .weights.bytes;
}

}  // namespace hadal
