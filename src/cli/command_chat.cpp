// `hadal chat` holds a conversation in the terminal, or with the lines of a pipe.
#include <cstdio>

#include "base/log.h"
#include "base/printable.h"
#include "cli/chat_prompt.h"
#include "cli/commands.h"
#include "cli/defaults.h"
#include "cli/drain.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "server/stop_condition.h"
#include "server/text_stream.h"
#include "text/reasoning_parser.h"

namespace hadal::cli {
namespace {

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr std::string_view kHelp =
    "/think     let the model think before it answers\n"
    "/nothink   answer at once\n"
    "/reset     forget the conversation\n"
    "/exit      leave (also Ctrl-D, and Ctrl-C at the prompt)\n"
    "Ctrl-C stops an answer.\n";

// Prints the reasoning dimmed on a terminal, and elsewhere between the tags that the model wrote.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(ReasoningParser::Options options)
      : parser_(options), coloured_(stdout_is_terminal()) {
    if (parser_.in_reasoning()) open_reasoning();
  }
  void append(std::string_view text) { show(parser_.append(text)); }
  // Returns the answer without its reasoning.
  std::string finish() {
    show(parser_.finish());
    if (reasoning_is_open_ && coloured_) write_stdout(kPlain);
    write_stdout("\n");
    return answer_;
  }

 private:
  void open_reasoning() {
    reasoning_is_open_ = true;
    write_stdout(coloured_ ? kDim : "<think>");
  }
  void show(const ReasoningParser::Piece& piece) {
    if (!piece.reasoning.empty() && !reasoning_is_open_) open_reasoning();
    write_stdout(piece.reasoning);
    if (reasoning_is_open_ && !parser_.in_reasoning()) {
      reasoning_is_open_ = false;
      write_stdout(coloured_ ? std::string(kPlain) + "\n" : "</think>\n");
    }
    write_stdout(piece.content);
    answer_ += piece.content;
  }

  ReasoningParser parser_;
  bool coloured_;
  bool reasoning_is_open_ = false;
  std::string answer_;
};

class Conversation {
 public:
  Conversation(const Session& session, Engine& engine, ChatFormat format, const SamplingOptions& sampling,
               std::string system, bool thinking, bool content_as_text)
      : session_(session),
        engine_(engine),
        format_(format),
        sampling_(sampling),
        system_(std::move(system)),
        thinking_(thinking),
        content_as_text_(content_as_text) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({.role = "system", .content = system_});
  }
  void set_thinking(bool thinking) { thinking_ = thinking; }

  // Answers one message; after an error the conversation is as before.
  Result<void> answer(const std::string& text, const InterruptGuard& guard) {
    messages_.push_back({.role = "user", .content = text});
    auto said = generate(guard);
    if (!said.ok()) {
      messages_.pop_back();
      return said.status();
    }
    messages_.push_back({.role = "assistant", .content = *said});
    return {};
  }

 private:
  Result<std::string> generate(const InterruptGuard& guard) {
    const ChatOptions chat{.thinking = thinking_};
    HADAL_ASSIGN_OR_RETURN(ChatPrompt prompt, make_chat_prompt(*session_.tokenizer(), format_, messages_,
                                                               chat, content_as_text_));
    GenerateRequest request;
    request.input_ids = std::move(prompt.ids);
    SamplingOptions own = sampling_;
    fit_to_context(own, static_cast<int64_t>(request.input_ids.size()), engine_);
    request.sampling = own.params;
    constexpr bool kSkipSpecialTokens = false;  // "</think>" may be a special token
    HADAL_ASSIGN_OR_RETURN(const auto stops, server::compile_stops(own.stop));
    if (stops != nullptr) {
      request.stop = server::make_stop_condition(*session_.tokenizer(), stops, kSkipSpecialTokens);
    }
    HADAL_ASSIGN_OR_RETURN(const RequestId id, engine_.submit(std::move(request)));
    server::TextStream stream(session_.tokenizer(), stops, {.skip_special_tokens = kSkipSpecialTokens});
    HADAL_ASSIGN_OR_RETURN(const ReasoningFormat reasoning, resolve_reasoning_format("auto", format_));
    AnswerPrinter printer(
        {.format = reasoning, .starts_in_reasoning = starts_in_reasoning(reasoning, prompt.turns)});
    const TokenChunk last = drain(
        engine_, id, [&guard] { return guard.interrupted(); },
        [&](const TokenChunk& chunk) { printer.append(stream.append(chunk)); });
    std::string answer = printer.finish();
    if (last.finish_reason == FinishReason::kAbort && !guard.interrupted()) {
      return make_status(StatusCode::kInternal, "the answer was aborted: {}", last.matched);
    }
    return answer;
  }

  const Session& session_;
  Engine& engine_;
  ChatFormat format_;
  SamplingOptions sampling_;
  std::string system_;
  bool thinking_;
  const bool content_as_text_;
  std::vector<ChatMessage> messages_;
};

}  // namespace

Result<int> run_chat(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kRequired));
  HADAL_ASSIGN_OR_RETURN(const SamplingOptions sampling,
                         resolve_sampling(flags, session->generation_config(), kDefaultAnswerTokens));
  HADAL_RETURN_IF_ERROR(validate(sampling.params, session->config().vocab_size));
  HADAL_ASSIGN_OR_RETURN(const ChatFormat format, session->chat_format(flags));
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const auto engine,
                         session->make_engine(resolve_engine_options(flags, session->options())));
  Conversation conversation(*session, *engine, format, sampling, flags.text_or("system", ""),
                            flags.has("thinking"), content_is_text(flags));

  const bool interactive = stdin_is_terminal();
  if (interactive) fmt::print(stderr, "chat format {}; /help lists the commands\n", to_string(format));
  InterruptGuard guard;
  LineReader reader;
  bool failed = false;
  while (true) {
    guard.reset();
    if (interactive) fmt::print(stderr, "> ");
    const auto line = reader.next_line();
    if (!line) {
      if (interactive) fmt::print(stderr, "\n");
      if (guard.interrupted()) return kExitInterrupted;
      break;
    }
    if (line->empty()) continue;
    if (line->front() != '/') {
      const auto answered = conversation.answer(*line, guard);
      if (!answered.ok()) {
        fmt::print(stderr, "error: {} (/reset clears the conversation)\n",
                   printable(answered.status().message));
        failed = true;
      }
      if (guard.interrupted() && !interactive) return kExitInterrupted;
    } else if (*line == "/exit" || *line == "/quit") {
      break;
    } else if (*line == "/reset") {
      conversation.reset();
    } else if (*line == "/think" || *line == "/nothink") {
      conversation.set_thinking(*line == "/think");
    } else {
      if (*line != "/help") fmt::print(stderr, "unknown command {}\n", *line);
      fmt::print(stderr, "{}", kHelp);
    }
  }
  return failed && !interactive ? kExitFailure : kExitOk;
}

}  // namespace hadal::cli
