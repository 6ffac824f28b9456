// Implements the plain kernels of sampling. A block of 256 threads per row recomputes a logit each time it is
// needed, and finds a truncation's lowest key bit by bit. Sums are doubles in a fixed order.
#include "base/gumbel.h"
#include "kernels/cuda/common/launch.cuh"
#include "kernels/cuda/common/pdl.cuh"
#include "kernels/cuda/sampling/reference.h"
#include "kernels/cuda/sampling/values.cuh"

namespace hadal::cuda::reference {
namespace {

constexpr int kThreads = 256;
constexpr int kIdBits = 31;

using sampling::key_of;
using sampling::masked_logit;

// Gives one row's logits after the changes that the request's parameters make.
struct Source {
  const float* logits;
  int64_t vocab;
  const SlotSampling* slot = nullptr;  // null: unchanged
  const uint16_t* counts = nullptr;
  const uint32_t* mask = nullptr;
  const int32_t* bias_ids = nullptr;
  const float* bias_values = nullptr;
  int num_bias = 0, num_ends = 0;

  __device__ float at(int64_t id) const {
    float x = logits[id];
    if (counts != nullptr) x = sampling::penalised(*slot, x, counts[id]);
    for (int i = 0; i < num_bias; ++i) {
      if (bias_ids[i] == id) x = __fadd_rn(x, bias_values[i]);
    }
    if (mask != nullptr && (mask[id / 32] >> (id % 32) & 1U) == 0) x = masked_logit();
    for (int i = 0; i < num_ends; ++i) {
      if (slot->ends[i] == id) x = masked_logit();
    }
    return x;
  }
};

// Returns the sum of `own` over the block's threads, added in the order of a tree, to all threads.
template <typename T>
__device__ T block_sum(T own) {
  __shared__ T values[kThreads];
  values[threadIdx.x] = own;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < step) values[threadIdx.x] += values[threadIdx.x + step];
  }
  __syncthreads();
  const T sum = values[0];
  __syncthreads();
  return sum;
}

// Returns the largest key below `limit`, or 0 if there is none.
__device__ uint64_t best_below(const Source& source, uint64_t limit) {
  uint64_t best = 0;
  for (int64_t id = threadIdx.x; id < source.vocab; id += kThreads) {
    const uint64_t key = key_of<kIdBits>(source.at(id), id);
    if (key < limit && key > best) best = key;
  }
  __shared__ uint64_t values[kThreads];
  values[threadIdx.x] = best;
  __syncthreads();
  for (int i = 0; i < kThreads; ++i) best = values[i] > best ? values[i] : best;
  __syncthreads();
  return best;
}
__device__ float logit_of(uint64_t key) {
  return sampling::from_ordered(static_cast<uint32_t>(key >> kIdBits));
}
__device__ int32_t id_of(uint64_t key) {
  return static_cast<int32_t>(0x7fffffffU - (key & 0x7fffffffU));
}

__device__ double weight(float x, float best, double inv_temperature) {
  if (x == best) return 1.0;
  if (x == masked_logit()) return 0.0;
  return exp((static_cast<double>(x) - static_cast<double>(best)) * inv_temperature);
}

// Returns the largest key such that amount(tokens with at least this key) reaches `bound`. each(x) is a
// token's amount.
template <typename T, typename Each>
__device__ uint64_t lowest_kept(const Source& source, uint64_t lowest, T bound, Each&& each) {
  uint64_t kept = 0;
  for (int bit = 32 + kIdBits - 1; bit >= 0; --bit) {
    const uint64_t tried = kept | uint64_t{1} << bit;
    T own = 0;
    for (int64_t id = threadIdx.x; id < source.vocab; id += kThreads) {
      const float x = source.at(id);
      const uint64_t key = key_of<kIdBits>(x, id);
      if (key >= tried && key >= lowest) own += each(x);
    }
    if (block_sum(own) >= bound) kept = tried;
  }
  return kept < lowest ? lowest : kept;
}

// Returns the lowest key that the slot's truncation keeps.
__device__ uint64_t lowest_of_truncation(const Source& source, const SlotSampling& slot, float best) {
  const double inv_temperature = 1.0 / static_cast<double>(slot.temperature);
  uint64_t lowest = static_cast<uint64_t>(sampling::kOrderedMasked + 1) << kIdBits;
  auto one = [](float) { return 1; };
  auto mass = [&](float x) { return weight(x, best, inv_temperature); };
  if (slot.top_k > 0) lowest = lowest_kept(source, lowest, slot.top_k, one);
  if (slot.top_p < 1.0F) {
    double own = 0.0;
    for (int64_t id = threadIdx.x; id < source.vocab; id += kThreads) {
      const float x = source.at(id);
      if (key_of<kIdBits>(x, id) >= lowest) own += mass(x);
    }
    const double total = block_sum(own);
    lowest = lowest_kept(source, lowest, static_cast<double>(slot.top_p) * total, mass);
  }
  if (slot.min_p > 0.0F) {
    const float bound = sampling::min_p_bound(best, slot.temperature, slot.min_p);
    const uint64_t at_least = static_cast<uint64_t>(sampling::ordered(bound)) << kIdBits;
    lowest = at_least > lowest ? at_least : lowest;
  }
  return lowest;
}

// Gives the scores of a row's tokens, whose largest is chosen.
struct Scores {
  const Source& source;
  const SlotSampling& slot;
  int64_t position;
  bool greedy;
  double inv_temperature;
  float best;       // the largest logit
  uint64_t lowest;  // keys below it have no score

  __device__ Scores(const Source& row, const SlotSampling& of_slot, int64_t at, bool is_greedy, float largest)
      : source(row),
        slot(of_slot),
        position(at),
        greedy(is_greedy),
        inv_temperature(1.0 / static_cast<double>(of_slot.temperature)),
        best(largest),
        lowest(is_greedy ? 0 : lowest_of_truncation(row, of_slot, largest)) {}

  __device__ double at(int64_t id) const {
    const float x = source.at(id);
    if (greedy) return static_cast<double>(x);
    if (key_of<kIdBits>(x, id) < lowest) return -INFINITY;
    const uint32_t bits = noise_bits(slot.seed, static_cast<uint64_t>(position), static_cast<uint32_t>(id));
    const double below =
        x == best ? 0.0 : (static_cast<double>(x) - static_cast<double>(best)) * inv_temperature;
    return below - log(static_cast<double>(exponential_noise(bits)));
  }
};

struct Scored {
  double score;
  int32_t token;

  // Of equal scores the lower id is better.
  __device__ bool is_better_than(const Scored& other) const {
    return score > other.score || (score == other.score && token < other.token);
  }
};

// Returns the best token that is not as good as `limit`; its score is −inf if there is none.
__device__ Scored best_below(const Scores& scores, const Scored& limit) {
  Scored best{-INFINITY, INT32_MAX};
  for (int64_t id = threadIdx.x; id < scores.source.vocab; id += kThreads) {
    const Scored one{scores.at(id), static_cast<int32_t>(id)};
    if (limit.is_better_than(one) && one.is_better_than(best)) best = one;
  }
  __shared__ Scored found[kThreads];
  found[threadIdx.x] = best;
  __syncthreads();
  for (int i = 0; i < kThreads; ++i) {
    if (found[i].is_better_than(best)) best = found[i];
  }
  __syncthreads();
  return best;
}

__device__ bool holds_nan(const Source& source) {
  int nan = 0;
  for (int64_t id = threadIdx.x; id < source.vocab; id += kThreads) {
    const float x = source.logits[id];
    nan |= x != x ? 1 : 0;
  }
  return block_sum(nan) != 0;
}

// Writes the log-softmax of `token` and of the `num` best tokens, from unchanged logits.
__device__ void write_logprobs(const Source& source, int32_t token, int num, SampleResult* result,
                               int32_t* top_ids, float* top_logprobs) {
  uint64_t key = best_below(source, ~uint64_t{0});
  const float best = logit_of(key);
  double own = 0.0;
  for (int64_t id = threadIdx.x; id < source.vocab; id += kThreads)
    own += weight(source.logits[id], best, 1.0);
  const double log_sum = static_cast<double>(best) + log(block_sum(own));
  for (int i = 0; i < num; ++i) {
    if (threadIdx.x == 0) {
      top_ids[i] = id_of(key);
      top_logprobs[i] = static_cast<float>(static_cast<double>(source.logits[id_of(key)]) - log_sum);
    }
    key = best_below(source, key);
  }
  if (threadIdx.x == 0) {
    *result = {token, 0, static_cast<float>(static_cast<double>(source.logits[token]) - log_sum), num};
  }
}

// Holds a row's logits as its slot's parameters change them, and the best of them.
struct ChangedRow {
  Source source;
  uint64_t best;
  bool greedy;      // the best token is chosen
  bool all_masked;  // no token is allowed, and `source` is unchanged
};
__device__ ChangedRow changed_row(const SampleParams& params, const SampleRow& row, const Source& raw,
                                  const SlotSampling& slot) {
  ChangedRow changed{raw, 0, slot.temperature == 0.0F || slot.top_k == 1, false};
  Source& source = changed.source;
  const int64_t slot_idx = row.slot;
  source.slot = &slot;
  if (slot.uses_counts != 0 && params.counts != nullptr)
    source.counts = params.counts + slot_idx * params.vocab;
  if (row.mask_row >= 0) source.mask = params.masks + row.mask_row * ((params.vocab + 31) / 32);
  if (params.bias_ids != nullptr) {
    source.num_bias = slot.num_bias;
    source.bias_ids = params.bias_ids + slot_idx * kMaxBias;
    source.bias_values = params.bias_values + slot_idx * kMaxBias;
  }
  if (slot.num_generated < slot.min_new_tokens) source.num_ends = slot.num_ends;
  changed.best = best_below(source, ~uint64_t{0});
  if (logit_of(changed.best) == masked_logit() && source.num_ends > 0) {
    source.num_ends = 0;
    changed.best = best_below(source, ~uint64_t{0});
  }
  if (logit_of(changed.best) == masked_logit()) {
    changed.greedy = changed.all_masked = true;
    changed.best = best_below(raw, ~uint64_t{0});
  }
  return changed;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const SampleParams params) {
  pdl_wait();
  const SampleRow row = params.rows[blockIdx.x];
  if (row.slot < 0) return;
  const int64_t slot_idx = row.slot;
  const SlotSampling slot = params.slots[slot_idx];
  const Source raw{.logits = params.logits + row.logit_row * params.vocab, .vocab = params.vocab};
  SampleResult* result = params.results + blockIdx.x;
  if (holds_nan(raw)) {
    if (threadIdx.x == 0) *result = {-1, 1, 0.0F, 0};
    return;
  }
  const ChangedRow changed = changed_row(params, row, raw, slot);
  int32_t token = id_of(changed.best);
  if (!changed.greedy) {
    const Scores scores(changed.source, slot, row.position, false, logit_of(changed.best));
    token = best_below(scores, {INFINITY, -1}).token;
  }
  if (threadIdx.x == 0) *result = {token, 0, 0.0F, 0};
  if (!params.commits) return;
  if (slot.num_top_logprobs >= 0) {
    const int num = static_cast<int>(
        min(static_cast<int64_t>(min(slot.num_top_logprobs, kMaxTopLogprobs)), params.vocab));
    write_logprobs(raw, token, params.top_ids == nullptr ? 0 : num, result,
                   params.top_ids + int64_t{blockIdx.x} * kMaxTopLogprobs,
                   params.top_logprobs + int64_t{blockIdx.x} * kMaxTopLogprobs);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    params.last_token[slot_idx] = token;
    ++params.slots[slot_idx].num_generated;
    if (changed.source.counts != nullptr)
      sampling::count_token(params.counts + slot_idx * params.vocab, token);
  }
}

__global__ void __launch_bounds__(kThreads)
    choose_drafts_kernel(const SampleParams params, int count, DraftGuess* guesses) {
  pdl_wait();
  const SampleRow row = params.rows[blockIdx.x];
  if (row.slot < 0) return;
  const SlotSampling slot = params.slots[row.slot];
  const Source raw{.logits = params.logits + row.logit_row * params.vocab, .vocab = params.vocab};
  DraftGuess* out = guesses + int64_t{blockIdx.x} * count;
  const bool writes = threadIdx.x == 0;
  for (int i = 0; writes && i < count; ++i) out[i] = {};
  if (holds_nan(raw)) return;
  const ChangedRow changed = changed_row(params, row, raw, slot);
  if (changed.all_masked) {
    if (writes) out[0] = {id_of(changed.best), 0.0F};
    return;
  }
  if (isinf(logit_of(changed.best))) return;
  const Scores scores(changed.source, slot, row.position, changed.greedy, logit_of(changed.best));
  Scored next = best_below(scores, {INFINITY, -1});
  const double largest = next.score;
  double own = 0.0;
  for (int64_t id = threadIdx.x; id < params.vocab; id += kThreads) {
    const double score = scores.at(id);
    if (score >= largest - kNegligibleScore) own += exp(score - largest);
  }
  const double log_sum = log(block_sum(own));
  for (int i = 0; i < count && next.score >= largest - kNegligibleScore; ++i) {
    if (writes) out[i] = {next.token, static_cast<float>(next.score - largest - log_sum)};
    next = best_below(scores, next);
  }
}

__global__ void __launch_bounds__(kThreads) score_kernel(const ScoreParams params) {
  pdl_wait();
  const int64_t row = blockIdx.x;
  const int32_t token = params.token_ids[row];
  const Source source{.logits = params.logits + params.logit_rows[row] * params.vocab, .vocab = params.vocab};
  if (holds_nan(source)) {
    if (threadIdx.x == 0) params.results[row] = {token, 1, NAN, 0};
    return;
  }
  const int num = max(
      static_cast<int>(min(static_cast<int64_t>(min(params.top_num[row], kMaxTopLogprobs)), params.vocab)),
      0);
  write_logprobs(source, token, num, params.results + row, params.top_ids + row * kMaxTopLogprobs,
                 params.top_logprobs + row * kMaxTopLogprobs);
}

}  // namespace

void sample(const SampleParams& params, const Launch& launch) {
  launch_kernel<sample_kernel>(launch, dim3(params.num_rows), dim3(kThreads), 0, params);
}

void choose_drafts(const SampleParams& params, int count, DraftGuess* guesses, const Launch& launch) {
  launch_kernel<choose_drafts_kernel>(launch, dim3(params.num_rows), dim3(kThreads), 0, params, count,
                                      guesses);
}

void score_tokens(const ScoreParams& params, const Launch& launch) {
  launch_kernel<score_kernel>(launch, dim3(params.num_rows), dim3(kThreads), 0, params);
}

}  // namespace hadal::cuda::reference
