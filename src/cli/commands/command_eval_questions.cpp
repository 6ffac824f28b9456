// `hadal eval gsm8k` and `hadal eval gpqa` ask few-shot arithmetic and multiple-choice questions from local
// files, in this process or over HTTP, once or several times.
#include <chrono>
#include <fstream>
#include <random>

#include <boost/json.hpp>

#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/open_asker.h"
#include "cli/run.h"
#include "cli/terminal.h"
#include "client/bench_text.h"
#include "client/eval_questions.h"
#include "client/eval_report.h"
#include "client/eval_set.h"

namespace hadal::cli {
namespace {

using Clock = std::chrono::steady_clock;

// Verdict is the score of one reply; an invalid one is never correct.
struct Verdict {
  bool correct = false;
  bool invalid = false;
  std::string read;      // the answer that was found
  std::string expected;  // the right answer
};

// Round is one round of questions, and how their answers are scored.
struct Round {
  std::vector<client::EvalAsk> asks;
  std::function<Verdict(size_t index, std::string_view answer)> judge;
};
using MakeRound = std::function<Round(int64_t number)>;

client::EvalAsk base_ask(const ParsedFlags& flags, int64_t default_max_new_tokens, int64_t round,
                         size_t index) {
  client::EvalAsk ask;
  ask.max_new_tokens = flags.integer("max-new-tokens").value_or(default_max_new_tokens);
  ask.fits_context = !flags.has("max-new-tokens");
  ask.temperature = flags.number("temperature").value_or(0.0);
  ask.top_p = flags.number("top-p").value_or(1.0);
  // Each question of each round has a seed of its own, which is the same when the command is run again.
  const auto seed = static_cast<uint64_t>(flags.integer("seed").value_or(0));
  ask.seed = ((seed + static_cast<uint64_t>(round)) * 1000003 + index) & 0x7FFFFFFF;
  return ask;
}

Result<int> run_rounds(const ParsedFlags& flags, const Environment& environment, std::string_view task,
                       const MakeRound& make_round) {
  HADAL_ASSIGN_OR_RETURN(const auto asker, open_asker(flags, environment));
  std::ofstream answers;
  if (const auto path = flags.text("answers")) {
    answers.open(*path);
    if (!answers) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *path);
  }
  const InterruptGuard guard;
  std::vector<client::EvalRound> rounds;
  const int64_t repeat = flags.integer("repeat").value_or(1);
  for (int64_t number = 0; number < repeat; ++number) {
    const Round round = make_round(number);
    Progress progress(task);
    size_t num_done = 0;
    const auto on_reply = [&](size_t, const client::EvalReply&) {
      ++num_done;
      progress.update(num_done, round.asks.size(), fmt::format("{}/{}", num_done, round.asks.size()));
    };
    const auto begin = Clock::now();
    HADAL_ASSIGN_OR_RETURN(const std::vector<client::EvalReply> replies,
                           asker->ask(round.asks, on_reply, [&guard] { return guard.interrupted(); }));
    client::EvalRound score{.questions = static_cast<int64_t>(round.asks.size())};
    score.latency_s = std::chrono::duration<double>(Clock::now() - begin).count();
    progress.finish();
    for (size_t i = 0; i < replies.size(); ++i) {
      const Verdict verdict =
          round.judge(i, client::extract_answer(replies[i].text, replies[i].starts_in_reasoning));
      score.correct += verdict.correct ? 1 : 0;
      score.invalid += verdict.invalid ? 1 : 0;
      score.output_tokens += replies[i].completion_tokens;
      score.accepted += replies[i].accepted;
      if (!answers.is_open()) continue;
      const boost::json::object line = {{"task", std::string(task)},
                                        {"round", number},
                                        {"index", i},
                                        {"correct", verdict.correct},
                                        {"expected", verdict.expected},
                                        {"answer", verdict.read},
                                        {"output", replies[i].text},
                                        {"completion_tokens", replies[i].completion_tokens}};
      answers << boost::json::serialize(line) << '\n';
    }
    rounds.push_back(score);
    if (!flags.has("json")) write_stdout(client::round_report(score));
  }
  if (answers.is_open() && !answers.flush()) {
    return make_status(StatusCode::kResourceExhausted, "cannot write {}", *flags.text("answers"));
  }
  write_stdout(flags.has("json") ? client::rounds_json(task, rounds) + "\n" : client::repeat_report(rounds));
  return kExitOk;
}

// Reads all questions in the files of --data.
template <typename T>
Result<std::vector<T>> load_all(const ParsedFlags& flags,
                                Result<std::vector<T>> (*load)(const std::string&)) {
  if (!flags.has("data")) {
    return invalid_argument("--data is missing; must be files of questions, one JSON object per line");
  }
  std::vector<T> questions;
  for (const std::string& path : flags.texts("data")) {
    HADAL_ASSIGN_OR_RETURN(std::vector<T> more, load(path));
    std::move(more.begin(), more.end(), std::back_inserter(questions));
  }
  return questions;
}

}  // namespace

Result<int> run_eval_gsm8k(const ParsedFlags& flags, const Environment& environment) {
  constexpr int64_t kAnswerTokens = 512;
  HADAL_ASSIGN_OR_RETURN(const std::vector<client::NumericQuestion> all,
                         load_all(flags, client::load_numeric));
  const auto num_shots = static_cast<size_t>(flags.integer("num-shots").value_or(5));
  if (all.size() <= num_shots) {
    return invalid_argument(
        "--num-shots {}: the data has {} questions, of which at least one must be left to ask", num_shots,
        all.size());
  }
  const std::span<const client::NumericQuestion> shots(all.data(), num_shots);
  std::span<const client::NumericQuestion> questions = std::span(all).subspan(num_shots);
  const auto limit = static_cast<size_t>(flags.integer("num-questions").value_or(200));
  questions = questions.first(std::min(limit, questions.size()));
  const auto make_round = [&](int64_t number) {
    Round round;
    for (size_t i = 0; i < questions.size(); ++i) {
      client::EvalAsk ask = base_ask(flags, kAnswerTokens, number, i);
      ask.prompt = client::numeric_prompt(shots, questions[i]);
      ask.stop = {"Question:", "\n\n\n"};
      round.asks.push_back(std::move(ask));
    }
    round.judge = [questions](size_t index, std::string_view answer) {
      const std::optional<double> value = client::last_number(answer);
      return Verdict{.correct = value == questions[index].value,
                     .invalid = !value,
                     .read = value ? fmt::format("{}", *value) : "",
                     .expected = fmt::format("{}", questions[index].value)};
    };
    return round;
  };
  return run_rounds(flags, environment, "gsm8k", make_round);
}

Result<int> run_eval_gpqa(const ParsedFlags& flags, const Environment& environment) {
  constexpr int64_t kAnswerTokens = 2048;
  HADAL_ASSIGN_OR_RETURN(std::vector<client::ChoiceQuestion> questions,
                         load_all(flags, client::load_choices));
  const auto seed = static_cast<uint64_t>(flags.integer("seed").value_or(0));
  if (const auto limit = flags.integer("num-examples")) {
    std::mt19937_64 random(seed);
    client::shuffle_by(random, questions);
    questions.resize(std::min(static_cast<size_t>(*limit), questions.size()));
  }
  const auto make_round = [&](int64_t number) {
    Round round;
    std::vector<client::ChoiceQuestion> asked;
    for (size_t i = 0; i < questions.size(); ++i) {
      client::EvalAsk ask = base_ask(flags, kAnswerTokens, number, i);
      asked.push_back(client::shuffled(questions[i], ask.seed));
      ask.messages = {{.role = "user", .content = client::choice_prompt(asked.back())}};
      ask.thinking = flags.has("thinking-mode");
      round.asks.push_back(std::move(ask));
    }
    round.judge = [asked = std::move(asked)](size_t index, std::string_view answer) {
      const client::ChoiceQuestion& question = asked[index];
      const std::optional<int> chosen =
          client::chosen_option(answer, static_cast<int>(question.options.size()));
      return Verdict{.correct = chosen == question.correct,
                     .invalid = !chosen,
                     .read = chosen ? std::string(1, static_cast<char>('A' + *chosen)) : "",
                     .expected = std::string(1, static_cast<char>('A' + question.correct))};
    };
    return round;
  };
  return run_rounds(flags, environment, "gpqa", make_round);
}

}  // namespace hadal::cli
