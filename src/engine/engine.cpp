#include "engine/engine.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <thread>
#include <type_traits>
#include <utility>

#include "base/memory_reserve.h"
#include "base/philox.h"
#include "engine/engine_create.h"
#include "engine/loop/engine_loop.h"
#include "engine/loop/mailboxes.h"

namespace hadal {
namespace {

// ThreadedEngine is the public face of the engine: it checks requests on the caller's thread and passes
// everything else to the engine thread.
class ThreadedEngine final : public Engine {
 public:
  ThreadedEngine(std::unique_ptr<StepExecutor> executor, const ModelConfig& config,
                 const EngineOptions& options, std::unique_ptr<PlanRecorder> recorder)
      : options_(options),
        vocab_size_(config.vocab_size),
        gate_(options.max_queued_requests),
        mailboxes_(std::make_shared<Mailboxes>()),
        loop_(std::move(executor), config, options, std::move(recorder), inbox_, gate_) {
    for (const int64_t id : config.eos_token_ids) {
      // If the vocabulary is cut, the config's end tokens may lie outside of it.
      if (id >= 0 && id < vocab_size_) eos_.push_back(static_cast<int32_t>(id));
    }
    thread_ = std::thread([this] { loop_.run(); });
  }

  ~ThreadedEngine() override {
    gate_.close(make_status(StatusCode::kCancelled, "the engine was stopped"));
    inbox_.stop();
    thread_.join();
  }

  Result<QueuePlaces> reserve(int64_t count, uint64_t client) override { return gate_.enter(count, client); }
  Result<RequestId> submit(GenerateRequest request, QueuePlaces& places) override;
  Result<RequestId> submit(GenerateRequest request) override;
  std::optional<TokenChunk> stream(RequestId id) override { return mailboxes_->take(id, std::nullopt); }
  std::optional<TokenChunk> poll(RequestId id, std::chrono::milliseconds timeout) override {
    return mailboxes_->take(id, std::chrono::steady_clock::now() + timeout);
  }
  void abort(RequestId id) override {
    const MemoryReserve::Scope reserve;  // aborting frees memory, so it must not fail
    if (id != 0) inbox_.push({.submit = nullptr, .abort = id, .call = {}});
  }
  void abort_all() override {
    inbox_.push({.submit = nullptr, .abort = 0, .call = [this] {
                   loop_.abort_all(AbortReason::kClient, "aborted");
                 }});
  }
  Result<void> flush_cache() override {
    return on_engine_thread([this] { return loop_.flush_cache(); });
  }
  void pause() override {
    on_engine_thread([this] { set_paused(!draining_); });
  }
  void resume() override {
    on_engine_thread([this] { set_paused(false); });
  }
  bool paused() const override { return paused_.load(); }
  int64_t drain(std::chrono::milliseconds timeout) override;
  EngineStats stats() const override { return loop_.stats(); }
  Result<void> start_profile(int64_t num_steps) override {
    return on_engine_thread([&] { return loop_.start_profile(num_steps); });
  }
  Result<std::string> stop_profile() override {
    HADAL_ASSIGN_OR_RETURN(const StepTrace trace, on_engine_thread([this] { return loop_.stop_profile(); }));
    return trace.render();
  }
  void check_integrity() override {
    std::exception_ptr broken;  // rethrown by the caller, because the engine thread goes on
    on_engine_thread([&] {
      try {
        loop_.check_integrity();
      } catch (...) {
        broken = std::current_exception();
      }
    });
    if (broken) std::rethrow_exception(broken);
  }
  int64_t context_length() const override { return options_.context_length; }
  int64_t max_total_tokens() const override { return options_.max_total_tokens; }
  int64_t max_running_requests() const override { return options_.max_running_requests; }
  int64_t max_queued_requests() const override { return options_.max_queued_requests; }

 private:
  // Runs `body` between two turns and returns its result to the caller. An exception is passed on too, but it
  // also ends the engine.
  template <typename Body>
  auto on_engine_thread(Body body) -> decltype(body()) {
    using Answer = decltype(body());
    const auto promise = std::make_shared<std::promise<Answer>>();
    auto future = promise->get_future();
    inbox_.push({.submit = nullptr, .abort = 0, .call = [promise, &body] {
                   try {
                     if constexpr (std::is_void_v<Answer>) {
                       body();
                       promise->set_value();
                     } else {
                       promise->set_value(body());
                     }
                   } catch (...) {
                     promise->set_exception(std::current_exception());
                     throw;
                   }
                 }});
    return future.get();
  }
  void set_paused(bool paused) {
    loop_.set_paused(paused);
    paused_.store(paused);
  }
  Result<void> check(const GenerateRequest& request) const;
  Result<RequestId> queue(GenerateRequest request, QueuePlaces& places);  // `request` has been checked
  uint64_t own_seed(RequestId id) const;

  const EngineOptions options_;
  const int64_t vocab_size_;
  std::vector<int32_t> eos_;
  std::atomic<RequestId> next_id_{1};
  std::atomic<bool> paused_{false};
  std::atomic<bool> draining_{false};
  Inbox inbox_;
  Gate gate_;
  const std::shared_ptr<Mailboxes> mailboxes_;  // the sink of requests that have none
  EngineLoop loop_;
  std::thread thread_;
};

Result<void> ThreadedEngine::check(const GenerateRequest& request) const {
  HADAL_RETURN_IF_ERROR(validate(request.sampling, vocab_size_));
  const auto prompt_len = static_cast<int64_t>(request.input_ids.size());
  if (prompt_len == 0) return invalid_argument("input_ids is empty; allowed: one token or more");
  for (const int32_t token : request.input_ids) {
    if (token < 0 || token >= vocab_size_) {
      return invalid_argument("input_ids contains {}; allowed: 0 to {}", token, vocab_size_ - 1);
    }
  }
  if (prompt_len >= context_length()) {
    return invalid_argument("the prompt has {} tokens; allowed: fewer than the context length {}", prompt_len,
                            context_length());
  }
  const int64_t total = prompt_len + request.sampling.max_new_tokens;
  if (total > context_length()) {
    return invalid_argument(
        "max_new_tokens is {}; allowed: at most {}, the context length {} less {} prompt tokens",
        request.sampling.max_new_tokens, context_length() - prompt_len, context_length(), prompt_len);
  }
  if (total > max_total_tokens()) {
    return make_status(
        StatusCode::kResourceExhausted,
        "prompt and max_new_tokens need {} tokens; allowed: {}, the KV cache (max-total-tokens)", total,
        max_total_tokens());
  }
  const LogprobOptions& logprobs = request.logprobs;
  if (logprobs.top_num < 0 || logprobs.top_num > 128) {
    return invalid_argument("top_logprobs_num is {}; allowed: 0 to 128", logprobs.top_num);
  }
  if (logprobs.start < -1 || logprobs.start >= prompt_len) {
    return invalid_argument("logprob_start_len is {}; allowed: -1 to {}", logprobs.start, prompt_len - 1);
  }
  if (request.stream_interval < 1) {
    return invalid_argument("stream_interval is {}; allowed: 1 or more", request.stream_interval);
  }
  return {};
}

// Returns the seed of a request that has none of its own.
uint64_t ThreadedEngine::own_seed(RequestId id) const {
  return philox4x32_10(
      {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), 0, 1},
      {static_cast<uint32_t>(options_.random_seed), static_cast<uint32_t>(options_.random_seed >> 32)})[0];
}

Result<RequestId> ThreadedEngine::submit(GenerateRequest request, QueuePlaces& places) {
  HADAL_RETURN_IF_ERROR(check(request));
  return queue(std::move(request), places);
}

Result<RequestId> ThreadedEngine::submit(GenerateRequest request) {
  HADAL_RETURN_IF_ERROR(check(request));
  HADAL_ASSIGN_OR_RETURN(QueuePlaces place, gate_.enter(1, request.client));
  return queue(std::move(request), place);
}

Result<RequestId> ThreadedEngine::queue(GenerateRequest request, QueuePlaces& places) {
  HADAL_CHECK_EQ(places.client(), request.client);
  HADAL_RETURN_IF_ERROR(gate_.use(places));
  // Counts the request as gone from the gate if there is no memory for the rest.
  struct Leaving {
    Gate* gate;
    uint64_t client;
    ~Leaving() {
      if (gate != nullptr) gate->left(false, client);
    }
  } leaving{&gate_, request.client};
  // This is done here, because all requests would wait for the engine thread. The choices of a prompt share
  // its distinct tokens.
  if (uses_prompt_tokens(request.sampling)) request.input_ids.distinct();
  std::vector<int32_t>& stop_ids = request.sampling.stop_token_ids;
  std::sort(stop_ids.begin(), stop_ids.end());
  auto sequence = std::make_unique<Sequence>();
  const RequestId id = next_id_.fetch_add(1);
  sequence->id = id;
  sequence->submitted = Sequence::Clock::now();
  sequence->tokens = TokenSequence(std::move(request.input_ids));
  sequence->prompt_len = static_cast<int64_t>(sequence->tokens.size());
  sequence->seed = request.sampling.seed.value_or(own_seed(id));
  if (!request.sampling.ignore_eos) sequence->eos = eos_;
  if (!request.sink) {
    mailboxes_->open(id);
    request.sink = mailboxes_;
  }
  sequence->request = std::move(request);
  inbox_.push({.submit = std::move(sequence), .abort = 0, .call = {}});
  leaving.gate = nullptr;
  return id;
}

int64_t ThreadedEngine::drain(std::chrono::milliseconds timeout) {
  gate_.close(
      make_status(StatusCode::kCancelled, "the engine is shutting down and accepts no more requests"));
  draining_ = true;
  inbox_.push({.submit = nullptr, .abort = 0, .call = [this] { set_paused(false); }});
  if (gate_.wait_empty(timeout)) return 0;
  return on_engine_thread(
      [this] { return loop_.abort_all(AbortReason::kShutdown, "aborted: the engine is shutting down"); });
}

}  // namespace

std::unique_ptr<Engine> make_engine(std::unique_ptr<StepExecutor> executor, const ModelConfig& config,
                                    const EngineOptions& options, std::unique_ptr<PlanRecorder> recorder) {
  return std::make_unique<ThreadedEngine>(std::move(executor), config, options, std::move(recorder));
}

}  // namespace hadal
