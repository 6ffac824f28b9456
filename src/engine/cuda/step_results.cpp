#include "engine/cuda/step_results.h"

#include <cmath>

#include "base/check.h"

namespace hadal {
namespace {

using cuda::kMaxTopLogprobs;
using cuda::SampleResult;

TokenLogprob make_logprob(const SampleResult& result, const int32_t* ids, const float* logprobs) {
  TokenLogprob logprob{.token_id = result.token, .logprob = result.logprob, .top = {}};
  for (int32_t i = 0; i < result.num_top; ++i) logprob.top.emplace_back(ids[i], logprobs[i]);
  return logprob;
}

template <typename T>
const T* array_at(const std::byte* block, size_t offset) {
  return reinterpret_cast<const T*>(block + offset);
}

}  // namespace

StepResults::Offsets StepResults::offsets(int64_t num_moe_layers, int64_t num_rows) {
  const auto rows = static_cast<size_t>(num_rows);
  Offsets at;
  at.results = (static_cast<size_t>(num_moe_layers) * sizeof(int32_t) + 15) / 16 * 16;
  at.top_ids = at.results + rows * sizeof(SampleResult);
  at.top_logprobs = at.top_ids + rows * kMaxTopLogprobs * sizeof(int32_t);
  at.bytes = at.top_logprobs + rows * kMaxTopLogprobs * sizeof(float);
  return at;
}

StepResults::StepResults(int64_t num_moe_layers, int64_t max_rows, int64_t max_scores)
    : num_moe_layers_(num_moe_layers),
      max_rows_(max_rows),
      max_scores_(max_scores),
      at_(offsets(num_moe_layers, 2 * max_rows)),
      at_scores_(offsets(0, max_scores)),
      block_(at_.bytes),
      scores_(at_scores_.bytes) {
  for (int i = 0; i < kStagingDepth; ++i) {
    host_.block(i, at_.bytes);
    host_scores_.block(i, at_scores_.bytes);
  }
  CudaStream stream;
  fill_device(block_.data(), 0, block_.size(), stream.handle());
  stream.synchronize();
}

int64_t StepResults::device_bytes(int64_t num_moe_layers, int64_t max_rows, int64_t max_scores) {
  return static_cast<int64_t>(offsets(num_moe_layers, 2 * max_rows).bytes + offsets(0, max_scores).bytes);
}

void StepResults::bind(cuda::SampleParams& params, bool constrained) const {
  const int64_t first = constrained ? max_rows_ : 0;
  std::byte* const block = block_.data();
  params.results = reinterpret_cast<SampleResult*>(block + at_.results) + first;
  params.top_ids = reinterpret_cast<int32_t*>(block + at_.top_ids) + first * kMaxTopLogprobs;
  params.top_logprobs = reinterpret_cast<float*>(block + at_.top_logprobs) + first * kMaxTopLogprobs;
}

void StepResults::bind_scores(cuda::ScoreParams& params) const {
  HADAL_CHECK_LE(params.num_rows, max_scores_);
  params.results = reinterpret_cast<SampleResult*>(scores_.data() + at_scores_.results);
  params.top_ids = reinterpret_cast<int32_t*>(scores_.data() + at_scores_.top_ids);
  params.top_logprobs = reinterpret_cast<float*>(scores_.data() + at_scores_.top_logprobs);
}

// The distinct experts are stored before the first results, so one copy fetches both.
void StepResults::fetch(int step_idx, bool constrained, int64_t count, bool tops, StreamHandle stream) {
  HADAL_CHECK_LE(count, max_rows_);
  std::byte* const host = host_.block(step_idx, at_.bytes);
  const auto first = static_cast<size_t>(constrained ? max_rows_ : 0);
  const auto copy = [&](size_t begin, size_t end) {
    copy_to_host(host + begin, block_.data() + begin, end - begin, stream);
  };
  const size_t begin = constrained ? at_.results + first * sizeof(SampleResult) : 0;
  copy(begin, at_.results + (first + static_cast<size_t>(count)) * sizeof(SampleResult));
  if (!tops) return;
  constexpr size_t kIds = kMaxTopLogprobs * sizeof(int32_t);
  constexpr size_t kLogprobs = kMaxTopLogprobs * sizeof(float);
  copy(at_.top_ids + first * kIds, at_.top_ids + (first + static_cast<size_t>(count)) * kIds);
  copy(at_.top_logprobs + first * kLogprobs,
       at_.top_logprobs + (first + static_cast<size_t>(count)) * kLogprobs);
}

void StepResults::fetch_scores(int step_idx, int64_t count, bool tops, StreamHandle stream) {
  std::byte* const host = host_scores_.block(step_idx, at_scores_.bytes);
  const auto copy = [&](size_t begin, size_t bytes) {
    copy_to_host(host + begin, scores_.data() + begin, static_cast<size_t>(count) * bytes, stream);
  };
  copy(at_scores_.results, sizeof(SampleResult));
  if (!tops) return;
  copy(at_scores_.top_ids, kMaxTopLogprobs * sizeof(int32_t));
  copy(at_scores_.top_logprobs, kMaxTopLogprobs * sizeof(float));
}

std::vector<int32_t> StepResults::distinct_experts(int step_idx) const {
  const auto* first = array_at<int32_t>(host_.block(step_idx), 0);
  return {first, first + num_moe_layers_};
}

const SampleResult& StepResults::result(int step_idx, bool constrained, int64_t idx) const {
  return array_at<SampleResult>(host_.block(step_idx), at_.results)[(constrained ? max_rows_ : 0) + idx];
}

TokenLogprob StepResults::logprob(int step_idx, bool constrained, int64_t idx) const {
  const int64_t row = (constrained ? max_rows_ : 0) + idx;
  const std::byte* const host = host_.block(step_idx);
  return make_logprob(result(step_idx, constrained, idx),
                      array_at<int32_t>(host, at_.top_ids) + row * kMaxTopLogprobs,
                      array_at<float>(host, at_.top_logprobs) + row * kMaxTopLogprobs);
}

TokenLogprob StepResults::score(int step_idx, int64_t idx) const {
  const Offsets& at = at_scores_;
  const std::byte* const host = host_scores_.block(step_idx);
  SampleResult result = array_at<SampleResult>(host, at.results)[idx];
  if (result.has_nan != 0) {
    result.logprob = std::nanf("");
    result.num_top = 0;
  }
  return make_logprob(result, array_at<int32_t>(host, at.top_ids) + idx * kMaxTopLogprobs,
                      array_at<float>(host, at.top_logprobs) + idx * kMaxTopLogprobs);
}

}  // namespace hadal
