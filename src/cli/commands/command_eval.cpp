// `hadal eval` asks the questions of files, decodes greedily, and scores the answers by exact match.
#include <algorithm>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/flags/defaults.h"
#include "cli/open_asker.h"
#include "cli/run.h"
#include "cli/terminal.h"
#include "client/eval_set.h"

namespace hadal::cli {
namespace {

struct Score {
  int64_t correct = 0;
  int64_t total = 0;
  client::AcceptCounts accepted;
  double share() const { return static_cast<double>(correct) / static_cast<double>(total); }
};

void print_table(const std::map<std::string, Score>& scores, const Score& all) {
  size_t width = 8;
  for (const auto& [task, score] : scores) width = std::max(width, task.size());
  const bool speculated = all.accepted.length().has_value();
  std::string out = fmt::format("{:<{}}{:>9}{:>8}{:>9}{}\n", "task", width, "correct", "of", "share",
                                speculated ? "  accept length" : "");
  const auto row = [&](const std::string& name, const Score& score) {
    out += fmt::format("{:<{}}{:>9}{:>8}{:>8.1f}%", name, width, score.correct, score.total,
                       100.0 * score.share());
    if (const auto length = score.accepted.length()) {
      out += fmt::format("{:>15.2f}", *length);
    } else if (speculated) {
      out += fmt::format("{:>15}", "-");  // each answer of the task has one token
    }
    out += '\n';
  };
  for (const auto& [task, score] : scores) row(task, score);
  if (scores.size() > 1) row("all", all);
  write_stdout(out);
}

nlohmann::ordered_json score_json(const Score& score) {
  nlohmann::ordered_json out = {{"correct", score.correct},
                                {"total", score.total},
                                {"share", score.share()},
                                {"accept_length", nullptr}};
  if (const auto length = score.accepted.length()) out["accept_length"] = *length;
  return out;
}

}  // namespace

Result<int> run_eval(const ParsedFlags& flags, const Environment& environment) {
  if (!flags.has("data"))
    return invalid_argument("--data is missing; must be files of questions, one JSON object per line");
  const int64_t limit = flags.integer("limit").value_or(std::numeric_limits<int64_t>::max());
  std::vector<client::EvalQuestion> questions;
  for (const std::string& path : flags.texts("data")) {
    HADAL_ASSIGN_OR_RETURN(std::vector<client::EvalQuestion> more, client::load_questions(path, limit));
    std::move(more.begin(), more.end(), std::back_inserter(questions));
  }
  HADAL_ASSIGN_OR_RETURN(const auto asker, open_asker(flags, environment));
  std::vector<client::EvalAsk> asks;
  for (const client::EvalQuestion& question : questions) {
    client::EvalAsk ask;
    ask.messages = question.messages;
    ask.thinking = question.thinking;
    ask.max_new_tokens = flags.integer("max-new-tokens").value_or(kDefaultAnswerTokens);
    ask.fits_context = !flags.has("max-new-tokens");
    asks.push_back(std::move(ask));
  }
  std::ofstream answers;
  if (const auto path = flags.text("answers")) {
    answers.open(*path);
    if (!answers) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *path);
  }
  const InterruptGuard guard;
  std::map<std::string, Score> scores;
  Score all;
  const auto on_reply = [&](size_t index, const client::EvalReply& reply) {
    const client::EvalQuestion& question = questions[index];
    const std::string_view answer = client::extract_answer(reply.text, reply.starts_in_reasoning);
    const bool correct = client::is_correct(question, answer);
    for (Score* one : {&scores[question.task], &all}) {
      ++one->total;
      one->correct += correct ? 1 : 0;
      one->accepted += reply.accepted;
    }
    if (all.total % 100 == 0) {
      log_info("eval progress answered={} of={} correct={}", all.total, questions.size(), all.correct);
    }
  };
  HADAL_ASSIGN_OR_RETURN(const std::vector<client::EvalReply> replies,
                         asker->ask(asks, on_reply, [&guard] { return guard.interrupted(); }));
  for (size_t i = 0; answers.is_open() && i < replies.size(); ++i) {
    const client::EvalQuestion& question = questions[i];
    const std::string_view answer = client::extract_answer(replies[i].text, replies[i].starts_in_reasoning);
    const nlohmann::ordered_json line = {
        {"task", question.task},       {"correct", client::is_correct(question, answer)},
        {"expected", question.answer}, {"answer", answer},
        {"output", replies[i].text},   {"completion_tokens", replies[i].completion_tokens}};
    answers << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  }
  if (answers.is_open() && !answers.flush()) {
    return make_status(StatusCode::kResourceExhausted, "cannot write {}", *flags.text("answers"));
  }
  if (flags.has("json")) {
    nlohmann::ordered_json out;
    for (const auto& [task, score] : scores) out["tasks"][task] = score_json(score);
    out["all"] = score_json(all);
    write_stdout(out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else {
    print_table(scores, all);
  }
  return kExitOk;
}

}  // namespace hadal::cli
