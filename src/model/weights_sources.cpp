#include "model/weights_sources.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "model/checkpoint.h"
#include "model/draft_layer.h"
#include "model/random_weights.h"

namespace hadal {
namespace {

Result<WeightSources> random_sources(const std::vector<TensorSpec>& specs,
                                     const RandomWeightOptions& options) {
  WeightSources sources;
  for (const TensorSpec& spec : specs) {
    if (spec.optional) continue;
    HADAL_ASSIGN_OR_RETURN(RandomTensor random, RandomTensor::make(spec, options));
    TensorSource source = source_of(spec, spec.dtype);
    source.random = random;
    sources.map.emplace(spec.name, std::move(source));
    sources.has_nextn |= spec.nextn;
  }
  return sources;
}

// `within` is as for match_tensors.
Result<WeightSources> file_sources(const std::filesystem::path& dir, const std::vector<TensorSpec>& specs,
                                   bool with_nextn, std::string_view within = {}) {
  HADAL_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir));
  HADAL_ASSIGN_OR_RETURN(const TensorMatch match, match_tensors(checkpoint, specs, within));
  WeightSources sources;
  sources.has_nextn = match.has_nextn && with_nextn;
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
  std::vector<TensorSpec> specs = expected_tensors(config);
  if (options.format != LoadFormat::kDummy) return file_sources(model_dir, specs, options.loads_own_nextn());
  if (!options.loads_own_nextn()) std::erase_if(specs, [](const TensorSpec& spec) { return spec.nextn; });
  return random_sources(specs, RandomWeightOptions::for_config(config, options.seed));
}

Result<WeightSources> draft_sources(const DraftLayer& draft, uint64_t seed) {
  std::vector<TensorSpec> specs = expected_tensors(draft.config);
  std::erase_if(specs, [](const TensorSpec& spec) { return !spec.nextn; });
  for (TensorSpec& spec : specs) spec.nextn = false;  // here only the tensors of the layer are expected
  auto sources = draft.format == LoadFormat::kDummy
                     ? random_sources(specs, RandomWeightOptions::for_config(draft.config, seed))
                     : file_sources(draft.dir, specs, false, layer_prefix(draft.config.num_hidden_layers));
  if (!sources.ok()) return about_draft(sources.status());
  return sources;
}

void share_equal_copies(const ModelConfig& config, TensorSources& nextn, const TensorSources& target) {
  const std::string prefix = layer_prefix(config.num_hidden_layers);
  const char* const target_head =
      target.contains("lm_head.weight") ? "lm_head.weight" : "model.embed_tokens.weight";
  const std::array<std::pair<std::string, std::string>, 2> copies{
      {{prefix + "embed_tokens.weight", "model.embed_tokens.weight"},
       {prefix + "shared_head.head.weight", target_head}}};
  for (const auto& [copy, original_name] : copies) {
    const auto at = nextn.find(copy);
    const auto original = target.find(original_name);
    if (at == nextn.end() || original == target.end()) continue;
    const std::span<const std::byte> bytes = at->second.bytes;
    if (!bytes.empty() && at->second.dtype == original->second.dtype &&
        std::ranges::equal(bytes, original->second.bytes))
      nextn.erase(at);
  }
}

}  // namespace hadal
