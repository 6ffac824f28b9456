// Computes the three gates in one pass per token: the scores come from the same float32 operations as the
// reference's, so that the ids agree, ties included, and are inserted into a list of the best. It uses no
// intrinsics, because exp dominates and 256 experts are few.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"

namespace hadal::cpu::simd {
namespace {

constexpr int kMaxExperts = 1024;
constexpr int kMaxTopK = 64;

// BestList holds the best `capacity` of the candidates offered, best first. They are offered in ascending
// order of id, and an equal score never passes an earlier one, so ties go to the lower id. NaN ranks with
// −infinity.
class BestList {
 public:
  explicit BestList(int capacity) : capacity_(capacity) {}

  void offer(int id, float score) {
    const float rank = std::isnan(score) ? -std::numeric_limits<float>::infinity() : score;
    if (size_ == capacity_ && !(rank > ranks_[size_ - 1])) return;
    int at = size_ < capacity_ ? size_++ : size_ - 1;
    for (; at > 0 && rank > ranks_[at - 1]; --at) {
      ranks_[at] = ranks_[at - 1];
      ids_[at] = ids_[at - 1];
    }
    ranks_[at] = rank;
    ids_[at] = id;
  }
  const int* ids() const { return ids_; }
  int* ids() { return ids_; }

 private:
  int capacity_;
  int size_ = 0;
  int ids_[kMaxTopK] = {};
  float ranks_[kMaxTopK];
};

void softmax(const float* logits, int count, float* scores) {
  const float peak = *std::max_element(logits, logits + count);
  double sum = 0.0;
  for (int e = 0; e < count; ++e) {
    scores[e] = std::exp(logits[e] - peak);
    sum += static_cast<double>(scores[e]);
  }
  for (int e = 0; e < count; ++e) scores[e] = static_cast<float>(static_cast<double>(scores[e]) / sum);
}

float group_score(const GateParams& p, const float* members, int size) {
  const int wanted = p.kind == GateKind::kSigmoidNoAuxTc ? std::min(size, 2) : 1;
  BestList best(wanted);
  for (int e = 0; e < size; ++e) best.offer(e, members[e]);
  const float first = members[best.ids()[0]];
  return wanted == 1 ? first : first + members[best.ids()[1]];
}

void route_token(const GateParams& p, const float* logits, int32_t* ids, float* weights) {
  float scores[kMaxExperts];
  float biased[kMaxExperts];
  const float* selection = scores;
  if (p.kind == GateKind::kSigmoidNoAuxTc) {
    for (int e = 0; e < p.num_experts; ++e) scores[e] = 1.0F / (1.0F + std::exp(-logits[e]));
    if (p.bias != nullptr) {
      for (int e = 0; e < p.num_experts; ++e) biased[e] = scores[e] + p.bias[e];
      selection = biased;
    }
  } else {
    softmax(logits, p.num_experts, scores);
  }
  BestList chosen(p.top_k);
  if (p.kind == GateKind::kSoftmaxGreedy || p.num_groups == 1) {
    for (int e = 0; e < p.num_experts; ++e) chosen.offer(e, selection[e]);
  } else {
    const int size = p.num_experts / p.num_groups;
    BestList groups(p.topk_groups);
    for (int g = 0; g < p.num_groups; ++g) groups.offer(g, group_score(p, selection + g * size, size));
    std::sort(groups.ids(), groups.ids() + p.topk_groups);
    for (int j = 0; j < p.topk_groups; ++j) {
      const int first = groups.ids()[j] * size;
      for (int e = first; e < first + size; ++e) chosen.offer(e, selection[e]);
    }
  }
  float sum = 0.0F;
  for (int j = 0; j < p.top_k; ++j) sum += scores[chosen.ids()[j]];
  for (int j = 0; j < p.top_k; ++j) {
    const float score = scores[chosen.ids()[j]];
    ids[j] = chosen.ids()[j];
    weights[j] = (p.renormalize ? score / (sum + 1e-20F) : score) * p.scaling_factor;
  }
}

}  // namespace

void gate(const GateParams& p, Context& ctx) {
  HADAL_CHECK(p.num_groups >= 1 && p.num_experts % p.num_groups == 0);
  HADAL_CHECK(p.num_experts >= 1 && p.num_experts <= kMaxExperts, "num_experts {}, at most {}", p.num_experts,
              kMaxExperts);
  HADAL_CHECK(p.topk_groups >= 1 && p.topk_groups <= p.num_groups && p.topk_groups <= kMaxTopK);
  const bool grouped = p.kind != GateKind::kSoftmaxGreedy && p.num_groups > 1;
  const int candidates = grouped ? p.num_experts / p.num_groups * p.topk_groups : p.num_experts;
  HADAL_CHECK(p.top_k >= 1 && p.top_k <= std::min(candidates, kMaxTopK), "top_k {} of {} candidates", p.top_k,
              candidates);
  // A task has about 2,000 exponentials, which take some 10 µs.
  const int64_t grain = 2048 / p.num_experts + 1;
  ctx.pool.parallel_for(p.m, grain, [&](int64_t begin, int64_t end, int /*thread_idx*/) {
    for (int64_t i = begin; i < end; ++i) {
      route_token(p, p.logits + i * p.num_experts, p.topk_ids + i * p.top_k, p.topk_weights + i * p.top_k);
    }
  });
}

}  // namespace hadal::cpu::simd
