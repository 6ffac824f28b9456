#include "engine/loop/step_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace hadal {

void StepTrace::start(int64_t num_steps) {
  spans_.clear();
  requests_.clear();
  num_dropped_ = 0;
  active_ = has_trace_ = true;
  steps_left_ = num_steps;
  begin_ = Clock::now();
}

void StepTrace::span(const char* name, Track track, int64_t step, Clock::time_point begin,
                     Clock::time_point end, int64_t num_tokens) {
  if (!active_) return;
  if (spans_.size() >= max_spans_) {
    ++num_dropped_;
    return;
  }
  spans_.push_back({name, track, step, begin, end, num_tokens});
}

void StepTrace::request(const Sequence& sequence, Clock::time_point end) {
  if (!active_) return;
  const auto add = [&](const char* name, Clock::time_point from, Clock::time_point to) {
    if (requests_.size() >= max_spans_) {
      ++num_dropped_;
      return;
    }
    requests_.push_back(
        {sequence.id, name, from, to, sequence.prompt_len, sequence.num_generated(), sequence.cached_tokens});
  };
  const bool started = sequence.started != Clock::time_point{};
  const bool has_first = sequence.first_token != Clock::time_point{};
  add("request", sequence.submitted, end);
  add("queue", sequence.submitted, started ? sequence.started : end);
  if (started) add("prefill", sequence.started, has_first ? sequence.first_token : end);
  if (has_first) add("decode", sequence.first_token, end);
}

bool StepTrace::count_step() {
  return active_ && steps_left_ > 0 && --steps_left_ == 0;
}

StepTrace StepTrace::take() {
  active_ = has_trace_ = false;
  StepTrace taken(max_spans_);
  taken.begin_ = begin_;
  taken.num_dropped_ = num_dropped_;
  taken.spans_ = std::exchange(spans_, {});
  taken.requests_ = std::exchange(requests_, {});
  return taken;
}

std::string StepTrace::render() const {
  // Converts to microseconds since the trace began; earlier events have negative times, which viewers accept.
  const auto us = [&](Clock::time_point time) {
    return std::chrono::duration<double, std::micro>(time - begin_).count();
  };
  std::string out = fmt::format(
      R"({{"displayTimeUnit":"ms","otherData":{{"dropped_spans":{}}},"traceEvents":[)", num_dropped_);
  const auto name_track = [&](Track track, const char* name) {
    fmt::format_to(std::back_inserter(out),
                   R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":"{}"}}}},)",
                   static_cast<int>(track), name);
  };
  name_track(Track::kEngine, "engine thread");
  name_track(Track::kWorker, "worker");
  for (const Span& span : spans_) {
    fmt::format_to(
        std::back_inserter(out),
        "\n"
        R"({{"ph":"X","pid":1,"tid":{},"cat":"step","name":"{}","ts":{:.3f},"dur":{:.3f},"args":{{"step":{})",
        static_cast<int>(span.track), span.name, us(span.begin), us(span.end) - us(span.begin), span.step);
    if (span.num_tokens >= 0) fmt::format_to(std::back_inserter(out), R"(,"tokens":{})", span.num_tokens);
    out += "}},";
  }
  for (const RequestSpan& span : requests_) {
    fmt::format_to(std::back_inserter(out),
                   "\n"
                   R"({{"ph":"b","pid":1,"tid":1,"cat":"request","id":{},"name":"{}","ts":{:.3f},"args":{{)"
                   R"("request":{},"prompt_tokens":{},"completion_tokens":{},"cached_tokens":{}}}}},)",
                   span.id, span.name, us(span.begin), span.id, span.prompt_tokens, span.completion_tokens,
                   span.cached_tokens);
    fmt::format_to(std::back_inserter(out),
                   "\n"
                   R"({{"ph":"e","pid":1,"tid":1,"cat":"request","id":{},"name":"{}","ts":{:.3f}}},)",
                   span.id, span.name, us(span.end));
  }
  out.pop_back();  // the last comma; the output always contains the names of the tracks
  out += "]}\n";
  return out;
}

}  // namespace hadal
