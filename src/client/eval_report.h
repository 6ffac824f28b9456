// Reports scores, with the same lines as SGLang's scripts print. The functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace hadal::client {

// AcceptCounts holds the results of speculation for some answers. The counts are 0 without speculation, and
// for a server's answers, because a server does not report them for each answer.
struct AcceptCounts {
  int64_t verifications = 0;
  int64_t tokens = 0;  // that the verifications sampled
  AcceptCounts& operator+=(const AcceptCounts& other);
  // Returns the mean number of tokens per verification; nullopt if there was no verification.
  std::optional<double> length() const;
};

// EvalRound is the score of asking all questions once.
struct EvalRound {
  int64_t questions = 0;
  int64_t correct = 0;
  int64_t invalid = 0;  // answers that could not be read
  double latency_s = 0.0;
  int64_t output_tokens = 0;
  AcceptCounts accepted;
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(questions); }
  double invalid_share() const { return static_cast<double>(invalid) / static_cast<double>(questions); }
  double output_throughput() const { return static_cast<double>(output_tokens) / latency_s; }
};

// Returns lines of accuracy, invalid answers, latency, output throughput and, if drafts were verified, accept
// length.
std::string round_report(const EvalRound& round);

// Returns the mean, the standard deviation (with n − 1) and each accuracy; empty for a single round.
std::string repeat_report(std::span<const EvalRound> rounds);

// Returns one JSON object without a line break. The accept length of a round is null if no draft was
// verified.
std::string rounds_json(std::string_view task, std::span<const EvalRound> rounds);

}  // namespace hadal::client
