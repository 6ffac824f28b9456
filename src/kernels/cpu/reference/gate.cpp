#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"

namespace hadal::cpu::reference {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Returns the indices of the `count` best `scores`, best first; ties go to the lower index. NaN ranks with
// −infinity, so that the indices stay valid whatever the activations are.
std::vector<int> best(const std::vector<float>& scores, int count) {
  std::vector<int> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  const auto rank = [&](int i) { return std::isnan(scores[i]) ? kNever : scores[i]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return rank(a) > rank(b); });
  order.resize(count);
  return order;
}

std::vector<float> softmax(const float* logits, int count) {
  const float peak = *std::max_element(logits, logits + count);
  std::vector<float> scores(count);
  double sum = 0.0;
  for (int e = 0; e < count; ++e) {
    scores[e] = std::exp(logits[e] - peak);
    sum += static_cast<double>(scores[e]);
  }
  for (float& score : scores) score = static_cast<float>(static_cast<double>(score) / sum);
  return scores;
}

float group_score(const GateParams& p, const std::vector<float>& selection, int group) {
  const int size = p.num_experts / p.num_groups;
  const std::vector<float> members(selection.begin() + group * size, selection.begin() + (group + 1) * size);
  if (p.kind == GateKind::kSoftmaxGroupLimited) return members[best(members, 1)[0]];
  const std::vector<int> two = best(members, std::min(size, 2));
  return size > 1 ? members[two[0]] + members[two[1]] : members[two[0]];
}

}  // namespace

void gate(const GateParams& p, Context& /*ctx*/) {
  HADAL_CHECK(p.top_k >= 1 && p.num_groups >= 1 && p.num_experts % p.num_groups == 0);
  for (int64_t i = 0; i < p.m; ++i) {
    const float* logits = p.logits + i * p.num_experts;
    std::vector<float> scores;
    if (p.kind == GateKind::kSigmoidNoAuxTc) {
      for (int e = 0; e < p.num_experts; ++e) scores.push_back(1.0F / (1.0F + std::exp(-logits[e])));
    } else {
      scores = softmax(logits, p.num_experts);
    }
    std::vector<float> selection = scores;
    if (p.kind == GateKind::kSigmoidNoAuxTc && p.bias != nullptr) {
      for (int e = 0; e < p.num_experts; ++e) selection[e] += p.bias[e];
    }
    std::vector<int> chosen;
    if (p.kind == GateKind::kSoftmaxGreedy || p.num_groups == 1) {
      chosen = best(selection, p.top_k);
    } else {
      std::vector<float> groups;
      for (int g = 0; g < p.num_groups; ++g) groups.push_back(group_score(p, selection, g));
      std::vector<int> kept = best(groups, p.topk_groups);
      std::sort(kept.begin(), kept.end());
      // Candidates are listed in ascending order of expert, so that ties still go to the lower expert.
      const int size = p.num_experts / p.num_groups;
      HADAL_CHECK_LE(p.top_k, size * p.topk_groups);
      std::vector<int> candidates;
      std::vector<float> candidate_scores;
      for (int g : kept) {
        for (int e = g * size; e < (g + 1) * size; ++e) {
          candidates.push_back(e);
          candidate_scores.push_back(selection[e]);
        }
      }
      for (int c : best(candidate_scores, p.top_k)) chosen.push_back(candidates[c]);
    }
    float sum = 0.0F;
    for (int e : chosen) sum += scores[e];
    for (int j = 0; j < p.top_k; ++j) {
      const float score = scores[chosen[j]];
      p.topk_ids[i * p.top_k + j] = chosen[j];
      p.topk_weights[i * p.top_k + j] = (p.renormalize ? score / (sum + 1e-20F) : score) * p.scaling_factor;
    }
  }
}

}  // namespace hadal::cpu::reference
