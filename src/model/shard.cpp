#include "model/shard.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "base/check.h"
#include "kernels/params/matrix_window.h"

namespace hadal {

static_assert(kScaleBlockSize == kFp8BlockSize, "windows of matrices are cut where the config's blocks are");

namespace {

constexpr int64_t kGatheredUnit = 64;
constexpr int64_t kPlainMlpUnit = 16;

// Returns the common divisors of `sizes`, ascending.
std::vector<int64_t> common_divisors(std::initializer_list<int64_t> sizes) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= std::min(sizes); ++d) {
    if (std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size % d == 0; }))
      divisors.push_back(d);
  }
  return divisors;
}

bool contains(const std::vector<int64_t>& values, int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace

Result<void> check_split(const ModelConfig& config, ModelSplit split) {
  const std::vector<int64_t> tp = common_divisors({config.num_attention_heads});
  if (!contains(tp, split.tp)) {
    return invalid_argument("--tp-size {}: must divide num_attention_heads, which is {}; allowed: {}",
                            split.tp, config.num_attention_heads, fmt::join(tp, ", "));
  }
  if (config.n_routed_experts == 0) {
    if (split.ep == 1) return {};
    return invalid_argument("--ep-size {}: must be 1, because n_routed_experts is 0; allowed: 1", split.ep);
  }
  const std::vector<int64_t> ep = common_divisors({split.tp, config.n_routed_experts});
  if (contains(ep, split.ep)) return {};
  return invalid_argument(
      "--ep-size {}: must divide --tp-size, which is {}, and n_routed_experts, which is {}; allowed: {}",
      split.ep, split.tp, config.n_routed_experts, fmt::join(ep, ", "));
}

Range part_of(int64_t size, int64_t unit, int64_t num_parts, int64_t index) {
  HADAL_CHECK(index >= 0 && index < num_parts, "part {} of {}", index, num_parts);
  const int64_t num_units = (size + unit - 1) / unit;
  const auto border = [&](int64_t part) {
    const int64_t units_before = part * (num_units / num_parts) + std::min(part, num_units % num_parts);
    return std::min(units_before * unit, size);
  };
  return {border(index), border(index + 1)};
}

int64_t mlp_unit(WeightType gate, WeightType up, WeightType down) {
  const bool blocks = is_block_scaled(gate) || is_block_scaled(up) || is_block_scaled(down);
  return blocks ? kScaleBlockSize : kPlainMlpUnit;
}

bool shared_is_apart(const ModelConfig& config, ModelSplit split, WeightType type) {
  if (config.n_shared_experts == 0) return false;
  const bool cuts_blocks = config.n_shared_experts > 1 && is_block_scaled(type) &&
                           config.moe_intermediate_size % kScaleBlockSize != 0;
  return split.ep > 1 || cuts_blocks;
}

Range heads_of(const ModelConfig& config, ModelSplit split, int64_t rank) {
  return part_of(config.num_attention_heads, 1, split.tp, rank);
}

Range vocabulary_of(const ModelConfig& config, ModelSplit split, int64_t rank) {
  return part_of(config.vocab_size, kGatheredUnit, split.tp, rank);
}

Range joined_rows_of(const ModelConfig& config, ModelSplit split, int64_t rank) {
  return part_of(config.hidden_size, kGatheredUnit, split.tp, rank);
}

Range experts_of(const ModelConfig& config, ModelSplit split, int64_t rank) {
  return part_of(config.n_routed_experts, 1, split.ep, rank / (split.tp / split.ep));
}

Range expert_width_of(const ModelConfig& config, ModelSplit split, int64_t unit, int64_t rank) {
  const int64_t num_parts = split.tp / split.ep;
  return part_of(config.moe_intermediate_size, unit, num_parts, rank % num_parts);
}

Range mlp_width_of(int64_t intermediate_size, ModelSplit split, int64_t unit, int64_t rank) {
  return part_of(intermediate_size, unit, split.tp, rank);
}

RowWindow q_rows_of(Range heads, WeightType type) {
  const int64_t begin = heads.begin * kQkHeadDim;
  const int64_t skip = is_block_scaled(type) ? begin % kScaleBlockSize : 0;
  return {.first = begin - skip, .count = skip + heads.size() * kQkHeadDim, .skip = skip};
}

}  // namespace hadal
