// Reports scores, with the same lines as SGLang's scripts print. The functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hadal::client {

// EvalRound is the score of asking all questions once.
struct EvalRound {
  int64_t questions = 0;
  int64_t correct = 0;
  int64_t invalid = 0;  // answers that could not be read
  double latency_s = 0.0;
  int64_t output_tokens = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(questions); }
  double invalid_share() const { return static_cast<double>(invalid) / static_cast<double>(questions); }
  double output_throughput() const { return static_cast<double>(output_tokens) / latency_s; }
};

// Returns lines of accuracy, invalid answers, latency and output throughput.
std::string round_report(const EvalRound& round);

// Returns the mean, the standard deviation (with n − 1) and each accuracy; empty for a single round.
std::string repeat_report(std::span<const EvalRound> rounds);

// Returns one JSON object without a line break.
std::string rounds_json(std::string_view task, std::span<const EvalRound> rounds);

}  // namespace hadal::client
