// `hadal eval`: greedy answers to a file of questions, scored by exact match.
#include <algorithm>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/commands.h"
#include "cli/defaults.h"
#include "cli/drain.h"
#include "cli/eval_set.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "cli/text_stream.h"

namespace hadal::cli {
namespace {

constexpr int64_t kCacheBytes = int64_t{2} << 30;  // of the KV cache, unless --max-total-tokens says more

struct Score {
  int64_t correct = 0;
  int64_t total = 0;
  double share() const { return static_cast<double>(correct) / static_cast<double>(total); }
};

struct Asked {
  std::vector<int32_t> prompt;
  bool starts_in_reasoning = false;
  RequestId id = 0;
  std::string output;
  bool correct = false;
};

// Room for all running sequences at once, as far as a bounded cache allows.
int64_t cache_tokens(const std::vector<Asked>& asked, int64_t max_new_tokens, const EngineOptions& options,
                     const ModelConfig& config, const KvLayout& layout) {
  int64_t longest = 0;
  for (const Asked& one : asked) longest = std::max(longest, static_cast<int64_t>(one.prompt.size()));
  const int64_t pages = (longest + max_new_tokens + kPageSize - 1) / kPageSize;
  const int64_t wanted =
      pages * kPageSize * std::min(options.max_running_requests, static_cast<int64_t>(asked.size()));
  const int64_t affordable = kCacheBytes / (config.num_hidden_layers * layout.row_bytes());
  return std::max(pages * kPageSize, std::min(wanted, affordable));
}

void print_table(const std::map<std::string, Score>& scores, const Score& all) {
  size_t width = 8;
  for (const auto& [task, score] : scores) width = std::max(width, task.size());
  std::string out = fmt::format("{:<{}}{:>9}{:>8}{:>9}\n", "task", width, "correct", "of", "share");
  const auto row = [&](const std::string& name, const Score& score) {
    out += fmt::format("{:<{}}{:>9}{:>8}{:>8.1f}%\n", name, width, score.correct, score.total,
                       100.0 * score.share());
  };
  for (const auto& [task, score] : scores) row(task, score);
  if (scores.size() > 1) row("all", all);
  write_stdout(out);
}

nlohmann::ordered_json score_json(const Score& score) {
  return {{"correct", score.correct}, {"total", score.total}, {"share", score.share()}};
}

}  // namespace

Result<int> run_eval(const ParsedFlags& flags, const Environment& environment) {
  if (!flags.has("data"))
    return invalid_argument("--data is missing: a file of questions, one JSON object a line");
  const int64_t limit = flags.integer("limit").value_or(std::numeric_limits<int64_t>::max());
  std::vector<EvalQuestion> questions;
  for (const std::string& path : flags.texts("data")) {
    HADAL_ASSIGN_OR_RETURN(std::vector<EvalQuestion> more, load_questions(path, limit));
    std::move(more.begin(), more.end(), std::back_inserter(questions));
  }
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kRequired));
  const Tokenizer& tokenizer = *session->tokenizer();
  HADAL_ASSIGN_OR_RETURN(const ChatFormat format, session->chat_format(flags));
  std::vector<Asked> asked;
  for (const EvalQuestion& question : questions) {
    const ChatOptions chat{.thinking = question.thinking};
    HADAL_ASSIGN_OR_RETURN(const std::string prompt, render_chat(format, question.messages, chat));
    asked.push_back({.prompt = tokenizer.encode(prompt, false),
                     .starts_in_reasoning = generation_starts_in_reasoning(format, chat)});
  }
  std::ofstream answers;
  if (const auto path = flags.text("answers")) {
    answers.open(*path);
    if (!answers) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *path);
  }
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session->kv_layout());
  SamplingOptions sampling;
  sampling.params.temperature = 0.0F;
  sampling.max_new_tokens_is_set = flags.has("max-new-tokens");
  sampling.params.max_new_tokens = flags.integer("max-new-tokens").value_or(kDefaultAnswerTokens);
  EngineOptions options = resolve_engine_options(flags, session->options());
  if (options.max_total_tokens == 0) {
    options.max_total_tokens =
        cache_tokens(asked, sampling.params.max_new_tokens, options, session->config(), layout);
  }
  HADAL_ASSIGN_OR_RETURN(const auto engine, session->make_engine(options));

  const InterruptGuard guard;
  for (Asked& one : asked) {
    SamplingOptions own = sampling;
    const int64_t room = engine->context_length() - static_cast<int64_t>(one.prompt.size());
    if (!own.max_new_tokens_is_set)
      own.params.max_new_tokens = std::clamp<int64_t>(room, 1, own.params.max_new_tokens);
    GenerateRequest request;
    request.input_ids = one.prompt;
    request.sampling = own.params;
    HADAL_ASSIGN_OR_RETURN(one.id, engine->submit(std::move(request)));
  }
  std::map<std::string, Score> scores;
  Score all;
  for (size_t i = 0; i < asked.size(); ++i) {
    const EvalQuestion& question = questions[i];
    Asked& one = asked[i];
    TextStream stream(&tokenizer, {}, {.skip_special_tokens = false});
    const TokenChunk last =
        drain(*engine, one.id, guard, [&](const TokenChunk& chunk) { one.output += stream.append(chunk); });
    if (guard.interrupted()) return make_status(StatusCode::kCancelled, "interrupted after {} answers", i);
    if (last.finish_reason == FinishReason::kAbort) {
      return make_status(StatusCode::kInternal, "question {} stopped: {}", i + 1, last.matched);
    }
    const std::string_view answer = extract_answer(one.output, one.starts_in_reasoning);
    one.correct = is_correct(question, answer);
    for (Score* score : {&scores[question.task], &all}) {
      ++score->total;
      score->correct += one.correct ? 1 : 0;
    }
    if (answers.is_open()) {
      const nlohmann::ordered_json line = {
          {"task", question.task}, {"correct", one.correct}, {"expected", question.answer},
          {"answer", answer},      {"output", one.output},   {"completion_tokens", last.completion_tokens}};
      answers << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
    }
    if ((i + 1) % 100 == 0)
      log_info("eval progress answered={} of={} correct={}", i + 1, asked.size(), all.correct);
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
