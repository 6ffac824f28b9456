#include "cli/run.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "base/log.h"
#include "base/nearest_word.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/flag_docs.h"
#include "cli/flag_parser.h"
#include "cli/terminal.h"

namespace hadal::cli {
namespace {

// SGLang's module names.
constexpr std::pair<std::string_view, Command> kModules[] = {
    {"bench-one-batch", Command::kBenchOneBatch},
    {"bench-serving", Command::kBenchServing},
    {"bench-offline-throughput", Command::kBenchOffline},
    {"launch-server", Command::kServe},
};

// A list in a message is lines of its own, two blanks in: those breaks stay. No other control character does.
void print_error(std::string_view command, std::string_view message) {
  constexpr std::string_view kNextLine = "\n  ";
  std::string text;
  for (size_t end; (end = message.find(kNextLine)) != message.npos;) {
    text += printable(message.substr(0, end)).append(kNextLine);
    message.remove_prefix(end + kNextLine.size());
  }
  text += printable(message);
  fmt::print(stderr, "hadal{}{}: error: {}\n", command.empty() ? "" : " ", command, text);
}

int exit_code(StatusCode code) {
  if (code == StatusCode::kInvalidArgument) return kExitUsage;
  if (code == StatusCode::kCancelled) return kExitInterrupted;
  return kExitFailure;
}

Result<int> dispatch(Command command, const ParsedFlags& flags, const Environment& environment) {
  switch (command) {
    case Command::kGenerate:
      return run_generate(flags, environment);
    case Command::kChat:
      return run_chat(flags, environment);
    case Command::kLogits:
      return run_logits(flags, environment);
    case Command::kTokenize:
      return run_tokenize(flags, environment);
    case Command::kDetokenize:
      return run_detokenize(flags, environment);
    case Command::kInfo:
      return run_info(flags, environment);
    case Command::kBenchOneBatch:
      return run_bench_one_batch(flags, environment);
    case Command::kEval:
      return run_eval(flags, environment);
    case Command::kEvalGsm8k:
      return run_eval_gsm8k(flags, environment);
    case Command::kEvalGpqa:
      return run_eval_gpqa(flags, environment);
    case Command::kServe:
      return run_serve(flags, environment);
    case Command::kBenchServing:
      return run_bench_serving(flags, environment);
    case Command::kBenchOffline:
      return run_bench_offline(flags, environment);
    case Command::kTuneGemm:
    case Command::kTuneMoe:
      return run_tune(flags, environment);
    case Command::kNone:
      break;
  }
  return make_status(StatusCode::kInternal, "no command");
}

Result<int> run_command(Command command, std::span<const std::string> words, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const ParsedFlags flags, parse_flags(command, words));
  if (flags.help) {
    write_stdout(command_help(command));
    return kExitOk;
  }
  apply_log_level(flags);
  for (const std::string& note : flags.notes) log_info("{}", printable(note));
  return dispatch(command, flags, environment);
}

std::string with_dashes(std::string word) {
  std::replace(word.begin(), word.end(), '_', '-');
  return word;
}

// "tune" of "tune moe", where it is no command alone: the seconds of its commands; else none.
std::vector<std::string_view> seconds_of(std::string_view first) {
  std::vector<std::string_view> seconds;
  for (const CommandInfo& info : commands()) {
    if (info.name == first) return {};
    if (info.name.starts_with(first) && info.name.substr(first.size()).starts_with(' '))
      seconds.push_back(info.name.substr(first.size() + 1));
  }
  return seconds;
}

// `words` begins with such a first word, and no command follows from its second one.
Status no_second(std::string_view first, const std::vector<std::string_view>& seconds,
                 std::span<const std::string> words) {
  std::string allowed;
  for (size_t i = 0; i < seconds.size(); ++i)
    allowed += fmt::format("{}{}", i == 0 ? "" : i + 1 == seconds.size() ? " or " : ", ", seconds[i]);
  if (words.size() < 2 || words[1].starts_with('-'))
    return invalid_argument("`hadal {}` needs to know what: {}", first, allowed);
  const std::string second = with_dashes(words[1]);
  const auto begins = [&](std::string_view name) { return name.starts_with(second); };
  const auto longer = std::find_if(seconds.begin(), seconds.end(), begins);
  const std::string_view nearest = longer != seconds.end() ? *longer : nearest_word(second, seconds);
  return invalid_argument("unknown command '{} {}'; `hadal {}` is followed by {}{}", first, words[1], first,
                          allowed, nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

}  // namespace

Result<std::pair<Command, size_t>> find_command(std::span<const std::string> words) {
  if (words.empty()) return invalid_argument("no command; `hadal --help` lists them");
  const std::string one = with_dashes(words[0]);
  const std::string two = words.size() > 1 ? one + " " + with_dashes(words[1]) : one;
  // Two words before one: "eval gsm8k" is not "eval".
  for (const CommandInfo& info : commands()) {
    if (info.name == two && two != one) return std::pair(info.command, size_t{2});
  }
  for (const CommandInfo& info : commands()) {
    if (info.name == one) return std::pair(info.command, size_t{1});
  }
  for (const auto& [module, command] : kModules) {
    if (module == one) return std::pair(command, size_t{1});
  }
  if (const auto seconds = seconds_of(one); !seconds.empty()) return no_second(one, seconds, words);
  std::vector<std::string_view> names;
  for (const CommandInfo& info : commands()) names.push_back(info.name);
  const std::string_view nearest = nearest_word(one, names);
  return invalid_argument("unknown command '{}'{}; `hadal --help` lists them", words[0],
                          nearest.empty() ? "" : fmt::format("; the nearest one is {}", nearest));
}

namespace {

bool asks_for_help(const std::string& word) {
  return word == "--help" || word == "-h" || word == "help";
}

// `words`: what help is asked about, none for everything.
int print_help(std::span<const std::string> words) {
  if (words.empty()) {
    write_stdout(overview_help());
    return kExitOk;
  }
  if (words.size() == 1 && !seconds_of(with_dashes(words[0])).empty()) {
    write_stdout(group_help(with_dashes(words[0])));
    return kExitOk;
  }
  const auto found = find_command(words);
  if (!found.ok()) {
    print_error("help", found.status().message);
    return exit_code(found.status().code);
  }
  write_stdout(command_help(found->first));
  return kExitOk;
}

}  // namespace

int run(std::span<const std::string> words, const Environment& environment) {
  std::string_view name;
  try {
    if (!words.empty()) {
      if (words[0] == "--version" || words[0] == "-V") {
        write_stdout(fmt::format("hadal {}\n", version()));
        return kExitOk;
      }
      if (asks_for_help(words[0])) return print_help(words.subspan(1));
      if (words[0] == "--flags") {
        write_stdout(flags_markdown());
        return kExitOk;
      }
    }
    if (words.size() > 1 && asks_for_help(words[1]) && !seconds_of(with_dashes(words[0])).empty())
      return print_help(words.first(1));
    const auto found = find_command(words);
    if (!found.ok()) {
      print_error("", found.status().message);
      return exit_code(found.status().code);
    }
    const auto [command, num_words] = *found;
    name = info_of(command).name;
    const Result<int> outcome = run_command(command, words.subspan(num_words), environment);
    if (outcome.ok()) return *outcome;
    print_error(name, outcome.status().message);
    return exit_code(outcome.status().code);
  } catch (const std::bad_alloc&) {
    print_error(name, "out of memory");
  } catch (const std::exception& error) {
    print_error(name, error.what());
  }
  return kExitFailure;
}

}  // namespace hadal::cli
