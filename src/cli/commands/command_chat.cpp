// `hadal chat` holds a conversation in the terminal, or with the lines of a pipe.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "cli/chat/chat_command.h"
#include "cli/chat/chat_prompt.h"
#include "cli/chat/chat_settings.h"
#include "cli/chat/history_file.h"
#include "cli/chat/line_editor.h"
#include "cli/chat/transcript.h"
#include "cli/commands/commands.h"
#include "cli/drain.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "server/generation/stop_condition.h"
#include "server/generation/text_stream.h"
#include "text/chat/reasoning_parser.h"

namespace hadal::cli {
namespace {

constexpr std::string_view kDim = "\x1b[2m";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr size_t kMaxTranscriptBytes = size_t{64} << 20;

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

// Returns a line with the speed of an answer, and with the number of its prompt's tokens that were in the
// cache.
std::string speed_line(const TokenChunk& last) {
  const double decode_s = last.timings.decode_s;
  std::string out = fmt::format("{} tokens", last.completion_tokens);
  if (last.completion_tokens > 1 && decode_s > 0)
    out += fmt::format(", {:.1f} per second", static_cast<double>(last.completion_tokens - 1) / decode_s);
  return out + fmt::format("; prompt: {} tokens, {} of them cached, {:.2f} s", last.prompt_tokens,
                           last.cached_tokens, last.timings.prefill_s);
}

// Turns the messages of a conversation into answers.
class Answerer {
 public:
  Answerer(const Session& session, Engine& engine, ChatFormat format, bool content_as_text)
      : session_(session), engine_(engine), format_(format), content_as_text_(content_as_text) {}

  struct Answer {
    std::string text;
    TokenChunk last;
  };
  // Prints the answer while it is generated. The answer ends early when the guard has received a signal.
  Result<Answer> answer(const Transcript& transcript, const SamplingOptions& sampling,
                        const InterruptGuard& guard) {
    const ChatOptions chat{.thinking = transcript.thinking};
    HADAL_ASSIGN_OR_RETURN(
        ChatPrompt prompt,
        make_chat_prompt(*session_.tokenizer(), format_, transcript.messages(), chat, content_as_text_));
    GenerateRequest request;
    request.input_ids = std::move(prompt.ids);
    SamplingOptions own = sampling;
    HADAL_RETURN_IF_ERROR(fit_to_engine(own, static_cast<int64_t>(request.input_ids.size()), engine_));
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
    Answer out;
    out.last = drain(
        engine_, id, [&guard] { return guard.interrupted(); },
        [&](const TokenChunk& chunk) { printer.append(stream.append(chunk)); });
    out.text = printer.finish();
    if (out.last.finish_reason == FinishReason::kAbort && !guard.interrupted()) {
      return make_status(StatusCode::kInternal, "the answer was aborted: {}", out.last.abort_text);
    }
    return out;
  }

 private:
  const Session& session_;
  Engine& engine_;
  ChatFormat format_;
  const bool content_as_text_;
};

Result<void> save(const Transcript& transcript, const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    const auto text = read_text_file(path, kMaxTranscriptBytes);
    if (!text.ok() || !parse_transcript(*text, path).ok())
      return invalid_argument(
          "/save {}: the file exists and is not a saved conversation; must be a new file or a saved "
          "conversation",
          path);
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << transcript_json(transcript);
  file.close();
  if (!file) return data_loss("/save {}: cannot be written", path);
  return {};
}

Result<Transcript> load(const std::string& path) {
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxTranscriptBytes));
  return parse_transcript(text, path);
}

// Executes the user's inputs, one at a time.
class Chat {
 public:
  Chat(Answerer& answerer, ChatSettings& settings, Transcript transcript, bool interactive)
      : answerer_(answerer),
        settings_(settings),
        transcript_(std::move(transcript)),
        interactive_(interactive) {}

  bool is_over() const { return over_; }
  // Returns the text that the next message should begin with, and forgets it.
  std::string take_prefill() { return std::exchange(prefill_, std::string()); }
  // Notes that the user dropped the edited text, so that the next message replaces none.
  void drop_edit() { replaces_last_ = false; }

  Result<void> handle(const ChatInput& input, const InterruptGuard& guard) {
    const std::string text = input.text.value_or("");
    if (input.action != ChatAction::kSay) drop_edit();
    switch (input.action) {
      case ChatAction::kSay:
        if (std::exchange(replaces_last_, false)) return replace_last(text, guard);
        return say(text, guard);
      case ChatAction::kRetry:
        return replace_last(std::nullopt, guard);
      case ChatAction::kEdit:
        return edit(input.text, guard);
      case ChatAction::kSystem:
        return set_system(input.text);
      case ChatAction::kReset:
        transcript_.turns.clear();
        fmt::print(stderr, "the conversation is empty\n");
        return {};
      case ChatAction::kThink:
      case ChatAction::kNoThink:
        transcript_.thinking = input.action == ChatAction::kThink;
        fmt::print(stderr, "thinking is {}\n", transcript_.thinking ? "on" : "off");
        return {};
      case ChatAction::kSet:
        return set(input.text);
      case ChatAction::kSave:
        HADAL_RETURN_IF_ERROR(save(transcript_, text));
        fmt::print(stderr, "{} messages saved in {}\n", transcript_.messages().size(), printable(text));
        return {};
      case ChatAction::kLoad: {
        HADAL_ASSIGN_OR_RETURN(transcript_, load(text));
        fmt::print(stderr, "{} messages loaded\n", transcript_.messages().size());
        return {};
      }
      case ChatAction::kHelp:
        fmt::print(stderr, "{}", chat_help());
        return {};
      case ChatAction::kExit:
        over_ = true;
        return {};
    }
    return {};
  }

 private:
  // Answers one more message; after an error the conversation is as before.
  Result<void> say(const std::string& text, const InterruptGuard& guard) {
    transcript_.turns.push_back({.role = "user", .content = text});
    const auto answered = answer_last(guard);
    if (!answered.ok()) transcript_.turns.pop_back();
    return answered;
  }

  // Answers the last message again, with another text if there is one.
  Result<void> replace_last(const std::optional<std::string>& text, const InterruptGuard& guard) {
    if (transcript_.last_question() == nullptr) return invalid_argument("there is no message yet");
    Transcript before = transcript_;
    transcript_.drop_answer();
    if (text) transcript_.last_question()->content = *text;
    const auto answered = answer_last(guard);
    if (!answered.ok()) transcript_ = std::move(before);
    return answered;
  }

  Result<void> edit(const std::optional<std::string>& text, const InterruptGuard& guard) {
    if (text) return replace_last(text, guard);
    const ChatMessage* last = transcript_.last_question();
    if (last == nullptr) return invalid_argument("there is no message yet");
    if (!interactive_) return invalid_argument("/edit needs a text where there is no terminal to edit it on");
    prefill_ = last->content;
    replaces_last_ = true;
    return {};
  }

  Result<void> set(const std::optional<std::string>& text) {
    if (!text) {
      fmt::print(stderr, "{}", settings_.describe());
      return {};
    }
    HADAL_ASSIGN_OR_RETURN(const std::string now, settings_.set(*text));
    fmt::print(stderr, "{}\n", printable(now));
    return {};
  }

  Result<void> set_system(const std::optional<std::string>& text) {
    if (text) {
      transcript_.system = *text == "\"\"" ? "" : *text;
      fmt::print(stderr, "{}\n",
                 transcript_.system.empty() ? "there is no system prompt" : "the system prompt is set");
    } else {
      fmt::print(stderr, "{}\n",
                 transcript_.system.empty() ? "there is no system prompt" : printable(transcript_.system));
    }
    return {};
  }

  Result<void> answer_last(const InterruptGuard& guard) {
    HADAL_ASSIGN_OR_RETURN(Answerer::Answer answer,
                           answerer_.answer(transcript_, settings_.sampling(), guard));
    transcript_.turns.push_back({.role = "assistant", .content = std::move(answer.text)});
    if (interactive_) fmt::print(stderr, "{}{}{}\n", kDim, speed_line(answer.last), kPlain);
    return {};
  }

  Answerer& answerer_;
  ChatSettings& settings_;
  Transcript transcript_;
  const bool interactive_;
  bool over_ = false;
  bool replaces_last_ = false;  // the next message replaces the last one
  std::string prefill_;
};

// Reads messages with the line editor if the terminal supports it, and otherwise line by line.
class Input {
 public:
  Input(const Environment& environment, bool keep_history) {
    if (!LineEditor::usable(environment.term)) return;
    if (keep_history) history_ = chat_history_path(environment.xdg_state_home, environment.hub.home);
    editor_.emplace("> ", load_history(history_));
  }

  LineEditor::Message read(const std::string& prefill) {
    if (editor_) return editor_->read(prefill);
    if (stdin_is_terminal()) fmt::print(stderr, "> ");
    auto line = reader_.next_line();
    if (line) return {.end = LineEditor::End::kEntered, .text = *std::move(line)};
    if (stdin_is_terminal()) fmt::print(stderr, "\n");
    return {.end = InterruptGuard::seen() ? LineEditor::End::kInterrupted : LineEditor::End::kEndOfInput,
            .text = {}};
  }

  bool edits() const { return editor_.has_value(); }

  void remember(const std::string& text) {
    if (!editor_) return;
    editor_->remember(text);
    if (history_.empty()) return;
    if (const auto kept = append_history(history_, text); !kept.ok()) {
      fmt::print(stderr, "the history is not kept: {}\n", printable(kept.status().message));
      history_.clear();
    }
  }

 private:
  std::optional<LineEditor> editor_;
  LineReader reader_;
  std::filesystem::path history_;  // empty: it is not kept
};

}  // namespace

Result<int> run_chat(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kRequired));
  HADAL_ASSIGN_OR_RETURN(ChatSettings settings, ChatSettings::make(flags, session->generation_config(),
                                                                   session->config().vocab_size));
  log_sampling_defaults(settings.sampling());
  HADAL_ASSIGN_OR_RETURN(const ChatFormat format, session->chat_format(flags));
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const auto engine,
                         session->make_engine(resolve_engine_options(flags, session->options())));
  Answerer answerer(*session, *engine, format, content_is_text(flags));

  const bool interactive = stdin_is_terminal();
  if (interactive) fmt::print(stderr, "chat format {}; /help lists the commands\n", to_string(format));
  InterruptGuard guard;
  Input input(environment, !flags.has("no-history"));
  Chat chat(answerer, settings,
            {.system = flags.text_or("system", ""), .thinking = flags.has("thinking"), .turns = {}},
            input.edits());
  bool failed = false;
  while (!chat.is_over()) {
    guard.reset();
    const LineEditor::Message message = input.read(chat.take_prefill());
    if (message.end == LineEditor::End::kInterrupted) {
      if (message.text.empty()) return kExitInterrupted;
      chat.drop_edit();
      continue;  // the typed text is dropped
    }
    if (message.end == LineEditor::End::kEndOfInput) break;
    if (message.text.find_first_not_of(" \t\n") == std::string::npos) {
      chat.drop_edit();
      continue;
    }
    input.remember(message.text);
    const auto parsed = parse_chat_input(message.text);
    if (!parsed.ok()) {
      fmt::print(stderr, "{}\n{}", printable(parsed.status().message), interactive ? "" : chat_help());
      continue;
    }
    const auto handled = chat.handle(*parsed, guard);
    if (!handled.ok()) {
      // The new message may not fit into the context after the conversation.
      fmt::print(stderr, "error: {}{}\n", printable(handled.status().message),
                 parsed->action == ChatAction::kSay ? " (/reset clears the conversation)" : "");
      failed = true;
    }
    if (guard.interrupted() && !interactive) return kExitInterrupted;
  }
  return failed && !interactive ? kExitFailure : kExitOk;
}

}  // namespace hadal::cli
