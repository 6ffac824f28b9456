#include "cli/run.h"

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

}  // namespace

Result<std::pair<Command, size_t>> find_command(std::span<const std::string> words) {
  if (words.empty()) return invalid_argument("no command; `hadal --help` lists them");
  std::string one = words[0];
  for (char& c : one) {
    if (c == '_') c = '-';
  }
  std::string two = words.size() > 1 ? one + " " + words[1] : one;
  for (char& c : two) {
    if (c == '_') c = '-';
  }
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
  std::vector<std::string_view> names;
  for (const CommandInfo& info : commands()) names.push_back(info.name);
  if (one == "bench")
    return invalid_argument("`hadal bench` needs to know what: one-batch, serving or offline");
  if (one == "tune") return invalid_argument("`hadal tune` needs to know what: fp8-gemm or moe");
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
  // The commands of two words are told apart in the overview.
  if (words.empty() || (words.size() == 1 && (words[0] == "bench" || words[0] == "tune"))) {
    write_stdout(overview_help());
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
    if (words.size() > 1 && (words[0] == "bench" || words[0] == "tune") && asks_for_help(words[1])) {
      return print_help(words.first(1));
    }
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
