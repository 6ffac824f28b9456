// `hadal bench offline`: submits a mix of requests to the engine all at once, as token ids and without HTTP.
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <random>

#include <boost/json.hpp>

#include "base/log.h"
#include "cli/cache_size.h"
#include "cli/client_options.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "client/bench_dataset.h"
#include "client/bench_report.h"
#include "client/bench_text.h"

namespace hadal::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Counts the answers. The engine thread writes to a Tally, and the main thread waits on it.
class Tally : public ChunkSink {
 public:
  void on_chunks(std::vector<TokenChunk>& chunks) override {
    const std::lock_guard lock(mutex_);
    for (const TokenChunk& chunk : chunks) {
      if (chunk.finish_reason == FinishReason::kNone) continue;
      ++num_over_;
      if (chunk.finish_reason == FinishReason::kAbort) {
        failure_ = chunk.abort_text;
        continue;
      }
      ++num_ok_;
      input_tokens_ += chunk.prompt_tokens;
      output_tokens_ += chunk.completion_tokens;
    }
    changed_.notify_one();
  }

  // Waits until `count` requests have ended and reports their number to `on_progress`. Returns false if
  // interrupted.
  bool wait(size_t count, const InterruptGuard& guard, const std::function<void(size_t)>& on_progress) {
    constexpr auto kLook = std::chrono::milliseconds(50);
    std::unique_lock lock(mutex_);
    while (num_over_ < count) {
      if (guard.interrupted()) return false;
      changed_.wait_for(lock, kLook);
      on_progress(num_over_);
    }
    return true;
  }

  // The result is valid after wait.
  client::OfflineResult result() const {
    return {.successful_requests = num_ok_,
            .total_input_tokens = input_tokens_,
            .total_output_tokens = output_tokens_};
  }
  const std::string& failure() const { return failure_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t num_over_ = 0;
  int64_t num_ok_ = 0;
  int64_t input_tokens_ = 0;
  int64_t output_tokens_ = 0;
  std::string failure_;
};

// Reads --extra-request-body, which gives sampling parameters under their names in /generate.
Result<SamplingParams> read_sampling(const ParsedFlags& flags) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.ignore_eos = !flags.has("disable-ignore-eos");
  const auto text = flags.text("extra-request-body");
  if (!text) return params;
  HADAL_RETURN_IF_ERROR(client::check_extra(*text, "--extra-request-body"));
  const boost::json::value parsed = boost::json::parse(*text);
  const std::pair<const char*, float SamplingParams::*> numbers[] = {
      {"temperature", &SamplingParams::temperature},
      {"top_p", &SamplingParams::top_p},
      {"min_p", &SamplingParams::min_p},
      {"frequency_penalty", &SamplingParams::frequency_penalty},
      {"presence_penalty", &SamplingParams::presence_penalty},
      {"repetition_penalty", &SamplingParams::repetition_penalty}};
  const std::pair<const char*, int64_t SamplingParams::*> counts[] = {
      {"top_k", &SamplingParams::top_k}, {"min_new_tokens", &SamplingParams::min_new_tokens}};
  for (const auto& [name, value] : parsed.as_object()) {
    bool known = false;
    for (const auto& [wanted, member] : numbers) {
      if (name != wanted || !value.is_number()) continue;
      params.*member = static_cast<float>(value.to_number<double>());
      known = true;
    }
    for (const auto& [wanted, member] : counts) {
      if (name != wanted || !value.is_int64()) continue;
      params.*member = value.as_int64();
      known = true;
    }
    if (!known) {
      return invalid_argument(
          "--extra-request-body: {} is {}; allowed are numbers for temperature, top_p, top_k, min_p, "
          "min_new_tokens, frequency_penalty, presence_penalty and repetition_penalty",
          std::string(name), boost::json::serialize(value));
    }
  }
  return params;
}

struct OfflineRun {
  client::OfflineResult result;
  bool interrupted = false;
};

Result<OfflineRun> run_requests(Engine& engine, std::span<const client::LoadRequest> requests,
                                const SamplingParams& sampling, std::string_view title,
                                const InterruptGuard& guard) {
  constexpr int64_t kWholeAnswers = int64_t{1} << 40;
  const auto tally = std::make_shared<Tally>();
  const SpeculationCounts before = engine.stats().speculation;
  Progress progress(title);
  const auto begin = Clock::now();
  for (const client::LoadRequest& one : requests) {
    GenerateRequest request;
    request.input_ids = one.ids;
    request.sampling = sampling;
    request.sampling.max_new_tokens = one.output_tokens;
    request.stream_interval = kWholeAnswers;
    request.sink = tally;
    const Result<RequestId> id = engine.submit(std::move(request));
    if (!id.ok()) {
      engine.abort_all();
      return id.status();
    }
  }
  const bool ended = tally->wait(requests.size(), guard, [&](size_t done) {
    progress.update(done, requests.size(), fmt::format("{}/{}", done, requests.size()));
  });
  progress.finish();
  if (!ended) {
    engine.abort_all();
    return OfflineRun{.result = {}, .interrupted = true};
  }
  if (!tally->failure().empty()) {
    return make_status(StatusCode::kInternal, "a request was not answered: {}", tally->failure());
  }
  OfflineRun measured{.result = tally->result(), .interrupted = false};
  measured.result.total_latency_s = std::chrono::duration<double>(Clock::now() - begin).count();
  const EngineStats stats = engine.stats();
  measured.result.last_gen_throughput = stats.gen_throughput;
  if (const SpeculationCounts counts = stats.speculation - before; counts.verifications > 0)
    measured.result.accept_length = {.tokens = counts.accept_length(),
                                     .simulated = stats.acceptance_is_simulated};
  return measured;
}

// Makes short random prompts, which warm up threads, caches and pages.
std::vector<client::LoadRequest> warm_up_requests(size_t count, int64_t longest, int64_t vocab_size) {
  constexpr int64_t kInput = 256;
  constexpr int64_t kOutput = 16;
  std::mt19937_64 random(0);
  std::vector<client::LoadRequest> requests(count);
  for (client::LoadRequest& request : requests) {
    request.output_tokens = std::min(kOutput, std::max<int64_t>(longest / 2, 1));
    request.ids.resize(static_cast<size_t>(std::clamp<int64_t>(longest - request.output_tokens, 1, kInput)));
    for (int32_t& id : request.ids)
      id = static_cast<int32_t>(client::draw_between(random, 0, vocab_size - 1));
  }
  return requests;
}

}  // namespace

Result<int> run_bench_offline(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(client::DatasetOptions dataset, resolve_dataset(flags));
  dataset.ids_only = true;
  HADAL_ASSIGN_OR_RETURN(const SamplingParams sampling, read_sampling(flags));
  std::ofstream rows;
  const auto path = flags.text("result-filename");
  if (path) {
    rows.open(*path, std::ios::app);
    if (!rows) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *path);
  }
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kIfThere));
  HADAL_RETURN_IF_ERROR(check_has_tokenizer(dataset, session->tokenizer()));
  std::optional<ChatFormat> format;
  if (dataset.apply_chat_template && session->tokenizer() != nullptr) {
    HADAL_ASSIGN_OR_RETURN(format, session->chat_format(flags));
  }
  HADAL_ASSIGN_OR_RETURN(
      const std::vector<client::LoadRequest> requests,
      client::make_dataset(dataset, session->tokenizer(), format, session->config().vocab_size));
  int64_t longest = 0;
  for (const client::LoadRequest& request : requests) {
    longest = std::max(longest, static_cast<int64_t>(request.ids.size()) + request.output_tokens);
  }
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session->kv_layout());
  EngineOptions options = resolve_engine_options(flags, session->options());
  // On a GPU the cache uses the memory that is left.
  if (options.max_total_tokens == 0 && session->options().device == DeviceType::kCpu) {
    options.max_total_tokens = fitted_cache_tokens(longest, static_cast<int64_t>(requests.size()), options,
                                                   session->config(), layout);
  }
  HADAL_ASSIGN_OR_RETURN(const auto engine, session->make_engine(options));

  const InterruptGuard guard;
  if (!flags.has("skip-warmup")) {
    constexpr size_t kMost = 16;
    const auto warm_up =
        warm_up_requests(std::min(kMost, requests.size()), longest, session->config().vocab_size);
    HADAL_ASSIGN_OR_RETURN(const OfflineRun warm, run_requests(*engine, warm_up, sampling, "warm-up", guard));
    if (warm.interrupted) return kExitInterrupted;
    HADAL_RETURN_IF_ERROR(engine->flush_cache());
  }
  HADAL_ASSIGN_OR_RETURN(const OfflineRun measured,
                         run_requests(*engine, requests, sampling, "requests", guard));
  if (measured.interrupted) return kExitInterrupted;
  write_stdout("\n" + client::offline_report(measured.result));
  if (path) {
    rows << client::offline_json(measured.result) << std::endl;
    if (!rows) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *path);
  }
  return kExitOk;
}

}  // namespace hadal::cli
