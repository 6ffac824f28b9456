#include "server/generation/generation.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/printable.h"
#include "base/seconds.h"
#include "server/admission/cache_salt.h"
#include "server/admission/memory_costs.h"
#include "server/admission/request_tally.h"
#include "server/generation/chunk_router.h"
#include "server/generation/delta_pieces.h"
#include "server/generation/request_registry.h"
#include "server/generation/stop_condition.h"
#include "server/generation/text_stream.h"
#include "server/json/api_error.h"
#include "server/metrics.h"

namespace hadal::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kSearchedBlock = 16;  // tokens

template <typename T>
void append_all(std::vector<T>& to, std::vector<T>&& from) {
  if (to.empty()) {
    to = std::move(from);
  } else {
    to.insert(to.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
  }
}

// RidReservation is a reserved rid, which is freed again unless a request uses it.
class RidReservation {
 public:
  RidReservation(RequestRegistry& requests, ClientRid rid) : requests_(requests), rid_(std::move(rid)) {
    ok_ = rid_.rid.empty() || requests_.reserve(rid_);
    held_ = ok_ && !rid_.rid.empty();
  }
  ~RidReservation() {
    if (held_) requests_.remove(rid_, 0);
  }
  RidReservation(const RidReservation&) = delete;
  RidReservation& operator=(const RidReservation&) = delete;

  bool ok() const { return ok_; }
  void keep_for(RequestId id) {
    if (std::exchange(held_, false)) requests_.set(rid_, id);
  }

 private:
  RequestRegistry& requests_;
  const ClientRid rid_;
  bool ok_ = false;
  bool held_ = false;
};

// NoMemory says that the memory limit of all requests is reached.
class NoMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class EngineGeneration final : public Generation,
                               public ChunkReceiver,
                               public std::enable_shared_from_this<EngineGeneration> {
 public:
  EngineGeneration(ServerContext& context, IoThread& io, const GenerationRequest& request,
                   std::shared_ptr<const StopPatterns> stops, OnDelta on_delta)
      : context_(context),
        io_(io),
        rid_{.rid = request.rid, .key_name = request.key_name},
        on_delta_(std::move(on_delta)),
        text_(context.tokenizer, std::move(stops),
              {.skip_special_tokens = request.skip_special_tokens, .no_stop_trim = request.no_stop_trim}),
        charge_(request.memory != nullptr ? request.memory : context.memory),
        logprobs_(request.logprobs),
        max_new_tokens_(request.sampling.max_new_tokens),
        block_(std::max(kTokenBlock, request.stream ? context.options.stream_interval : 0)),
        stream_(request.stream),
        keeps_answer_(request.keeps_answer),
        cumulative_(request.cumulative),
        token_bytes_(token_bytes(request)),
        long_logprobs_(request.long_logprobs),
        log_metrics_(request.log_metrics && context.metrics.enabled()),
        further_choice_(request.further_choice),
        begin_(Clock::now()) {}

  RequestId id() const override { return id_; }
  void set_id(RequestId id) { id_ = id; }
  void start_tally(std::shared_ptr<RequestTally> tally, int64_t prompt_tokens) {
    tally_.start(std::move(tally), prompt_tokens);
  }

  // Counts tokens up to this number before the engine generates them. The request has counted the first
  // block.
  Result<void> charge_until(int64_t num_tokens) {
    num_tokens = std::min(num_tokens, max_new_tokens_);
    if (num_tokens <= charged_tokens_) return {};
    const int64_t more = std::min(num_tokens + kTokenBlock, max_new_tokens_) - charged_tokens_;
    HADAL_RETURN_IF_ERROR(charge_.add(MemoryKind::kOutput, static_cast<size_t>(more) * token_bytes_));
    if (keeps_answer_)
      HADAL_RETURN_IF_ERROR(charge_.add(MemoryKind::kLogprob,
                                        num_logprobs(logprobs_, more) * bytes_per_logprob(long_logprobs_)));
    charged_tokens_ += more;
    return {};
  }

  void pause() override { paused_ = true; }

  void resume() override {
    paused_ = false;
    if (pieces_) return continue_later();
    if (held_) hand_over(take_held());
  }

  void cancel() override {
    held_.reset();
    pieces_.reset();
    if (done_) {
      drop_callback();
      return;
    }
    done_ = true;
    stop_engine();
    leave();
    drop_callback();
  }

  // An exception here is a fault of this request alone: the request ends, and its client is informed.
  void on_chunk(TokenChunk chunk) override {
    tally_.count(chunk);
    if (done_) return;
    const bool was_last = chunk.finish_reason != FinishReason::kNone;
    guarded(was_last, [&] { take(std::move(chunk)); });
  }

  // A stream whose events repeat everything sends fewer events while this thread is behind. Other streams
  // send each token only once, so they keep one event for each chunk.
  bool merges_chunks() const override { return cumulative_; }

  bool proceed() override {
    if (pieces_ && !paused_) guarded(done_, [this] { deliver_piece(); });
    is_queued_ = pieces_ && !paused_;  // resume() continues
    return is_queued_;
  }

 private:
  template <typename Work>
  void guarded(bool engine_is_done, Work work) {
    try {
      work();
    } catch (const NoMemory& error) {
      fail(engine_is_done, AbortReason::kMemory, error.what());
    } catch (const std::bad_alloc&) {
      fail(engine_is_done, AbortReason::kMemory, std::string(kOutOfMemory));
    } catch (const std::exception& error) {
      log_error("an answer could not be made id={} error=\"{}\"", id_, error.what());
      fail(engine_is_done, AbortReason::kFault, error.what());
    }
  }

  void take(TokenChunk chunk) {
    const Clock::time_point now = Clock::now();
    GenerationDelta delta;
    delta.text = text_.append(chunk);
    if (log_metrics_) observe(chunk, now);
    delta.token_ids = std::move(chunk.token_ids);
    delta.logprobs = std::move(chunk.logprobs);
    delta.prompt_logprobs = std::move(chunk.prompt_logprobs);
    delta.finish_reason = chunk.finish_reason;
    delta.abort_reason = chunk.abort_reason;
    delta.matched_token = chunk.matched_token;
    delta.matched =
        chunk.finish_reason == FinishReason::kStopCondition ? text_.matched() : std::move(chunk.abort_text);
    delta.prompt_tokens = chunk.prompt_tokens;
    delta.completion_tokens = chunk.completion_tokens;
    delta.cached_tokens = chunk.cached_tokens;
    delta.speculation = chunk.speculation;
    delta.timings = chunk.timings;
    delta.e2e_s = seconds_between(begin_, now);
    if (delta.finish_reason == FinishReason::kNone) need(charge_until(delta.completion_tokens + block_));
    const bool last = delta.finish_reason != FinishReason::kNone;
    if (last) {
      done_ = true;
      leave();
    }
    if (held_ || paused_ || pieces_ || (!stream_ && !last)) {
      hold(std::move(delta));
      if (paused_ || pieces_ || !last) return;
      delta = take_held();
    }
    hand_over(std::move(delta));
  }

  // Delivers a delta, at once or in pieces. A held delta stays counted until it has been delivered.
  void hand_over(GenerationDelta delta) {
    if (DeltaPieces::needed(delta)) {
      pieces_.emplace(std::move(delta));
      return continue_later();
    }
    deliver_at_once(std::move(delta));
  }

  void deliver_at_once(GenerationDelta delta) {
    deliver(std::move(delta));
    if (!keeps_answer_ && !held_) charge_.set(MemoryKind::kLogprob, 0);
  }

  void continue_later() {
    if (std::exchange(is_queued_, true)) return;
    const MemoryReserve::Scope reserve;  // no later call would deliver the rest
    context_.chunks.continue_later(io_, shared_from_this());
  }

  void deliver_piece() {
    GenerationDelta piece = pieces_->next();
    if (piece.has_more) return deliver(std::move(piece));
    pieces_.reset();
    deliver_at_once(std::move(piece));
    if (held_ && !paused_ && (stream_ || done_)) hand_over(take_held());
  }

  // Ends the request in the engine. If the tally is open, the receiver stays, because the last chunk must be
  // counted.
  void stop_engine() {
    if (!tally_.is_open()) context_.chunks.remove(io_, id_);
    context_.engine.abort(id_);
  }

  static void need(const Result<void>& charged) {
    if (!charged.ok()) throw NoMemory(charged.status().message);
  }

  void fail(bool engine_is_done, AbortReason reason, const std::string& why) {
    const MemoryReserve::Scope reserve;
    if (!engine_is_done) stop_engine();
    if (!done_) leave();
    done_ = true;
    held_.reset();
    pieces_.reset();
    GenerationDelta delta;
    delta.finish_reason = FinishReason::kAbort;
    delta.abort_reason = reason;
    delta.matched = why;
    delta.e2e_s = seconds_between(begin_, Clock::now());
    deliver(std::move(delta));
  }

  void observe(const TokenChunk& chunk, Clock::time_point now) {
    const auto count = static_cast<int64_t>(chunk.token_ids.size());
    const RequestTimings& timings = chunk.timings;
    const bool last = chunk.finish_reason != FinishReason::kNone;
    const bool one_piece = !stream_ || (last && !last_token_);
    if (one_piece) {
      // The time of the chunk's arrival does not tell when its tokens were generated.
      if (last && chunk.completion_tokens > 0) {
        context_.metrics.observe_first_token(timings.queue_s + timings.prefill_s);
        context_.metrics.observe_tokens(timings.decode_s, chunk.completion_tokens - 1);
      }
    } else if (count > 0 && !last_token_) {
      context_.metrics.observe_first_token(seconds_between(begin_, now));
      // Tokens that arrived with the first one have no latency of their own.
    } else if (count > 0) {
      context_.metrics.observe_tokens(seconds_between(*last_token_, now), count);
    }
    if (count > 0) last_token_ = now;
    if (last) {
      context_.metrics.observe_finished(seconds_between(begin_, now), timings.queue_s);
      context_.metrics.observe_lengths(further_choice_ ? 0 : chunk.prompt_tokens, chunk.completion_tokens);
    }
  }

  void hold(GenerationDelta delta) {
    // The answer of a stream is counted only while its client does not read.
    if (!keeps_answer_) need(charge_.add(MemoryKind::kLogprob, held_bytes(delta, long_logprobs_)));
    if (!held_) {
      held_ = std::move(delta);
      return;
    }
    GenerationDelta& to = *held_;
    to.text += delta.text;
    append_all(to.token_ids, std::move(delta.token_ids));
    append_all(to.logprobs, std::move(delta.logprobs));
    append_all(to.prompt_logprobs, std::move(delta.prompt_logprobs));
    to.finish_reason = delta.finish_reason;
    to.abort_reason = delta.abort_reason;
    to.matched_token = delta.matched_token;
    to.matched = std::move(delta.matched);
    to.prompt_tokens = delta.prompt_tokens;
    to.completion_tokens = delta.completion_tokens;
    to.cached_tokens = delta.cached_tokens;
    to.speculation = delta.speculation;
    to.timings = delta.timings;
    to.e2e_s = delta.e2e_s;
  }

  GenerationDelta take_held() {
    GenerationDelta delta = std::move(*held_);
    held_.reset();
    return delta;
  }

  void deliver(GenerationDelta delta) {
    if (!on_delta_) return;
    if (delta.finish_reason != FinishReason::kNone) {
      const OnDelta last = std::move(on_delta_);  // it may own the owner of this object
      on_delta_ = nullptr;
      last(std::move(delta));
      return;
    }
    delivering_ = true;
    try {
      on_delta_(std::move(delta));
    } catch (...) {
      delivering_ = false;
      if (drop_later_) on_delta_ = nullptr;
      throw;
    }
    delivering_ = false;
    if (drop_later_) on_delta_ = nullptr;
  }

  // A running callback must not be destroyed during its call.
  void drop_callback() {
    if (delivering_) {
      drop_later_ = true;
    } else {
      on_delta_ = nullptr;
    }
  }

  void leave() {
    if (!rid_.rid.empty()) context_.requests.remove(rid_, id_);
  }

  ServerContext& context_;
  IoThread& io_;
  RequestId id_ = 0;
  const ClientRid rid_;
  OnDelta on_delta_;
  TextStream text_;
  GenerationTally tally_;
  std::optional<GenerationDelta> held_;
  std::optional<DeltaPieces> pieces_;  // the delta that is being delivered; later deltas are held
  std::optional<Clock::time_point> last_token_;
  MemoryCharge charge_;  // memory beyond what the request counted at its beginning
  const LogprobOptions logprobs_;
  const int64_t max_new_tokens_;
  int64_t charged_tokens_ = kTokenBlock;
  const int64_t block_;  // the most tokens that the engine generates before its next chunk
  const bool stream_;
  const bool keeps_answer_;
  const bool cumulative_;
  const size_t token_bytes_;  // counted for each generated token
  const bool long_logprobs_;
  const bool log_metrics_;
  const bool further_choice_;
  bool paused_ = false;
  bool is_queued_ = false;  // proceed() will be called
  bool done_ = false;
  bool delivering_ = false;
  bool drop_later_ = false;
  Clock::time_point begin_;
};

}  // namespace

std::shared_ptr<RequestMemory> ledger_for(const ServerContext& context, const HttpRequest& from) {
  return from.memory != nullptr ? from.memory : context.memory;
}

uint64_t engine_client(const HttpRequest& from) {
  const uint64_t number = std::hash<std::string>{}(from.client) >> 1;  // below 2^63
  return std::max<uint64_t>(number, 1);                                // 0: unknown client
}

void set_origin(GenerationRequest& request, const ServerContext& context, const HttpRequest& from) {
  request.tally = from.tally;
  request.client = engine_client(from);
  request.memory = from.memory;
  request.key_name = key_name_of(from.client);
  if (context.options.isolate_cache_by_key)
    request.cache_salt = salt_of_key(request.key_name, request.cache_salt);
}

Result<std::shared_ptr<Generation>> Generation::start(ServerContext& context, IoThread& io,
                                                      QueuePlaces& places, GenerationRequest request,
                                                      OnDelta on_delta) {
  const std::shared_ptr<const StopPatterns> stops = request.stops;
  if (stops != nullptr && context.tokenizer == nullptr) {
    return invalid_argument("stop: the server runs without a tokenizer (--skip-tokenizer-init)");
  }
  RidReservation reservation(context.requests, {.rid = request.rid, .key_name = request.key_name});
  if (!reservation.ok()) {
    return invalid_argument("rid '{}' is in use by a request that is still running", cut_text(request.rid));
  }
  auto generation = std::make_shared<EngineGeneration>(context, io, request, stops, std::move(on_delta));
  const auto prompt_tokens = request.further_choice ? 0 : std::ssize(request.input_ids);

  GenerateRequest engine_request;
  engine_request.input_ids = std::move(request.input_ids);
  engine_request.sampling = std::move(request.sampling);
  engine_request.logprobs = request.logprobs;
  engine_request.priority = request.priority;
  engine_request.client = request.client;
  engine_request.cache_salt = request.cache_salt;
  // An answer in one piece also arrives in blocks, because each block is counted before it is generated.
  // Blocks are short where their text is searched, because a search for expressions may take 10 µs a
  // character.
  const int64_t block = stops == nullptr ? kTokenBlock : kSearchedBlock;
  engine_request.stream_interval = request.stream ? context.options.stream_interval : block;
  HADAL_RETURN_IF_ERROR(generation->charge_until(engine_request.stream_interval));
  engine_request.sink = context.chunks.sink(io);
  if (stops != nullptr) {
    engine_request.stop = make_stop_condition(*context.tokenizer, stops, request.skip_special_tokens);
  }
  if (request.grammar != nullptr) {
    engine_request.constraint = make_grammar_constraint(request.grammar, request.grammar_after_token);
  }
  HADAL_ASSIGN_OR_RETURN(const RequestId id, context.engine.submit(std::move(engine_request), places));
  // The request runs already, and only a registered one can be cancelled, so this must not fail.
  const MemoryReserve::Scope reserve;
  generation->set_id(id);
  generation->start_tally(std::move(request.tally), prompt_tokens);
  context.chunks.add(io, id, generation);
  reservation.keep_for(id);
  return std::shared_ptr<Generation>(std::move(generation));
}

Result<std::shared_ptr<Generation>> Generation::start(ServerContext& context, IoThread& io,
                                                      GenerationRequest request, OnDelta on_delta) {
  HADAL_ASSIGN_OR_RETURN(QueuePlaces place, context.engine.reserve(1, request.client));
  return start(context, io, place, std::move(request), std::move(on_delta));
}

}  // namespace hadal::server
