// Computes routed experts as grouped products: the (token, choice) slots of local experts are sorted by
// expert, each expert multiplies its rows, and a last phase sums every token's parts in the order of its
// choices.
#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd/gemm_schedule.h"

namespace hadal::cpu::simd {
namespace {

// A combine task has this many tokens.
constexpr int64_t kCombineTokens = 4;

// SlotOrder sorts the slots of local experts by expert, stably: experts[e] owns places first[e] …
// first[e + 1] of the sorted order.
struct SlotOrder {
  std::span<int64_t> first;   // [experts.size() + 1]
  std::span<int32_t> tokens;  // [num_places()]: the token of each place
  std::span<int64_t> place;   // [m · top_k]: the place of each slot; −1 if its expert is not local

  SlotOrder(const MoeParams& p, Context& context)
      : first(scratch_array<int64_t>(context, static_cast<int64_t>(p.experts.size()) + 1)),
        tokens(scratch_array<int32_t>(context, p.m * p.top_k)),
        place(scratch_array<int64_t>(context, p.m * p.top_k)) {
    const int64_t num_slots = p.m * p.top_k;
    const auto num_local = static_cast<int64_t>(p.experts.size());
    std::fill(first.begin(), first.end(), 0);
    for (int64_t s = 0; s < num_slots; ++s) {
      const int32_t id = p.topk_ids[s];
      HADAL_CHECK(id >= 0 && id < p.num_experts, "expert {} of {}", id, p.num_experts);
      const int64_t expert = id - p.first_expert;
      const bool local = expert >= 0 && expert < num_local && p.experts[expert].gate.n > 0;
      place[s] = local ? 0 : -1;
      if (local) ++first[expert + 1];
    }
    for (size_t i = 1; i < first.size(); ++i) first[i] += first[i - 1];
    // first[e] advances while slots are placed, and ends as the start of e + 1.
    for (int64_t s = 0; s < num_slots; ++s) {
      if (place[s] < 0) continue;
      place[s] = first[p.topk_ids[s] - p.first_expert]++;
      tokens[place[s]] = static_cast<int32_t>(s / p.top_k);
    }
    std::copy_backward(first.begin(), first.end() - 1, first.end());
    first[0] = 0;
  }
  int64_t num_places() const { return first.back(); }
};

// TokenParts lists for each token the results that belong to it, in the order of its choices.
struct TokenParts {
  std::span<int64_t> begin;       // [m + 1]: token t owns begin[t] … begin[t + 1] of the lists below
  std::span<const float*> parts;  // [num_places()]: rows of the experts' results
  std::span<float> weights;       // [num_places()]

  TokenParts(const MoeParams& p, const SlotOrder& order, const float* results, Context& context)
      : begin(scratch_array<int64_t>(context, p.m + 1)),
        parts(scratch_array<const float*>(context, order.num_places())),
        weights(scratch_array<float>(context, order.num_places())) {
    int64_t end = 0;
    for (int64_t s = 0; s < p.m * p.top_k; ++s) {
      if (s % p.top_k == 0) begin[s / p.top_k] = end;
      if (order.place[s] < 0) continue;
      parts[end] = results + order.place[s] * p.hidden;
      weights[end++] = p.topk_weights[s];
    }
    begin[p.m] = end;
  }
};

}  // namespace

void moe(const MoeParams& p, Context& context) {
  if (p.m <= 0) return;
  const Engine& e = engine();
  const int64_t hidden = p.hidden;
  const SlotOrder order(p, context);
  const int64_t num_places = order.num_places();

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
  float* packed = scratch_array<float>(context, (num_places + p.m) * hidden).data();
  float* middle = scratch_array<float>(context, num_middle).data();
  float* out = scratch_array<float>(context, (num_places + p.m) * hidden).data();

  const auto add_expert = [&](const MlpWeights& weights, const int32_t* rows, int64_t m, float* y) {
    check_mlp_weights(weights);
    HADAL_CHECK_EQ(weights.gate.k, hidden);
    HADAL_CHECK_GT(weights.gate.n, 0);
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
  // The shared expert has the most tokens, so its panels are processed first and none of them is left for the
  // end.
  float* shared_out = out + num_places * hidden;
  if (p.shared != nullptr) add_expert(*p.shared, nullptr, p.m, shared_out);
  for (size_t i = 0; i < p.experts.size(); ++i) {
    const int64_t begin = order.first[i];
    const int64_t count = order.first[i + 1] - begin;
    if (count > 0) add_expert(p.experts[i], order.tokens.data() + begin, count, out + begin * hidden);
  }

  const TokenParts parts(p, order, out, context);
  const int64_t num_combines = (p.m + kCombineTokens - 1) / kCombineTokens;
  run_plan(plan, context, num_combines, [&](int64_t task) {
    for (int64_t t = task * kCombineTokens; t < std::min(p.m, (task + 1) * kCombineTokens); ++t) {
      const int64_t begin = parts.begin[t];
      e.combine(parts.weights.data() + begin, parts.parts.data() + begin,
                static_cast<int>(parts.begin[t + 1] - begin),
                p.shared != nullptr ? shared_out + t * hidden : nullptr, hidden, p.y + t * hidden);
    }
  });
}

}  // namespace hadal::cpu::simd
