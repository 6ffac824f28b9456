// Says which part of a model each rank holds when several ranks share it (--tp-size, --ep-size). Heads, dense
// and shared MLPs and the vocabulary are cut by tp. Routed experts are distributed over ep groups of tp / ep
// ranks, and the ranks of a group cut each of its experts. Parts that treat every token alike (embedding,
// norms, router, q_a, kv_a, V3.2's indexer) are on all ranks. The functions are pure; nothing else decides
// where a model is cut.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kernels/params/linear.h"
#include "model/config.h"

namespace hadal {

struct ModelSplit {
  int64_t tp = 1;  // ranks
  int64_t ep = 1;  // groups of routed experts; divides tp
  bool is_whole() const { return tp == 1; }
};

// Range is [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Checks a split against a model: tp divides num_attention_heads; ep divides tp and
// n_routed_experts, and is 1 for a model without experts. The errors (kInvalidArgument) name the flag, its
// value, the field that it must divide, and the values that are allowed.
Result<void> check_split(const ModelConfig& config, ModelSplit split);

// Returns part `index` of [0, size), which is cut into `num_parts` at multiples of `unit`. If the parts
// cannot be equal, the first ones have one unit more. Parts may be empty; together they are [0, size).
Range part_of(int64_t size, int64_t unit, int64_t num_parts, int64_t index);

// Returns the multiple at which an MLP's intermediate size may be cut on the CPU: whole blocks of scales
// (128) if one of its matrices has them, otherwise 16.
int64_t mlp_unit(WeightType gate, WeightType up, WeightType down);

// A GPU cuts an MLP at multiples of this unit. Its kernels need multiples of 128 in any case, so smaller
// units would only add padding.
inline constexpr int64_t kGpuMlpUnit = 128;

// Returns true if the shared MLP of a layer is a product of its own on a GPU, cut by mlp_width_of. Otherwise
// it is n_shared_experts experts after the routed ones, each of which is cut like a routed expert
// (expert_width_of). It is separate if ep > 1, because then the routed experts are cut by tp / ep, and also
// if its matrices have block scales (`type`) and the borders of its experts would cut blocks.
bool shared_is_apart(const ModelConfig& config, ModelSplit split, WeightType type);

Range heads_of(const ModelConfig& config, ModelSplit split, int64_t rank);
// The vocabulary is cut at multiples of 64.
Range vocabulary_of(const ModelConfig& config, ModelSplit split, int64_t rank);
// Returns the rank's rows of NextN's eh_proj on a GPU, cut at multiples of 64. On the CPU every rank has all.
Range joined_rows_of(const ModelConfig& config, ModelSplit split, int64_t rank);
// Returns the rank's routed experts; tp / ep neighbouring ranks have the same.
Range experts_of(const ModelConfig& config, ModelSplit split, int64_t rank);
// Returns the rank's part of the intermediate size of each of its experts.
Range expert_width_of(const ModelConfig& config, ModelSplit split, int64_t unit, int64_t rank);
// Returns the rank's part of the intermediate size of a dense or shared MLP.
Range mlp_width_of(int64_t intermediate_size, ModelSplit split, int64_t unit, int64_t rank);

// RowWindow is a run of rows of a matrix that begins at a block of scales: rows [first, first + count). Its
// first `skip` rows belong to another rank's head and are computed but not read.
struct RowWindow {
  int64_t first = 0;
  int64_t count = 0;
  int64_t skip = 0;
};
// Returns the rows of q_proj or q_b_proj for the heads. If the type has block scales, the rows begin at a
// block, because a head of 192 rows does not always begin at one.
RowWindow q_rows_of(Range heads, WeightType type);

}  // namespace hadal
