#include "model/shard_tensors.h"

#include <charconv>

#include "base/check.h"

namespace hadal {
namespace {

bool has_module(const TensorSpec& spec, std::string_view module) {
  std::string_view name = module_name(spec.name);
  if (!name.ends_with(module)) return false;
  name.remove_suffix(module.size());
  return name.ends_with('.');
}

// Returns 7 for "model.layers.3.mlp.experts.7.up_proj.weight".
int64_t expert_index(std::string_view name) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = name.find(kExperts);
  HADAL_CHECK(at != std::string_view::npos, "{} belongs to no expert", name);
  int64_t index = -1;
  std::from_chars(name.data() + at + kExperts.size(), name.data() + name.size(), index);
  return index;
}

// Returns the rank's part of an MLP's intermediate size.
int64_t width_of(const ModelConfig& config, const TensorSpec& spec, int64_t width, ModelSplit split,
                 int64_t rank, int64_t unit) {
  if (!spec.expert) return mlp_width_of(width, split, unit, rank).size();
  const Range local = experts_of(config, split, rank);
  const int64_t expert = expert_index(spec.name);
  if (expert < local.begin || expert >= local.end) return 0;
  return expert_width_of(config, split, unit, rank).size();
}

}  // namespace

TensorPart tensor_part(const ModelConfig& config, const TensorSpec& spec, ModelSplit split, int64_t rank,
                       WeightType type, int64_t unit) {
  HADAL_CHECK(spec.role != TensorRole::kScale, "{} is a scale; its part follows from that of its matrix",
              spec.name);
  if (spec.shape.size() == 1) return {1, spec.shape[0]};
  const TensorPart whole{spec.shape[0], spec.shape[1]};
  if (spec.role == TensorRole::kHead) return {vocabulary_of(config, split, rank).size(), whole.cols};
  if (spec.role != TensorRole::kLinear) return whole;
  const Range heads = heads_of(config, split, rank);
  if (has_module(spec, "q_proj") || has_module(spec, "q_b_proj"))
    return {q_rows_of(heads, type).count, whole.cols};
  if (has_module(spec, "kv_b_proj")) return {heads.size() * (kQkNopeHeadDim + kVHeadDim), whole.cols};
  if (has_module(spec, "o_proj")) return {whole.rows, heads.size() * kVHeadDim};
  if (has_module(spec, "gate_proj") || has_module(spec, "up_proj"))
    return {width_of(config, spec, whole.rows, split, rank, unit), whole.cols};
  if (has_module(spec, "down_proj"))
    return {whole.rows, width_of(config, spec, whole.cols, split, rank, unit)};
  return whole;
}

std::string_view mlp_prefix(std::string_view tensor_name) {
  for (const std::string_view module : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
    if (tensor_name.ends_with(module)) return tensor_name.substr(0, tensor_name.size() - module.size());
  }
  return {};
}

}  // namespace hadal
