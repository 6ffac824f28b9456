#include "engine/cpu/cpu_executor.h"

#include <chrono>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/memory_reserve.h"
#include "base/simulated_acceptance.h"
#include "comm/communicator.h"

namespace hadal {
namespace {

// Sets the error. If there is no memory for `what`, the text is one that is too short to need an allocation.
void set_error(StepOutput& output, const char* what) noexcept {
  try {
    output.error = what;
  } catch (...) {
    output.error = "no memory";
  }
}

}  // namespace

CpuExecutor::CpuExecutor(std::unique_ptr<HostRunner> runner, ThreadPool& pool, bool speculates,
                         std::vector<double> simulated_acceptance, const DraftShape& draft_shape)
    : pool_(pool),
      runner_(std::move(runner)),
      vocab_size_(runner_->config().vocab_size),
      simulated_acceptance_(std::move(simulated_acceptance)),
      scratch_(static_cast<size_t>(pool.num_threads())) {
  if (speculates) speculation_.emplace(*runner_, pool_, draft_shape);
  thread_ = std::thread([this] { work(); });
}

CpuExecutor::~CpuExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  to_worker_.notify_all();
  thread_.join();
}

void CpuExecutor::launch(StagedStep step) {
  {
    const std::lock_guard lock(mutex_);
    HADAL_CHECK_LT(num_launched_ - num_taken_, kMaxInFlight);
    steps_[num_launched_++ % kMaxInFlight] = std::move(step);
  }
  to_worker_.notify_one();
}

std::vector<std::vector<DraftNode>> CpuExecutor::wait_drafts(int64_t step) {
  if (!speculation_) return {};
  std::unique_lock lock(mutex_);
  to_engine_.wait(lock, [&] { return drafted_step_ >= step; });
  return std::exchange(drafts_, {});
}

void CpuExecutor::tell_drafts(const StagedStep& step) {
  std::vector<std::vector<DraftNode>> drafts;
  for (const SampleSpec& spec : step.samples) {
    if (!spec.constrained) continue;
    drafts.emplace_back();
    if (spec.num_rows > 1) drafts.back() = slots_[spec.slot].drafts;
  }
  tell_drafts(step.step, std::move(drafts));
}

void CpuExecutor::tell_drafts(int64_t step, std::vector<std::vector<DraftNode>> drafts) noexcept {
  {
    const std::lock_guard lock(mutex_);
    drafted_step_ = step;
    drafts_ = std::move(drafts);
  }
  to_engine_.notify_one();
}

void CpuExecutor::set_masks(int64_t step, std::vector<uint32_t> masks) {
  {
    const std::lock_guard lock(mutex_);
    masks_[step] = std::move(masks);
  }
  to_worker_.notify_one();
}

StepOutput CpuExecutor::wait() {
  std::unique_lock lock(mutex_);
  HADAL_CHECK_GT(num_launched_, num_taken_);
  to_engine_.wait(lock, [&] { return num_ended_ > num_taken_; });
  StepOutput output = std::move(outputs_[num_taken_++ % kMaxInFlight]);
  // A step that failed has not used its masks, which were set before the engine waits for the step.
  masks_.erase(masks_.begin(), masks_.upper_bound(output.step));
  return output;
}

// The worker sleeps, because no step is in flight.
void CpuExecutor::fill_cache(uint64_t seed) {
  const std::lock_guard lock(mutex_);
  HADAL_CHECK_EQ(num_launched_, num_taken_);
  runner_->fill_cache(seed);
}

std::vector<uint32_t> CpuExecutor::wait_masks(int64_t step) {
  std::unique_lock lock(mutex_);
  to_worker_.wait(lock, [&] { return stop_ || masks_.count(step) > 0; });
  HADAL_CHECK(masks_.count(step) > 0, "stopped while step {} waited for its masks", step);
  return std::move(masks_.extract(step).mapped());
}

void CpuExecutor::work() {
  const MemoryReserve::Scope reserve;  // a step belongs to several requests, so it may use the reserve
  while (true) {
    std::unique_lock lock(mutex_);
    to_worker_.wait(lock, [&] { return stop_ || num_launched_ > num_begun_; });
    if (num_launched_ == num_begun_) return;
    StagedStep step = std::move(steps_[num_begun_++ % kMaxInFlight]);
    lock.unlock();

    StepOutput output = run(step);

    lock.lock();
    outputs_[num_ended_++ % kMaxInFlight] = std::move(output);
    lock.unlock();
    to_engine_.notify_one();
  }
}

StepOutput CpuExecutor::run(StagedStep& step) {
  StepOutput output;
  output.step = step.step;
  output.begin = std::chrono::steady_clock::now();
  try {
    start_slots(step);
    runner_->copy_pages(step.copies);
    for (const TokenFeed& feed : step.feeds) step.batch.token_ids[feed.row] = slots_[feed.slot].last_token;
    run_forward(step, output);
  } catch (const RankLost& error) {  // the ranks' state is lost, too
    set_error(output, error.what());
    output.fatal = true;
  } catch (const std::exception& error) {
    set_error(output, error.what());
  }
  if (speculation_ && !output.error.empty()) {
    forget_drafts(step);
    tell_drafts(step.step, {});
  }
  output.run_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - output.begin).count();
  return output;
}

void CpuExecutor::run_forward(StagedStep& step, StepOutput& output) {
  output.samples.resize(step.samples.size());
  if (speculation_) {
    speculation_->expand(step, slots_);
    tell_drafts(step);
  }
  if (step.batch.num_tokens() == 0) return;  // all its requests have ended
  ForwardRows rows;
  if (speculation_) {
    rows = runner_->forward_with_hidden(step.batch);
  } else {
    rows.logits = runner_->forward(step.batch);
  }
  output.distinct_experts = runner_->expert_stats().distinct_experts;
  score_prompts(step, rows.logits, output);
  sample(step, rows.logits, output);
  if (!speculation_) return;
  speculation_->commit(step, output);
  speculation_->follow(step, rows.hidden, output, slots_);
}

// After a step has failed, the state of its slots has no meaning.
void CpuExecutor::forget_drafts(const StagedStep& step) noexcept {
  for (const SampleSpec& spec : step.samples) {
    if (static_cast<size_t>(spec.slot) < slots_.size()) slots_[spec.slot].length = 0;
  }
}

void CpuExecutor::start_slots(StagedStep& step) {
  for (SlotStart& start : step.slots) {
    if (static_cast<size_t>(start.slot) >= slots_.size()) slots_.resize(start.slot + 1);
    slots_[start.slot] = {.start = std::move(start)};
  }
}

void CpuExecutor::score_prompts(const StagedStep& step, std::span<const float> logits, StepOutput& output) {
  output.prompt_scores.resize(step.scores.size());
  pool_.parallel_for(static_cast<int64_t>(step.scores.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const PromptScore& score = step.scores[i];
      const std::span<const float> row = logits.subspan(score.logit_row * vocab_size_, vocab_size_);
      output.prompt_scores[i] = {
          score.slot, has_nan(row)
                          ? TokenLogprob{.token_id = score.token_id, .logprob = std::nanf(""), .top = {}}
                          : token_logprob(row, score.token_id, slots_[score.slot].start.logprobs.top_num)};
    }
  });
}

// Rows without a constraint do not wait for masks.
void CpuExecutor::sample(const StagedStep& step, std::span<const float> logits, StepOutput& output) {
  free_.clear();
  constrained_.clear();
  for (size_t i = 0; i < step.samples.size(); ++i) {
    (step.samples[i].constrained ? constrained_ : free_).push_back(static_cast<int32_t>(i));
  }
  sample_rows(step, logits, free_, {}, output);
  if (constrained_.empty()) return;
  const std::vector<uint32_t> masks = wait_masks(step.step);
  sample_rows(step, logits, constrained_, masks, output);
}

void CpuExecutor::sample_rows(const StagedStep& step, std::span<const float> logits,
                              std::span<const int32_t> rows, std::span<const uint32_t> masks,
                              StepOutput& output) {
  // A sample has one mask, and one more for each of its drafts.
  const size_t mask_words = masks.empty() ? 0 : (static_cast<size_t>(vocab_size_) + 31) / 32;
  first_masks_.assign(1, 0);
  for (const int32_t row : rows)
    first_masks_.push_back(first_masks_.back() +
                           static_cast<size_t>(std::max(step.samples[row].num_rows, 1)));
  HADAL_CHECK_EQ(masks.size(), masks.empty() ? 0 : first_masks_.back() * mask_words);
  pool_.parallel_for(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end, int thread_idx) {
    for (int64_t i = begin; i < end; ++i) {
      const SampleSpec& spec = step.samples[rows[i]];
      sample_rows_of(
          spec, logits.subspan(spec.logit_row * vocab_size_),
          masks.subspan(first_masks_[i] * mask_words, (first_masks_[i + 1] - first_masks_[i]) * mask_words),
          scratch_[thread_idx], output.samples[rows[i]]);
    }
  });
}

// The row after a draft that was not accepted has no meaning, so NaN in it is no fault. NaN after an accepted
// draft is found by the next step, which computes that row again. The same holds for a row without a mask.
void CpuExecutor::sample_rows_of(const SampleSpec& spec, std::span<const float> logits,
                                 std::span<const uint32_t> masks, SamplerScratch& scratch,
                                 SampledToken& result) {
  const size_t mask_words = masks.size() / static_cast<size_t>(std::max(spec.num_rows, 1));
  CpuSlot& slot = slots_[spec.slot];
  result.slot = spec.slot;
  if (spec.num_rows == 0) return;
  int32_t row = 0;
  for (int64_t depth = 0; depth == 0 || row > 0; ++depth) {
    const std::span<const float> row_logits = logits.subspan(row * vocab_size_, vocab_size_);
    const std::span<const uint32_t> allowed = masks.subspan(row * mask_words, mask_words);
    const auto is_zero = [](uint32_t word) { return word == 0; };
    if (depth > 0 && spec.constrained && std::all_of(allowed.begin(), allowed.end(), is_zero)) return;
    if (has_nan(row_logits)) {  // a broken checkpoint; the other rows of the step continue
      if (depth == 0) result.error = "the model's logits contain NaN";
      return;
    }
    ChosenToken chosen = sample_row(slot, spec.position + depth, row_logits, allowed, scratch);
    chosen.row = row;
    row = accepted_row(spec, row, depth, chosen.token);
    if (depth == 0) {
      result.token = chosen.token;
      result.logprob = std::move(chosen.logprob);
    } else {
      result.further.push_back(std::move(chosen));
    }
  }
}

// With a grammar, acceptance is not simulated, because the masks after a draft were made for that draft.
int32_t CpuExecutor::accepted_row(const SampleSpec& spec, int32_t row, int64_t depth, int32_t token) const {
  if (spec.num_rows == 1) return 0;  // only a verification has drafts
  const CpuSlot& slot = slots_[spec.slot];
  if (simulated_acceptance_.empty() || spec.constrained) return accepted_child(slot.drafts, row, token);
  const bool accepts = depth < std::ssize(simulated_acceptance_) &&
                       simulates_acceptance(slot.start.seed, static_cast<uint64_t>(spec.position + depth),
                                            simulated_acceptance_[depth]);
  return accepts ? best_child(slot.drafts, row) : 0;
}

ChosenToken CpuExecutor::sample_row(CpuSlot& slot, int64_t position, std::span<const float> logits,
                                    std::span<const uint32_t> allowed, SamplerScratch& scratch) const {
  SlotStart& start = slot.start;
  ChosenToken chosen;
  chosen.token = sample_token(logits, start.sampling, start.history, start.eos_token_ids, allowed, start.seed,
                              position, scratch);
  if (start.logprobs.enabled) chosen.logprob = token_logprob(logits, chosen.token, start.logprobs.top_num);
  slot.last_token = chosen.token;
  start.history.add_generated(chosen.token);
  return chosen;
}

}  // namespace hadal
