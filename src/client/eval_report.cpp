#include "client/eval_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>

namespace hadal::client {
namespace {

struct MeanAndStd {
  double mean = 0.0;
  double std = 0.0;
};

MeanAndStd accuracy_of(std::span<const EvalRound> rounds) {
  MeanAndStd out;
  const auto count = static_cast<double>(rounds.size());
  for (const EvalRound& round : rounds) out.mean += round.accuracy() / count;
  for (const EvalRound& round : rounds) {
    const double off = round.accuracy() - out.mean;
    if (rounds.size() > 1) out.std += off * off / (count - 1.0);
  }
  out.std = std::sqrt(out.std);
  return out;
}

}  // namespace

AcceptCounts& AcceptCounts::operator+=(const AcceptCounts& other) {
  verifications += other.verifications;
  tokens += other.tokens;
  return *this;
}

std::optional<double> AcceptCounts::length() const {
  if (verifications == 0) return std::nullopt;
  return static_cast<double>(tokens) / static_cast<double>(verifications);
}

std::string round_report(const EvalRound& round) {
  std::string out =
      fmt::format("Accuracy: {:.3f}\nInvalid: {:.3f}\nLatency: {:.3f} s\nOutput throughput: {:.3f} token/s\n",
                  round.accuracy(), round.invalid_share(), round.latency_s, round.output_throughput());
  if (const auto length = round.accepted.length()) out += fmt::format("Accept length: {:.3f}\n", *length);
  return out;
}

std::string repeat_report(std::span<const EvalRound> rounds) {
  if (rounds.size() < 2) return {};
  const MeanAndStd accuracy = accuracy_of(rounds);
  const auto [least, most] =
      std::minmax_element(rounds.begin(), rounds.end(),
                          [](const EvalRound& a, const EvalRound& b) { return a.accuracy() < b.accuracy(); });
  std::string out =
      fmt::format("Repeat: {}, mean: {:.3f}, std: {:.3f}, min: {:.3f}, max: {:.3f}\nScores:", rounds.size(),
                  accuracy.mean, accuracy.std, least->accuracy(), most->accuracy());
  for (const EvalRound& round : rounds) out += fmt::format(" {:.3f}", round.accuracy());
  return out + "\n";
}

std::string rounds_json(std::string_view task, std::span<const EvalRound> rounds) {
  namespace json = boost::json;
  const MeanAndStd accuracy = accuracy_of(rounds);
  json::array list;
  for (const EvalRound& round : rounds) {
    const std::optional<double> length = round.accepted.length();
    list.push_back({{"accuracy", round.accuracy()},
                    {"invalid", round.invalid_share()},
                    {"latency", round.latency_s},
                    {"output_throughput", round.output_throughput()},
                    {"num_questions", round.questions},
                    {"accept_length", length ? json::value(*length) : json::value(nullptr)}});
  }
  const json::object out = {{"task", json::string_view(task.data(), task.size())},
                            {"accuracy", accuracy.mean},
                            {"accuracy_std", accuracy.std},
                            {"repeat", rounds.size()},
                            {"rounds", std::move(list)}};
  return json::serialize(out);
}

}  // namespace hadal::client
