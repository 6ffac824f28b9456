// The lines in which SGLang's scripts report scores. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace hadal::cli {

// All questions once.
struct EvalRound {
  int64_t questions = 0;
  int64_t correct = 0;
  int64_t invalid = 0;  // answers in which nothing could be read
  double latency_s = 0.0;
  int64_t output_tokens = 0;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(questions); }
  double invalid_share() const { return static_cast<double>(invalid) / static_cast<double>(questions); }
  double output_throughput() const { return static_cast<double>(output_tokens) / latency_s; }
};

// Accuracy, Invalid, Latency, Output throughput.
std::string round_report(const EvalRound& round);

// Mean, spread (standard deviation, of n − 1) and each accuracy; empty for one round.
std::string repeat_report(std::span<const EvalRound> rounds);

// One JSON object without a line's end.
std::string rounds_json(std::string_view task, std::span<const EvalRound> rounds);

}  // namespace hadal::cli
