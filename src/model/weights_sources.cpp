#include "model/weights_sources.h"

#include <utility>

#include "model/checkpoint.h"
#include "model/random_weights.h"

namespace hadal {
namespace {

Result<WeightSources> random_sources(const ModelConfig& config, const WeightLoadOptions& options) {
  WeightSources sources;
  const RandomWeightOptions random_options = RandomWeightOptions::for_config(config, options.seed);
  for (const TensorSpec& spec : expected_tensors(config)) {
    if (spec.optional || (spec.nextn && !options.load_nextn)) continue;
    HADAL_ASSIGN_OR_RETURN(RandomTensor random, RandomTensor::make(spec, random_options));
    TensorSource source = source_of(spec, spec.dtype);
    source.random = random;
    sources.map.emplace(spec.name, std::move(source));
    sources.has_nextn |= spec.nextn;
  }
  return sources;
}

Result<WeightSources> file_sources(const std::filesystem::path& dir, const ModelConfig& config,
                                   const WeightLoadOptions& options) {
  HADAL_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir));
  const std::vector<TensorSpec> specs = expected_tensors(config);
  HADAL_ASSIGN_OR_RETURN(const TensorMatch match, match_tensors(checkpoint, specs));
  WeightSources sources;
  sources.has_nextn = match.has_nextn && options.load_nextn;
  sources.map.reserve(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    const Checkpoint::Entry* entry = match.entries[i];
    if (entry == nullptr || (specs[i].nextn && !sources.has_nextn)) continue;
    TensorSource source = source_of(specs[i], *entry->info.dtype);
    source.bytes = entry->data;
    sources.map.emplace(specs[i].name, std::move(source));
  }
  sources.shards = std::move(checkpoint).take_shards();
  return sources;
}

}  // namespace

TensorSource source_of(const TensorSpec& spec, DType dtype) {
  TensorSource source;
  source.dtype = dtype;
  source.rows = spec.shape.size() == 2 ? spec.shape[0] : 1;
  source.cols = spec.shape.back();
  return source;
}

Result<WeightSources> weight_sources(const std::filesystem::path& model_dir, const ModelConfig& config,
                                     const WeightLoadOptions& options) {
  return options.format == LoadFormat::kDummy ? random_sources(config, options)
                                              : file_sources(model_dir, config, options);
}

}  // namespace hadal
