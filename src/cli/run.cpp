#include "cli/run.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include "base/log.h"
#include "base/nearest_word.h"
#include "base/printable.h"
#include "base/version.h"
#include "cli/commands/commands.h"
#include "cli/flags/completions.h"
#include "cli/flags/flag_docs.h"
#include "cli/flags/flag_json.h"
#include "cli/flags/flag_parser.h"
#include "cli/flags/foreign_names.h"
#include "cli/flags/man_pages.h"
#include "cli/terminal.h"

namespace hadal::cli {
namespace {

// These are SGLang's module names.
constexpr std::pair<std::string_view, Command> kModules[] = {
    {"bench-one-batch", Command::kBenchOneBatch},
    {"bench-serving", Command::kBenchServing},
    {"bench-offline-throughput", Command::kBenchOffline},
    {"launch-server", Command::kServe},
};

// Each item of a list in a message is a line that begins with two blanks; those line breaks are kept. All
// other control characters are escaped.
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
    case Command::kFetch:
      return run_fetch(flags, environment);
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
  std::vector<ConfigEntry> file;
  if (const auto path = config_path(command, words)) {
    HADAL_ASSIGN_OR_RETURN(file, read_config_file(*path));
  }
  HADAL_ASSIGN_OR_RETURN(const ParsedFlags flags, parse_flags(command, words, file));
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

// Returns the second words of the commands that begin with `first`: "moe" for "tune moe".
std::vector<std::string_view> seconds_of(std::string_view first) {
  std::vector<std::string_view> seconds;
  for (const CommandInfo& info : commands()) {
    if (info.name.starts_with(first) && info.name.substr(first.size()).starts_with(' '))
      seconds.push_back(info.name.substr(first.size() + 1));
  }
  return seconds;
}

// Tells whether a word such as "tune" begins commands of two words and is no command by itself.
bool is_group(std::string_view first) {
  return !is_command(first) && !seconds_of(first).empty();
}

// Returns the error for words whose first one, `first`, begins commands of two words, if no such command has
// `words[1]` as its second word.
Status no_second(const std::string& first, std::span<const std::string> words) {
  const std::vector<std::string_view> seconds = seconds_of(first);
  std::vector<std::string_view> list(seconds);
  if (is_command(first)) list.insert(list.begin(), "flags");
  std::string allowed;
  for (size_t i = 0; i < list.size(); ++i)
    allowed += fmt::format("{}{}", i == 0 ? "" : i + 1 == list.size() ? " or " : ", ", list[i]);
  if (words.size() < 2 || words[1].starts_with('-'))
    return invalid_argument("`hadal {}` needs a second word: {}", first, allowed);
  const std::string second = with_dashes(words[1]);
  if (const std::string_view own = command_for_foreign(fmt::format("{} {}", first, second)); !own.empty())
    return invalid_argument("unknown command '{} {}'; `hadal {}` is followed by {}; did you mean {}?", first,
                            words[1], first, allowed, own);
  const auto begins = [&](std::string_view name) { return name.starts_with(second); };
  const auto longer = std::find_if(seconds.begin(), seconds.end(), begins);
  const std::string_view nearest = longer != seconds.end() ? *longer : nearest_word(second, seconds);
  return invalid_argument("unknown command '{} {}'; `hadal {}` is followed by {}{}", first, words[1], first,
                          allowed, nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

// Returns the command that was probably meant by one word or by two; empty if none is near.
std::string_view nearest_command(const std::string& one, const std::string& two) {
  for (const std::string& word : {two, one}) {
    if (const std::string_view own = command_for_foreign(word); !own.empty()) return own;
  }
  // The second word of a command may stand alone: "gsm8k", or "gsm9k".
  for (const CommandInfo& info : commands()) {
    const size_t space = info.name.find(' ');
    if (space == info.name.npos) continue;
    const std::string_view second = info.name.substr(space + 1);
    if (one.size() > 3 && edit_distance(one, second) <= 1) return info.name;
  }
  std::vector<std::string_view> names;
  for (const CommandInfo& info : commands()) names.push_back(info.name);
  const std::string_view by_two = nearest_word(two, names);
  for (const auto& [module, command] : kModules) names.push_back(module);
  const std::string_view by_one = nearest_word(one, names);
  if (by_one.empty() || by_two.empty()) return by_one.empty() ? by_two : by_one;
  return edit_distance(two, by_two) <= edit_distance(one, by_one) ? by_two : by_one;
}

}  // namespace

Result<std::pair<Command, size_t>> find_command(std::span<const std::string> words) {
  if (words.empty()) return invalid_argument("no command; `hadal --help` lists them");
  if (words[0].starts_with('-'))
    return invalid_argument("'{}' is where the command should be; `hadal --help` lists the commands",
                            words[0]);
  std::string one = with_dashes(words[0]);
  for (const std::string_view package : {"sglang.", "sglang-router."})
    if (one.starts_with(package)) one.erase(0, package.size());
  // A path names the model and is no part of a command's name.
  const bool has_second =
      words.size() > 1 && !words[1].starts_with('-') && words[1].find('/') == std::string::npos;
  const std::string two = has_second ? one + " " + with_dashes(words[1]) : one;
  // Two words are tried before one, because "eval gsm8k" is not "eval".
  for (const CommandInfo& info : commands()) {
    if (info.name == two && has_second) return std::pair(info.command, size_t{2});
  }
  if (has_second && !seconds_of(one).empty()) return no_second(one, words);
  for (const CommandInfo& info : commands()) {
    if (info.name == one) return std::pair(info.command, size_t{1});
  }
  for (const auto& [module, command] : kModules) {
    if (module == one) return std::pair(command, size_t{1});
  }
  if (is_group(one)) return no_second(one, words);
  if (const std::string_view reason = why_needless(one); !reason.empty())
    return invalid_argument("unknown command '{}': {}; `hadal --help` lists the commands", words[0], reason);
  const std::string_view nearest = nearest_command(one, two);
  return invalid_argument("unknown command '{}'{}; `hadal --help` lists the commands", words[0],
                          nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

namespace {

bool is_help_word(const std::string& word) {
  return word == "--help" || word == "-h" || word == "help";
}

// Prints help on the command that `words` name, or on everything if there are none.
int print_help(std::span<const std::string> words) {
  if (words.empty()) {
    write_stdout(overview_help());
    return kExitOk;
  }
  if (words.size() == 1 && is_group(with_dashes(words[0]))) {
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

// Returns the text of --flags, --completion or --man, which is made from the flag table.
Result<std::string> generated_text(std::string_view what, std::span<const std::string> words) {
  if (what == "--flags") {
    if (words.empty()) return flags_markdown();
    if (words.size() == 1 && words[0] == "--json") return flags_json();
    return invalid_argument("--flags {}: may be followed by --json alone", words[0]);
  }
  if (what == "--completion") {
    if (words.size() != 1) return invalid_argument("--completion needs one value: bash, zsh or fish");
    return completion_script(words[0]);
  }
  if (words.empty()) return man_page();
  HADAL_ASSIGN_OR_RETURN(const auto found, find_command(words));
  return man_page(found.first);
}

int print_generated(std::string_view what, std::span<const std::string> words) {
  const auto text = generated_text(what, words);
  if (text.ok()) {
    write_stdout(*text);
    return kExitOk;
  }
  print_error("", text.status().message);
  return exit_code(text.status().code);
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
      if (is_help_word(words[0])) return print_help(words.subspan(1));
      if (words[0] == "--flags" || words[0] == "--completion" || words[0] == "--man")
        return print_generated(words[0], words.subspan(1));
    }
    if (words.size() > 1 &&
        (words[1] == "help" || (is_help_word(words[1]) && is_group(with_dashes(words[0])))))
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
