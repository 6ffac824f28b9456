// StepTrace is a Chrome trace (about:tracing, Perfetto) of engine steps: the work of the engine thread and of
// the worker over time, and the life of every request. One thread at a time uses it: the engine thread
// collects the trace, and the thread that requested it renders it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/loop/sequence.h"

namespace hadal {

class StepTrace {
 public:
  using Clock = std::chrono::steady_clock;
  enum class Track { kEngine = 1, kWorker = 2 };

  static constexpr size_t kMaxSpans = 1'000'000;  // 56 MB

  // Keeps at most `max_spans` spans of steps and as many spans of requests; further ones are dropped and
  // counted.
  explicit StepTrace(size_t max_spans = kMaxSpans) : max_spans_(max_spans) {}

  // Collects from now on, for `num_steps` steps (0: until stop). It drops what was collected before.
  void start(int64_t num_steps);
  bool active() const { return active_; }  // true while it collects
  bool has_trace() const { return has_trace_; }

  // `name` must be a literal. The call is ignored while the trace is not active.
  void span(const char* name, Track track, int64_t step, Clock::time_point begin, Clock::time_point end,
            int64_t num_tokens = -1);
  // Adds the spans queue, prefill and decode of a request. Either the request has ended, or the trace has.
  void request(const Sequence& sequence, Clock::time_point end);
  // Counts a collected step; returns true when it was the last one wanted.
  bool count_step();
  void end() { active_ = false; }

  // Returns the trace, and leaves this one empty.
  StepTrace take();
  // Renders JSON; "otherData" contains the number of dropped spans.
  std::string render() const;

 private:
  struct Span {
    const char* name;
    Track track;
    int64_t step;
    Clock::time_point begin, end;
    int64_t num_tokens;
  };
  struct RequestSpan {
    RequestId id;
    const char* name;
    Clock::time_point begin, end;
    int64_t prompt_tokens, completion_tokens, cached_tokens;
  };

  size_t max_spans_;
  bool active_ = false;
  bool has_trace_ = false;
  int64_t steps_left_ = 0;  // 0: no limit
  int64_t num_dropped_ = 0;
  Clock::time_point begin_;
  std::vector<Span> spans_;
  std::vector<RequestSpan> requests_;
};

}  // namespace hadal
