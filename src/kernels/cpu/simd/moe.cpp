// Computes routed experts as grouped products: the (token, choice) slots are sorted by expert, each expert
// multiplies its rows, and a last phase sums every token's parts in the order of its choices.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd/gemm_schedule.h"

namespace hadal::cpu::simd {
namespace {

// A combine task has this many tokens.
constexpr int64_t kCombineTokens = 4;

// SlotOrder sorts slots by expert, stably: expert e owns places first[e] … first[e + 1] of the sorted order.
struct SlotOrder {
  std::span<int64_t> first;   // [num_experts + 1]
  std::span<int32_t> tokens;  // [m · top_k]: the token of each place
  std::span<int64_t> place;   // [m · top_k]: the place of each slot

  SlotOrder(const MoeParams& p, Context& context)
      : first(scratch_array<int64_t>(context, static_cast<int64_t>(p.experts.size()) + 1)),
        tokens(scratch_array<int32_t>(context, p.m * p.top_k)),
        place(scratch_array<int64_t>(context, p.m * p.top_k)) {
    const int64_t num_slots = p.m * p.top_k;
    std::fill(first.begin(), first.end(), 0);
    for (int64_t s = 0; s < num_slots; ++s) {
      const int32_t expert = p.topk_ids[s];
      HADAL_CHECK(expert >= 0 && expert < static_cast<int64_t>(p.experts.size()), "expert {} of {}", expert,
                  p.experts.size());
      ++first[expert + 1];
    }
    for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
    // first[e] advances while slots are placed, and ends as the start of e + 1.
    for (int64_t s = 0; s < num_slots; ++s) {
      place[s] = first[p.topk_ids[s]]++;
      tokens[place[s]] = static_cast<int32_t>(s / p.top_k);
    }
    std::copy_backward(first.begin(), first.end() - 1, first.end());
    first[0] = 0;
  }
};

}  // namespace

void moe(const MoeParams& p, Context& context) {
  if (p.m <= 0) return;
  HADAL_CHECK(!p.experts.empty(), "the list of experts is empty");
  const Engine& e = engine();
  const int64_t hidden = p.experts[0].gate.k;
  const int64_t num_slots = p.m * p.top_k;
  const SlotOrder order(p, context);

  int64_t num_active = p.shared != nullptr ? 1 : 0;
  int64_t num_middle = p.shared != nullptr ? p.m * p.shared->gate.n : 0;  // floats between the two products
  GemmPlan plan;
  plan.max_m = p.shared != nullptr ? p.m : 0;
  for (size_t i = 0; i < p.experts.size(); ++i) {
    const int64_t count = order.first[i + 1] - order.first[i];
    if (count == 0) continue;
    ++num_active;
    num_middle += count * p.experts[i].gate.n;
    plan.max_m = std::max(plan.max_m, count);
  }
  plan.packs = TaskList<PackJob>(context, num_active);
  plan.products = TaskList<Product>(context, num_active);
  plan.second = TaskList<Product>(context, num_active);
  float* packed = scratch_array<float>(context, (num_slots + p.m) * hidden).data();
  float* middle = scratch_array<float>(context, num_middle).data();
  float* out = scratch_array<float>(context, (num_slots + p.m) * hidden).data();

  const auto add_expert = [&](const MlpWeights& weights, const int32_t* rows, int64_t m, float* y) {
    check_mlp_weights(weights);
    HADAL_CHECK_EQ(weights.gate.k, hidden);
    const float* x = rows != nullptr ? p.x + rows[0] * hidden : p.x;
    if (m > 1) {
      add_pack(e, plan.packs,
               {.x = p.x, .x_stride = hidden, .rows = rows, .m = m, .k = hidden, .packed = packed});
      x = packed;
      packed += m * hidden;
    }
    add_product(e, plan.products, {.w = weights.gate, .up = &weights.up, .x = x, .y = middle, .m = m});
    add_product(e, plan.second, {.w = weights.down, .x = middle, .y = y, .m = m, .y_stride = hidden});
    middle += m * weights.gate.n;
  };
  // The shared expert has the most tokens, so its panels come first and none of them is left for the end.
  float* shared_out = out + num_slots * hidden;
  if (p.shared != nullptr) add_expert(*p.shared, nullptr, p.m, shared_out);
  for (size_t i = 0; i < p.experts.size(); ++i) {
    const int64_t begin = order.first[i];
    const int64_t count = order.first[i + 1] - begin;
    if (count > 0) add_expert(p.experts[i], order.tokens.data() + begin, count, out + begin * hidden);
  }

  // Lists for each token the rows of `out` that belong to it.
  auto parts = scratch_array<const float*>(context, num_slots);
  for (int64_t s = 0; s < num_slots; ++s) parts[s] = out + order.place[s] * hidden;
  const int64_t num_combines = (p.m + kCombineTokens - 1) / kCombineTokens;
  run_plan(plan, context, num_combines, [&](int64_t task) {
    for (int64_t t = task * kCombineTokens; t < std::min(p.m, (task + 1) * kCombineTokens); ++t) {
      e.combine(p.topk_weights + t * p.top_k, parts.data() + t * p.top_k, p.top_k,
                p.shared != nullptr ? shared_out + t * hidden : nullptr, hidden, p.y + t * hidden);
    }
  });
}

}  // namespace hadal::cpu::simd
