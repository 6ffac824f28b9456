#include "client/bench_load.h"

#include <cmath>
#include <random>

#include "base/seconds.h"

namespace hadal::client {
namespace {

using Clock = std::chrono::steady_clock;

class Load;

// Sender is the client's side of one request.
class Sender : public HttpHandler {
 public:
  Sender(Load* load, size_t index, ServerApi api);
  void on_event(std::string_view data) override;
  void on_done(HttpReply reply) override;

 private:
  void count(int64_t fresh, Clock::time_point now);

  Load* load_;
  size_t index_;
  AnswerReader reader_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point last_token_;
  bool has_token_ = false;
};

class Load {
 public:
  Load(HttpClient& client, std::span<const LoadRequest> requests, const LoadOptions& options,
       const std::function<void(size_t)>& on_done)
      : client_(client), requests_(requests), options_(options), on_done_(on_done) {
    result.outcomes.resize(requests.size());
  }

  void arrive_all() {
    if (std::isinf(options_.request_rate)) {
      num_arrived_ = requests_.size();
      return send_what_may_go();
    }
    arrivals_ = arrival_times(requests_.size(), options_.request_rate, options_.seed);
    arrive();
  }

  // Sends every request that is due, and schedules the next call for when the next request is due.
  void arrive() {
    while (num_arrived_ < arrivals_.size() &&
           arrivals_[num_arrived_] <= seconds_between(begin, Clock::now())) {
      ++num_arrived_;
    }
    send_what_may_go();
    if (num_arrived_ == arrivals_.size()) return;
    const auto due = begin + std::chrono::duration_cast<Clock::duration>(
                                 std::chrono::duration<double>(arrivals_[num_arrived_]));
    client_.call_after(std::max(due - Clock::now(), Clock::duration::zero()), [this] { arrive(); });
  }

  void send_what_may_go() {
    while (num_sent_ < num_arrived_ &&
           (options_.max_concurrency == 0 || num_running_ < options_.max_concurrency)) {
      const size_t index = num_sent_++;
      ++num_running_;
      std::string body = make_body(requests_[index], options_.body);
      RequestOutcome& outcome = result.outcomes[index];
      outcome.prompt_tokens = requests_[index].prompt_tokens;
      outcome.start_s = seconds_between(begin, Clock::now());
      const ServerApi api = options_.body.api;
      client_.start({.target = std::string(target_of(api)), .body = std::move(body)},
                    std::make_shared<Sender>(this, index, api));
    }
  }

  void request_over() {
    --num_running_;
    ++num_over_;
    result.duration_s = seconds_between(begin, Clock::now());
    if (on_done_) on_done_(num_over_);
    send_what_may_go();
  }

  LoadResult result;
  Clock::time_point begin = Clock::now();

 private:
  HttpClient& client_;
  std::span<const LoadRequest> requests_;
  const LoadOptions& options_;
  const std::function<void(size_t)>& on_done_;
  std::vector<double> arrivals_;
  size_t num_arrived_ = 0;
  size_t num_sent_ = 0;
  size_t num_over_ = 0;
  int64_t num_running_ = 0;
};

Sender::Sender(Load* load, size_t index, ServerApi api) : load_(load), index_(index), reader_(api) {}

void Sender::on_event(std::string_view data) {
  const Clock::time_point now = Clock::now();
  const int64_t fresh = reader_.take_event(data);
  if (fresh > 0) count(fresh, now);
}

void Sender::count(int64_t fresh, Clock::time_point now) {
  RequestOutcome& outcome = load_->result.outcomes[index_];
  if (has_token_) {
    const double wait = seconds_between(last_token_, now) / static_cast<double>(fresh);
    outcome.itl_s.insert(outcome.itl_s.end(), static_cast<size_t>(fresh), static_cast<float>(wait));
  } else {
    outcome.ttft_s = seconds_between(begin_, now);
  }
  has_token_ = true;
  last_token_ = now;
}

void Sender::on_done(HttpReply reply) {
  RequestOutcome& outcome = load_->result.outcomes[index_];
  outcome.latency_s = seconds_between(begin_, Clock::now());
  if (!reply.ok()) {
    outcome.error = describe_failure(reply);
  } else {
    if (!reply.body.empty()) reader_.take_body(reply.body);
    outcome.error = reader_.error();
    outcome.ok = outcome.error.empty();
  }
  outcome.output_tokens = reader_.output_tokens();
  outcome.cached_tokens = reader_.cached_tokens();
  if (outcome.prompt_tokens == 0) outcome.prompt_tokens = reader_.prompt_tokens();
  outcome.text = reader_.text();
  if (!has_token_) outcome.ttft_s = outcome.latency_s;  // the answer came as a whole
  if (outcome.ok && outcome.output_tokens == 0 && !reader_.saw_done() && reply.body.empty()) {
    outcome.ok = false;
    outcome.error = "the answer is empty";
  }
  load_->request_over();
}

}  // namespace

std::vector<double> arrival_times(size_t count, double rate, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> times(count, 0.0);
  for (size_t i = 1; i < count; ++i) {
    const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
    times[i] = times[i - 1] - std::log1p(-uniform) / rate;
  }
  return times;
}

LoadResult run_load(HttpClient& client, std::span<const LoadRequest> requests, const LoadOptions& options,
                    const std::function<void(size_t)>& on_done, const std::function<bool()>& stop) {
  Load load(client, requests, options, on_done);
  load.begin = Clock::now();
  load.arrive_all();
  load.result.stopped = !client.run(stop);
  return std::move(load.result);
}

}  // namespace hadal::client
