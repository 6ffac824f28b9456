// Measures the engine thread's cost per token: inbox, plan, stage, collect and deliver, with an executor that
// answers at once. Everything except launch and wait is the engine's own work; of launch and wait only the
// copies are measured.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/engine.h"
#include "engine/step_executor.h"

namespace hadal {
namespace {

class InstantExecutor final : public StepExecutor {
 public:
  void launch(StagedStep step) override { steps_.push_back(std::move(step)); }
  void set_masks(int64_t, std::vector<uint32_t>) override {}
  StepOutput wait() override {
    const StagedStep step = std::move(steps_.front());
    steps_.pop_front();
    StepOutput output;
    output.step = step.step;
    output.samples.reserve(step.samples.size());
    for (const SampleSpec& spec : step.samples) {
      output.samples.push_back({.slot = spec.slot, .token = static_cast<int32_t>(2 + spec.position % 1000)});
    }
    return output;
  }

 private:
  std::deque<StagedStep> steps_;
};

class CountingSink final : public ChunkSink {
 public:
  void on_chunks(std::vector<TokenChunk>& chunks) override {
    int64_t finished = 0;
    for (const TokenChunk& chunk : chunks) finished += chunk.finish_reason != FinishReason::kNone ? 1 : 0;
    if (finished == 0) return;
    const std::lock_guard lock(mutex_);
    finished_ += finished;
    changed_.notify_all();
  }
  void wait(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ >= count; });
    finished_ = 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t finished_ = 0;
};

// range(0) requests of 100 prompt and 500 generated tokens run together. If range(1) is set, each request has
// a sink of its own instead of one for all. If range(2) is set, the overlapped loop runs.
void BM_EngineThread(benchmark::State& state) {
  const int64_t num_requests = state.range(0);
  constexpr int64_t kPrompt = 100;
  constexpr int64_t kGenerated = 500;
  ModelConfig config;
  config.vocab_size = 129280;
  config.max_position_embeddings = 1 << 20;
  config.eos_token_ids = {1};
  EngineOptions options;
  options.max_total_tokens = num_requests * 1024;
  options.max_running_requests = num_requests;
  options.context_length = 1 << 20;
  options.chunked_prefill_size = 1 << 20;
  options.max_prefill_tokens = 1 << 20;
  options.overlap_schedule = state.range(2) != 0;
  options.decode_log_interval = 0;
  auto engine = Engine::create(std::make_unique<InstantExecutor>(), config, options).value();

  double seconds = 0.0;
  int64_t tokens = 0;
  for (auto _ : state) {
    engine->pause();
    const auto shared = std::make_shared<CountingSink>();
    std::vector<std::shared_ptr<CountingSink>> sinks;
    for (int64_t i = 0; i < num_requests; ++i) {
      GenerateRequest request;
      request.input_ids = std::vector<int32_t>(kPrompt, static_cast<int32_t>(10 + i));
      request.sampling.max_new_tokens = kGenerated;
      sinks.push_back(state.range(1) != 0 ? std::make_shared<CountingSink>() : shared);
      request.sink = sinks.back();
      benchmark::DoNotOptimize(engine->submit(std::move(request)).value());
    }
    engine->check_integrity();  // all of them are queued
    const auto begin = std::chrono::steady_clock::now();
    engine->resume();
    if (state.range(1) != 0) {
      for (const auto& sink : sinks) sink->wait(1);
    } else {
      shared->wait(num_requests);
    }
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(elapsed.count());
    seconds += elapsed.count();
    tokens += num_requests * kGenerated;
  }
  state.counters["us_per_token"] = seconds * 1e6 / static_cast<double>(tokens);
  state.counters["tokens_per_s"] = static_cast<double>(tokens) / seconds;
}
BENCHMARK(BM_EngineThread)
    ->ArgNames({"running", "sink_each", "overlap"})
    ->Args({256, 0, 1})
    ->Args({256, 1, 1})
    ->Args({1024, 0, 0})
    ->Args({1024, 0, 1})
    ->Args({1024, 1, 1})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

// GapSink measures the longest time between two chunks of a request, and counts requests that have ended.
class GapSink final : public ChunkSink {
 public:
  void on_chunks(std::vector<TokenChunk>& chunks) override {
    const auto now = std::chrono::steady_clock::now();
    const std::lock_guard lock(mutex_);
    for (const TokenChunk& chunk : chunks) {
      if (chunk.finish_reason != FinishReason::kNone) {
        ++finished_;
      } else if (chunk.request_id == watched_) {
        longest_ = std::max(longest_, now - last_);
        last_ = now;
        has_chunk_ = true;
      }
    }
    changed_.notify_all();
  }
  void watch(RequestId id) {
    std::unique_lock lock(mutex_);
    watched_ = id;
    has_chunk_ = false;
    changed_.wait(lock, [&] { return has_chunk_; });
    longest_ = {};
  }
  // Returns the longest gap in seconds up to the end of `count` requests.
  double wait(int64_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ >= count; });
    return std::chrono::duration<double>(longest_).count();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::chrono::steady_clock::time_point last_;
  std::chrono::steady_clock::duration longest_{};
  RequestId watched_ = 0;
  bool has_chunk_ = false;
  int64_t finished_ = 0;
};

// One request generates while another client does something range(0) times at once: aborts waiting requests,
// or starts choices of a prompt of 100,000 tokens with penalties. The time is the longest gap between two
// tokens.
enum class Burst { kAborts, kPenalisedChoices };
void BM_LongestGap(benchmark::State& state, Burst burst) {
  const int64_t count = state.range(0);
  ModelConfig config;
  config.vocab_size = 129280;
  config.max_position_embeddings = 1 << 28;
  config.eos_token_ids = {1};
  EngineOptions options;
  options.max_total_tokens = 1 << 28;
  options.max_running_requests = burst == Burst::kAborts ? 1 : count + 1;
  options.context_length = 1 << 28;
  options.chunked_prefill_size = 1 << 20;
  options.max_prefill_tokens = 1 << 20;
  options.decode_log_interval = 0;
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 100000; ++i) ids.push_back(2 + i * 7 % 100000);
  const TokenIds long_prompt(ids);
  for (auto _ : state) {
    const auto sink = std::make_shared<GapSink>();
    auto engine = Engine::create(std::make_unique<InstantExecutor>(), config, options).value();
    const auto submit = [&](const TokenIds& prompt, int64_t length) {
      GenerateRequest request;
      request.input_ids = prompt;
      request.sampling.max_new_tokens = length;
      if (length == 1) request.sampling.repetition_penalty = 1.1F;
      request.sink = sink;
      return engine->submit(std::move(request)).value();
    };
    const RequestId working = submit({5, 6, 7}, 1 << 27);
    std::vector<RequestId> waiting;
    if (burst == Burst::kAborts) {
      for (int64_t i = 0; i < count; ++i) waiting.push_back(submit({8, 9}, 1 << 20));
      engine->check_integrity();  // all of them are queued
    }
    sink->watch(working);
    for (const RequestId id : waiting) engine->abort(id);
    for (int64_t i = 0; burst == Burst::kPenalisedChoices && i < count; ++i) submit(long_prompt, 1);
    state.SetIterationTime(sink->wait(count));
  }
}
BENCHMARK_CAPTURE(BM_LongestGap, aborts, Burst::kAborts)
    ->Arg(4096)
    ->Arg(57344)
    ->UseManualTime()
    ->Iterations(3)
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_LongestGap, penalised_choices, Burst::kPenalisedChoices)
    ->Arg(128)
    ->UseManualTime()
    ->Iterations(3)
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hadal

BENCHMARK_MAIN();
