#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "base/available_memory.h"
#include "base/log.h"
#include "base/philox.h"
#include "engine/batch_builder.h"
#include "engine/model_runner.h"
#include "engine/sampler.h"
#include "engine/sequence.h"

namespace hadal {
namespace {

int64_t pages_for(int64_t num_tokens) {
  return (num_tokens + kPageSize - 1) / kPageSize;
}

double seconds(Sequence::Clock::time_point from, Sequence::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

bool has_nan(std::span<const float> values) {
  bool found = false;
  for (const float value : values) found |= std::isnan(value);
  return found;
}

class SynchronousEngine final : public Engine {
 public:
  SynchronousEngine(Model& model, ThreadPool& pool, const EngineOptions& options)
      : model_(model),
        options_(options),
        pages_(options.max_total_tokens / kPageSize),
        runner_(model, pool, options.max_total_tokens / kPageSize, options.kv_layout, options.kernels) {}

  Result<RequestId> submit(GenerateRequest request) override;
  std::optional<TokenChunk> stream(RequestId id) override;
  std::optional<TokenChunk> poll(RequestId id) override;
  void abort(RequestId id) override;
  bool step() override;
  int64_t context_length() const override { return options_.context_length; }
  int64_t max_total_tokens() const override { return pages_.num_pages() * kPageSize; }

 private:
  Result<void> check(const GenerateRequest& request) const;
  void admit();
  bool run_step();
  std::optional<TokenChunk> take_chunk(RequestId id);
  void collect(const StepItem& item, std::span<const float> logits);
  void add_prompt_logprobs(Sequence& sequence, const StepItem& item, int64_t chunk_end,
                           std::span<const float> logits);
  void take_token(Sequence& sequence, std::span<const float> logits);
  void finish(Sequence& sequence, FinishReason reason, std::string matched = {});
  void remove_finished();

  // Guards everything below: a submit or an abort waits for the step in hand.
  std::mutex mutex_;
  Model& model_;
  EngineOptions options_;
  PagePool pages_;
  ModelRunner runner_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>>
      sequences_;                  // until the final chunk was handed out
  std::deque<Sequence*> waiting_;  // in order of arrival
  std::vector<Sequence*> running_;
  RequestId next_id_ = 1;
  ForwardBatch batch_;
  SamplerScratch scratch_;
};

Result<void> SynchronousEngine::check(const GenerateRequest& request) const {
  const int64_t vocab_size = model_.config().vocab_size;
  HADAL_RETURN_IF_ERROR(validate(request.sampling, vocab_size));
  const auto prompt_len = static_cast<int64_t>(request.input_ids.size());
  if (prompt_len == 0) return invalid_argument("input_ids is empty; at least one token is needed");
  for (const int32_t token : request.input_ids) {
    if (token < 0 || token >= vocab_size) {
      return invalid_argument("input_ids holds {}; allowed: 0 to {}", token, vocab_size - 1);
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
  if (pages_for(total) > pages_.num_pages()) {
    return make_status(StatusCode::kResourceExhausted,
                       "prompt and max_new_tokens are {} tokens; the KV cache holds {} (max-total-tokens)",
                       total, pages_.num_pages() * kPageSize);
  }
  const LogprobOptions& logprobs = request.logprobs;
  if (logprobs.top_num < 0 || logprobs.top_num > 128) {
    return invalid_argument("top_logprobs_num is {}; allowed: 0 to 128", logprobs.top_num);
  }
  if (logprobs.start < -1 || logprobs.start >= prompt_len) {
    return invalid_argument("logprob_start_len is {}; allowed: -1 to {}", logprobs.start, prompt_len - 1);
  }
  return {};
}

Result<RequestId> SynchronousEngine::submit(GenerateRequest request) {
  HADAL_RETURN_IF_ERROR(check(request));
  const std::lock_guard lock(mutex_);
  const RequestId id = next_id_++;
  const uint64_t own_seed = philox4x32_10(
      {static_cast<uint32_t>(id), static_cast<uint32_t>(id >> 32), 0, 1},
      {static_cast<uint32_t>(options_.random_seed), static_cast<uint32_t>(options_.random_seed >> 32)})[0];
  const uint64_t seed = request.sampling.seed.value_or(own_seed);
  auto sequence = std::make_unique<Sequence>(id, std::move(request), seed);
  waiting_.push_back(sequence.get());
  sequences_.emplace(id, std::move(sequence));
  return id;
}

std::optional<TokenChunk> SynchronousEngine::stream(RequestId id) {
  const std::lock_guard lock(mutex_);
  while (sequences_.contains(id)) {
    if (std::optional<TokenChunk> chunk = take_chunk(id)) return chunk;
    HADAL_CHECK(run_step(), "request {} waits but there is nothing to run", id);
  }
  return std::nullopt;
}

std::optional<TokenChunk> SynchronousEngine::poll(RequestId id) {
  const std::lock_guard lock(mutex_);
  return take_chunk(id);
}

// What there is to say of a request since the last time; its final chunk also forgets it.
std::optional<TokenChunk> SynchronousEngine::take_chunk(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return std::nullopt;
  Sequence& sequence = *found->second;
  if (!sequence.finished && sequence.pending.token_ids.empty()) return std::nullopt;
  TokenChunk chunk = std::exchange(sequence.pending, {});
  chunk.prompt_tokens = sequence.prompt_len;
  chunk.completion_tokens = sequence.num_generated();
  if (sequence.finished) sequences_.erase(found);
  return chunk;
}

void SynchronousEngine::abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->finished) return;
  finish(*found->second, FinishReason::kAbort, "aborted");
  remove_finished();
}

bool SynchronousEngine::step() {
  const std::lock_guard lock(mutex_);
  return run_step();
}

// In order of arrival, each with all the pages it can ever need: a running request never waits for memory.
void SynchronousEngine::admit() {
  while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < options_.max_running_requests) {
    Sequence& sequence = *waiting_.front();
    const int64_t needed = pages_for(sequence.max_len());
    if (needed > pages_.num_free()) return;
    for (int64_t i = 0; i < needed; ++i) sequence.pages.push_back(pages_.allocate().value());
    sequence.started = Sequence::Clock::now();
    waiting_.pop_front();
    running_.push_back(&sequence);
  }
}

bool SynchronousEngine::run_step() {
  admit();
  if (running_.empty()) return false;
  const std::vector<StepItem> items = plan_step(running_, options_.chunked_prefill_size);
  build_batch(items, batch_);
  try {
    const std::span<const float> logits = runner_.forward(batch_);
    for (const StepItem& item : items) {
      try {
        collect(item, logits);
      } catch (const Error& error) {  // a grammar's broken promise, say: the others have their logits
        log_error("request failed: id={} error=\"{}\"", item.sequence->id, error.what());
        finish(*item.sequence, FinishReason::kAbort, error.what());
      }
    }
  } catch (const std::exception& error) {  // the batch's requests fail, the engine goes on
    log_error("step failed: requests={} error=\"{}\"", items.size(), error.what());
    for (const StepItem& item : items) finish(*item.sequence, FinishReason::kAbort, error.what());
  }
  remove_finished();
  return true;
}

void SynchronousEngine::collect(const StepItem& item, std::span<const float> logits) {
  Sequence& sequence = *item.sequence;
  const int64_t vocab_size = model_.config().vocab_size;
  const int64_t chunk_end = sequence.num_computed + item.num_tokens;
  const std::span<const float> own =
      logits.subspan(item.first_logit_row * vocab_size, item.num_logit_rows * vocab_size);
  const bool was_prefill = sequence.in_prefill();
  if (has_nan(own)) {  // a broken checkpoint; the other sequences of the step go on
    finish(sequence, FinishReason::kAbort, "the model's logits hold NaN");
    return;
  }
  if (was_prefill) add_prompt_logprobs(sequence, item, chunk_end, own);
  sequence.num_computed = chunk_end;
  if (sequence.in_prefill()) return;
  if (was_prefill) sequence.first_token = Sequence::Clock::now();
  if (sequence.request.sampling.max_new_tokens == 0) {
    finish(sequence, FinishReason::kLength);
    return;
  }
  take_token(sequence, own.last(vocab_size));
}

void SynchronousEngine::add_prompt_logprobs(Sequence& sequence, const StepItem& item, int64_t chunk_end,
                                            std::span<const float> logits) {
  const LogprobOptions& options = sequence.request.logprobs;
  if (!options.enabled || options.start < 0) return;
  const int64_t vocab_size = model_.config().vocab_size;
  for (int64_t row = 0; row < item.num_logit_rows; ++row) {
    const int64_t scored = chunk_end - item.num_logit_rows + row + 1;  // the token these logits predict
    if (scored >= sequence.prompt_len) break;
    sequence.pending.prompt_logprobs.push_back(token_logprob(logits.subspan(row * vocab_size, vocab_size),
                                                             sequence.tokens[scored], options.top_num));
  }
}

void SynchronousEngine::take_token(Sequence& sequence, std::span<const float> logits) {
  const SamplingParams& sampling = sequence.request.sampling;
  std::vector<int32_t> eos;
  if (!sampling.ignore_eos) {
    for (const int64_t id : model_.config().eos_token_ids) {
      // A cut vocabulary leaves the config's end tokens outside of it.
      if (id < static_cast<int64_t>(logits.size())) eos.push_back(static_cast<int32_t>(id));
    }
  }
  std::vector<uint32_t> allowed;
  if (sequence.request.constraint) {
    allowed.assign((logits.size() + 31) / 32, 0);
    sequence.request.constraint->fill_mask(allowed);
  }
  const auto position = static_cast<int64_t>(sequence.tokens.size());
  const int32_t token =
      sample_token(logits, sampling, sequence.history, eos, allowed, sequence.seed, position, scratch_);

  sequence.tokens.push_back(token);
  sequence.history.add_generated(token);
  sequence.pending.token_ids.push_back(token);
  if (sequence.request.logprobs.enabled) {
    sequence.pending.logprobs.push_back(token_logprob(logits, token, sequence.request.logprobs.top_num));
  }
  if (sequence.request.constraint) {
    HADAL_CHECK(sequence.request.constraint->accept_token(token), "the grammar refuses token {} it allowed",
                token);
  }
  const bool is_stop = std::find(eos.begin(), eos.end(), token) != eos.end() ||
                       std::find(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end(), token) !=
                           sampling.stop_token_ids.end();
  if (is_stop) {
    sequence.pending.matched_token = token;
    finish(sequence, FinishReason::kStopToken);
    return;
  }
  if (sequence.request.stop) {
    if (std::optional<std::string> matched = sequence.request.stop->on_token(token)) {
      finish(sequence, FinishReason::kStopCondition, std::move(*matched));
      return;
    }
  }
  if (sequence.num_generated() >= sampling.max_new_tokens) finish(sequence, FinishReason::kLength);
}

void SynchronousEngine::finish(Sequence& sequence, FinishReason reason, std::string matched) {
  if (sequence.finished) return;
  const auto now = Sequence::Clock::now();
  const bool started = sequence.started != Sequence::Clock::time_point{};
  const bool has_first = sequence.first_token != Sequence::Clock::time_point{};
  sequence.finished = true;
  sequence.pending.finish_reason = reason;
  sequence.pending.matched = std::move(matched);
  sequence.pending.timings = {
      .queue_s = seconds(sequence.submitted, started ? sequence.started : now),
      .prefill_s = started ? seconds(sequence.started, has_first ? sequence.first_token : now) : 0.0,
      .decode_s = has_first ? seconds(sequence.first_token, now) : 0.0};
  for (const PageId page : sequence.pages) pages_.release(page);
  sequence.pages.clear();
}

void SynchronousEngine::remove_finished() {
  const auto is_finished = [](const Sequence* sequence) { return sequence->finished; };
  std::erase_if(running_, is_finished);
  std::erase_if(waiting_, is_finished);
}

}  // namespace

int64_t default_max_total_tokens(const ModelConfig& config, KvLayout layout, int64_t context_length) {
  const auto quarter = static_cast<int64_t>(available_memory_bytes().value_or(0) / 4);
  const int64_t affordable = quarter / (layout.row_bytes() * config.num_hidden_layers);
  return std::max<int64_t>(pages_for(std::min(affordable, 2 * context_length)), 1) * kPageSize;
}

Result<std::unique_ptr<Engine>> Engine::create(Model& model, ThreadPool& pool, const EngineOptions& options) {
  EngineOptions resolved = options;
  const ModelConfig& config = model.config();
  if (resolved.context_length == 0) resolved.context_length = config.max_position_embeddings;
  if (resolved.context_length < 2 || resolved.context_length > config.max_position_embeddings) {
    return invalid_argument("context-length is {}; allowed: 2 to {}, the model's max_position_embeddings",
                            options.context_length, config.max_position_embeddings);
  }
  if (resolved.max_running_requests < 1) {
    return invalid_argument("max-running-requests is {}; allowed: 1 or more", options.max_running_requests);
  }
  if (resolved.chunked_prefill_size < 1) {
    return invalid_argument("chunked-prefill-size is {}; allowed: 1 or more", options.chunked_prefill_size);
  }
  const int64_t token_bytes = resolved.kv_layout.row_bytes() * config.num_hidden_layers;
  const auto available = static_cast<int64_t>(available_memory_bytes().value_or(0));
  if (resolved.max_total_tokens == 0) {
    resolved.max_total_tokens = default_max_total_tokens(config, resolved.kv_layout, resolved.context_length);
  }
  if (resolved.max_total_tokens < 1) {
    return invalid_argument("max-total-tokens is {}; allowed: 1 or more", options.max_total_tokens);
  }
  // The system would hand out more than there is, and end the process once it is touched.
  if (available > 0 && resolved.max_total_tokens > std::max(available / token_bytes, int64_t{kPageSize})) {
    return make_status(
        StatusCode::kResourceExhausted,
        "max-total-tokens is {}; allowed: at most {}, by {:.1f} GB of memory and {} bytes a token",
        resolved.max_total_tokens, available / token_bytes, static_cast<double>(available) * 1e-9,
        token_bytes);
  }
  resolved.max_total_tokens = pages_for(resolved.max_total_tokens) * kPageSize;
  try {
    return std::unique_ptr<Engine>(std::make_unique<SynchronousEngine>(model, pool, resolved));
  } catch (const Error& error) {
    return make_status(StatusCode::kResourceExhausted,
                       "a KV cache of {} tokens ({} bytes a token) does not fit: {}; lower max-total-tokens",
                       resolved.max_total_tokens, token_bytes, error.what());
  }
}

}  // namespace hadal
