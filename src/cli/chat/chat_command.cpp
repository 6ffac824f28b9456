#include "cli/chat/chat_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/nearest_word.h"

namespace hadal::cli {
namespace {

enum class Argument { kNone, kOptional, kRequired };

struct CommandRow {
  std::string_view name;
  ChatAction action;
  Argument argument;
  std::string_view usage;  // shown after the name in the list of commands, which has only commands with help
  std::string_view help;
};

constexpr CommandRow kRows[] = {
    {"system", ChatAction::kSystem, Argument::kOptional, "[TEXT]",
     "set the system prompt, or show it; \"\": none"},
    {"think", ChatAction::kThink, Argument::kOptional, "[on|off]",
     "let the model think before it answers, or not"},
    {"nothink", ChatAction::kNoThink, Argument::kNone, "", "answer at once"},
    {"retry", ChatAction::kRetry, Argument::kNone, "", "answer the last message again"},
    {"edit", ChatAction::kEdit, Argument::kOptional, "[TEXT]",
     "change the last message, and answer it again"},
    {"set", ChatAction::kSet, Argument::kOptional, "[NAME [VALUE]]",
     "set how answers are sampled, as in /set temperature 0.6"},
    {"save", ChatAction::kSave, Argument::kRequired, "FILE", "write the conversation to a file, as JSON"},
    {"load", ChatAction::kLoad, Argument::kRequired, "FILE", "go on with a conversation of a file"},
    {"reset", ChatAction::kReset, Argument::kNone, "", "forget the conversation"},
    {"help", ChatAction::kHelp, Argument::kNone, "", "list these commands"},
    {"exit", ChatAction::kExit, Argument::kNone, "", "leave (also Ctrl-D, and Ctrl-C in an empty line)"},
    {"quit", ChatAction::kExit, Argument::kNone, "", ""},
    {"bye", ChatAction::kExit, Argument::kNone, "", ""},
    {"clear", ChatAction::kReset, Argument::kNone, "", ""},
};

constexpr std::string_view kBlank = " \t\r\n";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlank);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlank) + 1 - begin);
}

}  // namespace

Result<ChatInput> parse_chat_input(std::string_view input) {
  if (!input.starts_with('/') || trimmed(input).find('\n') != input.npos)
    return ChatInput{.action = ChatAction::kSay, .text = std::string(input)};
  const std::string_view line = trimmed(input.substr(1));
  const size_t space = std::min(line.find_first_of(kBlank), line.size());
  const std::string_view name = line.substr(0, space);
  const std::string_view rest = trimmed(line.substr(space));
  const auto row = std::find_if(std::begin(kRows), std::end(kRows),
                                [&](const CommandRow& candidate) { return candidate.name == name; });
  if (row == std::end(kRows)) {
    std::vector<std::string_view> names;
    for (const CommandRow& known : kRows) names.push_back(known.name);
    const std::string_view nearest = nearest_word(name, names);
    return invalid_argument("unknown command /{}{}; /help lists the commands", name,
                            nearest.empty() ? "" : fmt::format("; did you mean /{}?", nearest));
  }
  if (row->argument == Argument::kNone && !rest.empty())
    return invalid_argument("/{} {}: the command has no argument", name, rest);
  if (row->argument == Argument::kRequired && rest.empty())
    return invalid_argument("/{} needs the name of a file", name);
  if (row->action == ChatAction::kThink && !rest.empty()) {
    if (rest == "off") return ChatInput{.action = ChatAction::kNoThink, .text = std::nullopt};
    if (rest != "on") return invalid_argument("/think {}: must be on or off", rest);
    return ChatInput{.action = ChatAction::kThink, .text = std::nullopt};
  }
  if (rest.empty()) return ChatInput{.action = row->action, .text = std::nullopt};
  return ChatInput{.action = row->action, .text = std::string(rest)};
}

std::string chat_help() {
  std::string out;
  for (const CommandRow& row : kRows) {
    if (row.help.empty()) continue;
    const std::string left = fmt::format("/{}{}{}", row.name, row.usage.empty() ? "" : " ", row.usage);
    out += fmt::format("{:<22}{}\n", left, row.help);
  }
  return out +
         "Ctrl-C stops an answer. A pasted text of several lines is one message, and Alt-Enter begins a new\n"
         "line. The arrow keys, Ctrl-A, Ctrl-E and Ctrl-R edit the line and search what was typed before.\n";
}

}  // namespace hadal::cli
