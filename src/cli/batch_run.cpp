#include "cli/batch_run.h"

#include <chrono>
#include <utility>

#include "base/seconds.h"
#include "cli/speculation_options.h"
#include "engine/speculation/weight_traffic.h"
#include "kernels/cuda/padding.h"

namespace hadal::cli {
namespace {

double mean_of(const std::vector<int32_t>& values) {
  double sum = 0.0;
  for (const int32_t value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

// A step on a GPU has this many prompt tokens.
constexpr int64_t kGpuPrefillTokens = 16384;

SlotStart greedy_start(int32_t slot) {
  SlotStart start;
  start.slot = slot;
  start.sampling.temperature = 0.0F;
  return start;
}

// Returns the token after each row of `count` prompts; -1 after the last one of each, which is sampled.
std::vector<int32_t> tokens_after(std::span<const int32_t> ids, int64_t count) {
  std::vector<int32_t> next(ids.begin() + 1, ids.end());
  next.push_back(-1);
  const int64_t length = std::ssize(ids) / count;
  for (int64_t last = length - 1; last < std::ssize(next); last += length) next[last] = -1;
  return next;
}

}  // namespace

StaticBatch BatchShape::sequences() const {
  std::vector<int64_t> tokens(static_cast<size_t>(batch_size));
  for (int64_t s = 0; s < batch_size; ++s) tokens[s] = tokens_for(input_len_of(s));
  return StaticBatch(tokens);
}

Result<std::unique_ptr<StepExecutor>> make_batch_executor(const ParsedFlags& flags, Session& session,
                                                          const KvLayout& layout, const BatchShape& shape) {
  EngineOptions options;
  options.kv_layout = layout;
  options.max_running_requests = shape.batch_size;
  options.context_length = shape.most_tokens();
  options.speculation_width = shape.width;
  options.draft_shape = draft_shape(flags);
  HADAL_ASSIGN_OR_RETURN(options.simulated_acceptance, simulated_acceptance(flags));
  options.chunked_prefill_size = kGpuPrefillTokens;
  options.max_prefill_tokens =
      std::min(kGpuPrefillTokens, shape.fill_cache ? shape.batch_size : shape.num_input());
  options.max_total_tokens = shape.sequences().num_pages() * kPageSize;
  HADAL_ASSIGN_OR_RETURN(options.device, resolve_device_options(flags));
  options.device.mem_fraction_static = 1.0;
  options.device.use_graphs = options.device.use_graphs && shape.batch_size <= cuda::kMostGraphTokens;
  options.device.graph_bs = {shape.batch_size};
  HADAL_RETURN_IF_ERROR(session.backend().size_cache(options));
  HADAL_ASSIGN_OR_RETURN(auto executor, session.backend().make_executor(options));
  if (shape.fill_cache) executor->fill_cache(session.options().random_seed);
  return executor;
}

BatchRun::BatchRun(Session& session, const KvLayout& layout, const BatchShape& shape, StepExecutor& executor)
    : backend_(session.backend()),
      layout_(layout),
      shape_(shape),
      executor_(executor),
      num_caches_(session.options().gpus.is_lone() ? 1 : session.options().split.tp),
      batch_(shape.sequences()) {}

Result<BatchTimes> BatchRun::run(std::span<const int32_t> prompts, int64_t output_len, bool profile,
                                 const InterruptGuard& guard) {
  BatchTimes times;
  HADAL_RETURN_IF_ERROR(shape_.fill_cache ? begin_filled(prompts) : prefill(prompts, times, false));
  int64_t step = 0, num_tokens = 0;
  for (; step + 1 < output_len && !guard.interrupted(); ++step) {
    HADAL_ASSIGN_OR_RETURN(const StepOutput output, decode(step, false));
    for (const SampledToken& sampled : output.samples) num_tokens += 1 + std::ssize(sampled.further);
    times.decode_s.push_back(wall_s_);
    times.decode_gpu_s.push_back(output.run_s);
    times.exchanges = output.exchanges;
    times.distinct_experts += mean_of(output.distinct_experts);
    times.decode_bytes += static_cast<double>(bytes_read(output, step));
  }
  if (!times.decode_s.empty()) {
    times.accept_length =
        static_cast<double>(num_tokens) / static_cast<double>(std::ssize(times.decode_s) * shape_.batch_size);
    times.distinct_experts /= static_cast<double>(times.decode_s.size());
    times.decode_bytes /= static_cast<double>(times.decode_s.size());
  }
  if (profile && shape_.output_len > 1) {
    HADAL_ASSIGN_OR_RETURN(StepOutput output, decode(step, true));
    times.decode_ops = std::move(output.ops);
  }
  if (profile && !shape_.fill_cache) {
    BatchTimes again;
    HADAL_RETURN_IF_ERROR(prefill(prompts, again, true));
    times.prefill_ops = std::move(again.prefill_ops);
  }
  return times;
}

// The bytes of a decode step without speculation; those that the NextN layer reads are not counted.
int64_t BatchRun::bytes_read(const StepOutput& output, int64_t step) {
  const ModelConfig& config = backend_.config();
  const bool selects = config.selects_keys(shape_.most_input() + step + 1);
  return backend_.weight_bytes_read(output.distinct_experts, selects) +
         num_caches_ * (kv_bytes_read(config, layout_, shape_.short_rows(), shape_.input_len + step + 1) +
                        kv_bytes_read(config, layout_, shape_.long_rows, shape_.long_input_len + step + 1));
}

Result<void> BatchRun::prefill(std::span<const int32_t> prompts, BatchTimes& times, bool profile) {
  const auto num_short = static_cast<size_t>(shape_.short_rows() * shape_.input_len);
  HADAL_ASSIGN_OR_RETURN(const bool stop, prefill_sequences(prompts.first(num_short), 0, shape_.short_rows(),
                                                            shape_.input_len, times, profile));
  if (stop || shape_.long_rows == 0) return {};
  HADAL_RETURN_IF_ERROR(prefill_sequences(prompts.subspan(num_short), shape_.short_rows(), shape_.long_rows,
                                          shape_.long_input_len, times, profile));
  return {};
}

Result<bool> BatchRun::prefill_sequences(std::span<const int32_t> prompts, int64_t first, int64_t count,
                                         int64_t length, BatchTimes& times, bool profile) {
  const int64_t most = backend_.device() == DeviceType::kCuda ? kGpuPrefillTokens : count * length;
  const int64_t at_once = std::max<int64_t>(most / length, 1);
  const int64_t chunk = std::min(length, most);
  for (int64_t done = 0; done < count; done += at_once) {
    const int64_t together = std::min(at_once, count - done);
    for (int64_t begin = 0; begin < length; begin += chunk) {
      const int64_t part = std::min(chunk, length - begin);
      // A step has a part of one sequence's prompt, or the whole prompts of several sequences.
      const auto ids = prompts.subspan(static_cast<size_t>(done * length + begin),
                                       static_cast<size_t>(together == 1 ? part : together * part));
      StagedStep staged;
      staged.batch = batch_.prefill(ids, begin, false, first + done, together);
      if (shape_.width > 0) staged.next_ids = tokens_after(ids, together);
      for (int64_t i = 0; i < together; ++i) {
        const auto slot = static_cast<int32_t>(first + done + i);
        if (begin == 0) staged.slots.push_back(greedy_start(slot));
        staged.samples.push_back(
            {.slot = slot, .logit_row = static_cast<int32_t>(i), .position = begin + part});
      }
      staged.profile = profile;
      HADAL_ASSIGN_OR_RETURN(StepOutput output, carry_out(std::move(staged)));
      if (profile) {
        times.prefill_ops = std::move(output.ops);
        return true;
      }
      times.prefill_s += wall_s_;
      times.prefill_gpu_s += output.run_s;
    }
  }
  return false;
}

// These rows are on the path of decode, as tokens are that a retracted request computes again.
Result<void> BatchRun::begin_filled(std::span<const int32_t> prompts) {
  std::vector<int32_t> ids;
  size_t end = 0;
  for (int64_t sequence = 0; sequence < shape_.batch_size; ++sequence) {
    end += static_cast<size_t>(shape_.input_len_of(sequence));
    ids.push_back(prompts[end - 1]);
  }
  StagedStep staged = decode_step(ids, -1);
  if (shape_.width > 0) staged.next_ids.assign(ids.size(), -1);
  for (int32_t slot = 0; slot < static_cast<int32_t>(shape_.batch_size); ++slot)
    staged.slots.push_back(greedy_start(slot));
  HADAL_RETURN_IF_ERROR(carry_out(std::move(staged)));
  return {};
}

StagedStep BatchRun::decode_step(std::span<const int32_t> ids, int64_t step) {
  std::vector<int64_t> positions;
  StagedStep staged;
  for (int32_t slot = 0; slot < static_cast<int32_t>(shape_.batch_size); ++slot) {
    positions.push_back(shape_.input_len_of(slot) + step);
    staged.samples.push_back({.slot = slot, .logit_row = slot, .position = positions.back() + 1});
  }
  staged.batch = batch_.decode(ids, positions);
  return staged;
}

Result<StepOutput> BatchRun::decode(int64_t step, bool profile) {
  if (shape_.width > 0) return verify(profile);
  StagedStep staged = decode_step(std::vector<int32_t>(static_cast<size_t>(shape_.batch_size)), step);
  for (int32_t slot = 0; slot < static_cast<int32_t>(shape_.batch_size); ++slot)
    staged.feeds.push_back({.row = slot, .slot = slot});
  staged.profile = profile;
  return carry_out(std::move(staged));
}

// The step that verifies drafts has no positions, because only the executor tracks the lengths.
Result<StepOutput> BatchRun::verify(bool profile) {
  StagedStep staged;
  staged.batch = batch_.pages_only();
  for (int32_t slot = 0; slot < static_cast<int32_t>(shape_.batch_size); ++slot) {
    const int64_t most = shape_.tokens_for(shape_.input_len_of(slot));
    staged.verifies.push_back({.sample = slot,
                               .seq_idx = slot,
                               .max_rows = static_cast<int32_t>(shape_.width),
                               .end_position = most,
                               .most_keys = most});
    staged.samples.push_back({.slot = slot});
  }
  staged.profile = profile;
  return carry_out(std::move(staged));
}

Result<StepOutput> BatchRun::carry_out(StagedStep staged) {
  staged.step = ++last_step_;
  const auto begin = std::chrono::steady_clock::now();
  executor_.launch(std::move(staged));
  StepOutput output = executor_.wait();
  wall_s_ = seconds_since(begin);
  if (!output.error.empty()) return make_status(StatusCode::kInternal, "{}", output.error);
  for (const SampledToken& sampled : output.samples) {
    if (!sampled.error.empty()) return make_status(StatusCode::kInternal, "{}", sampled.error);
  }
  return output;
}

}  // namespace hadal::cli
