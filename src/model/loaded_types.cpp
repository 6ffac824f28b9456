#include "model/loaded_types.h"

#include "model/quantization.h"

namespace hadal {

WeightType compute_type(DType compute_dtype) {
  return compute_dtype == DType::kBF16 ? WeightType::kBF16 : WeightType::kF32;
}

WeightType loaded_type(const ModelConfig& config, const WeightLoadOptions& options,
                       std::string_view weight_name, TensorRole role, DType stored) {
  if (is_code(stored)) {
    const WeightType type = config.quantization->type;
    return is_channel_scaled(type) && is_kv_b(weight_name) ? compute_type(options.compute_dtype) : type;
  }
  const bool quantises =
      role == TensorRole::kLinear && quantises_at_load(config, options.quantization, weight_name);
  const WeightType codes = linear_type(config, options.quantization);
  // A kv_b_proj with one scale per row stays unquantised, because it would have to be widened again.
  if (quantises && !(is_channel_scaled(codes) && is_kv_b(weight_name))) return codes;
  if (stored == DType::kBF16) return WeightType::kBF16;
  return role == TensorRole::kGate ? WeightType::kF32 : compute_type(options.compute_dtype);
}

WeightType common_type(WeightType gate, WeightType up, DType compute_dtype) {
  return gate == up ? gate : compute_type(compute_dtype);
}

}  // namespace hadal
