// This is an executor without a model: the token at position p is token_at(p), or the lowest one that the
// mask allows. Steps can be made to fail or to hang.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/step_executor.h"

namespace hadal::testing {

inline int32_t token_at(int64_t position) {
  return static_cast<int32_t>(2 + position * 7 % 300);
}

// Returns the config of engines over a FakeExecutor.
inline ModelConfig fake_config(int64_t vocab_size = 320) {
  ModelConfig config;
  config.vocab_size = vocab_size;
  config.max_position_embeddings = 1 << 20;
  config.eos_token_ids = {1};
  return config;
}

class FakeExecutor final : public StepExecutor {
 public:
  struct Hooks {
    // This is called on the engine thread before the step's output is returned; its result becomes the step's
    // error.
    std::function<std::string(const StagedStep&)> on_wait;
    std::function<void(const StagedStep&)> on_launch;
    std::function<bool(const StagedStep&)> is_graphed;  // whether the step's output says that a graph ran;
                                                        // false if unset
    bool errors_are_fatal = false;                      // no step after a failed one can succeed
  };
  FakeExecutor() = default;
  explicit FakeExecutor(Hooks hooks) : hooks_(std::move(hooks)) {}

  void launch(StagedStep step) override {
    if (hooks_.on_launch) hooks_.on_launch(step);
    steps_.push_back(std::move(step));
  }
  void set_masks(int64_t step, std::vector<uint32_t> masks) override { masks_[step] = std::move(masks); }

  StepOutput wait() override {
    const StagedStep step = std::move(steps_.front());
    steps_.pop_front();
    StepOutput output;
    output.step = step.step;
    output.graphed = hooks_.is_graphed && hooks_.is_graphed(step);
    if (hooks_.on_wait) output.error = hooks_.on_wait(step);
    output.fatal = hooks_.errors_are_fatal && !output.error.empty();
    if (!output.error.empty()) return output;
    const std::vector<uint32_t> masks = std::move(masks_[step.step]);
    masks_.erase(step.step);
    size_t word = 0;
    constexpr size_t kWords = 10;
    output.samples.reserve(step.samples.size());
    for (const SampleSpec& spec : step.samples) {
      SampledToken sampled{.slot = spec.slot, .token = token_at(spec.position)};
      if (spec.constrained) {
        int32_t token = 0;
        while ((masks.at(word + token / 32) >> (token % 32) & 1U) == 0) ++token;
        sampled.token = token;
        word += kWords;
      }
      output.samples.push_back(std::move(sampled));
    }
    for (const PromptScore& score : step.scores) {
      output.prompt_scores.emplace_back(score.slot, TokenLogprob{.token_id = score.token_id});
    }
    return output;
  }

 private:
  Hooks hooks_;
  std::deque<StagedStep> steps_;
  std::map<int64_t, std::vector<uint32_t>> masks_;
};

// One thread waits at a Door until another opens it.
class Door {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
};

}  // namespace hadal::testing
