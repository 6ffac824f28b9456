#include "model/model.h"

#include <utility>

#include "model/deepseek.h"

namespace hadal {

Result<KvLayout> cache_layout(const ModelConfig& config, KvFormat format, std::optional<KvScales> scales) {
  KvLayout layout{.format = format, .scales = scales.value_or(KvScales::kPerToken)};
  if (!config.has_indexer()) return layout;
  if (format == KvFormat::kFp8E5M2) {
    return unsupported(
        "--kv-cache-dtype fp8_e5m2: {} has index keys, which this format does not store; allowed: auto, "
        "bfloat16, float16, float32, fp8_e4m3",
        to_string(config.architecture));
  }
  layout.index = format == KvFormat::kF32 ? KvIndex::kF32 : KvIndex::kE4M3;
  if (format == KvFormat::kFp8E4M3 && scales.value_or(KvScales::kPer128) == KvScales::kPer128)
    layout.scales = KvScales::kPer128PowersOfTwo;
  return layout;
}

KvCache::KvCache(int64_t num_layers, int64_t num_pages, KvLayout layout)
    : num_pages_(num_pages), layout_(layout) {
  pools_.reserve(num_layers);
  for (int64_t i = 0; i < num_layers; ++i)
    pools_.emplace_back(static_cast<size_t>(num_pages * layout.page_bytes()));
  if (layout.index == KvIndex::kNone) return;
  index_pools_.reserve(num_layers);
  for (int64_t i = 0; i < num_layers; ++i)
    index_pools_.emplace_back(static_cast<size_t>(num_pages * layout.index_page_bytes()));
}

void ForwardBatch::clear() {
  *this = ForwardBatch{};
}

int64_t num_cache_layers(const Model& model) {
  return model.config().num_hidden_layers + (model.weights().mtp ? 1 : 0);
}

Result<std::unique_ptr<Model>> make_model(ModelConfig config, ModelWeights weights) {
  return std::unique_ptr<Model>(std::make_unique<Deepseek>(std::move(config), std::move(weights)));
}

}  // namespace hadal
