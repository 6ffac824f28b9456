#include "cli/flags/completions.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "cli/flags/flag_table.h"
#include "cli/flags/flag_values.h"

namespace hadal::cli {
namespace {

// CompletedFlag is a flag of one command, with the words that complete its value.
struct CompletedFlag {
  const Flag* flag;
  std::string values;  // words that complete its value, separated by blanks; empty: files or nothing
  bool files = false;
};

// Tells whether the value of a flag names a file or a directory.
bool names_file(const Flag& flag) {
  for (const std::string_view name : split(flag.value_name, "|"))
    if (name == "FILE" || name == "DIR") return true;
  return false;
}

std::vector<CompletedFlag> completed_flags(Command command) {
  std::vector<CompletedFlag> entries;
  for (const Flag& flag : flag_table()) {
    if (flag.flag_class != FlagClass::kHonoured || (flag.commands & static_cast<CommandSet>(command)) == 0)
      continue;
    CompletedFlag entry{.flag = &flag, .values = flag.choices, .files = names_file(flag)};
    std::replace(entry.values.begin(), entry.values.end(), '|', ' ');
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Returns each first word of a command together with its second words: "bench" with one-batch, serving and
// offline.
std::vector<std::pair<std::string_view, std::vector<std::string_view>>> words_of_commands() {
  std::vector<std::pair<std::string_view, std::vector<std::string_view>>> groups;
  for (const CommandInfo& info : commands()) {
    const std::string_view first = info.name.substr(0, info.name.find(' '));
    auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {first, {}});
    if (first != info.name) group->second.push_back(info.name.substr(first.size() + 1));
  }
  return groups;
}

std::string joined(const std::vector<std::string_view>& words) {
  std::string out;
  for (const std::string_view word : words) out += fmt::format("{}{}", out.empty() ? "" : " ", word);
  return out;
}

std::string first_words() {
  std::string out;
  for (const auto& [first, seconds] : words_of_commands()) out += fmt::format("{} ", first);
  return out + "--help --version --flags --completion --man";
}

// Returns the lines of a `case` in sh that turn the words at $1 and $2 into $command.
std::string command_case() {
  std::string out;
  for (const auto& [first, seconds] : words_of_commands()) {
    for (const std::string_view second : seconds)
      out += fmt::format("    '{} {}') command='{} {}' ;;\n", first, second, first, second);
  }
  for (const auto& [first, seconds] : words_of_commands())
    out += fmt::format("    '{0} '*) command='{0}' ;;\n", first);
  return out;
}

std::string bash_script() {
  std::string flags, values, seconds_case;
  for (const auto& [first, seconds] : words_of_commands()) {
    if (!seconds.empty()) seconds_case += fmt::format("    {}) seconds='{}' ;;\n", first, joined(seconds));
  }
  for (const CommandInfo& info : commands()) {
    std::string names;
    // The flags of a command with the same values share a line.
    std::map<std::string, std::string> by_values;
    for (const CompletedFlag& entry : completed_flags(info.command)) {
      names += fmt::format("--{} ", entry.flag->name);
      if (entry.flag->kind == ValueKind::kSwitch) continue;
      const std::string key = !entry.values.empty() ? entry.values : entry.files ? "<files>" : "<none>";
      std::string& list = by_values[key];
      list += fmt::format("{}'{} --{}'", list.empty() ? "" : "|", info.name, entry.flag->name);
    }
    flags += fmt::format("    '{}') flags='{}--help' ;;\n", info.name, names);
    for (const auto& [words, list] : by_values)
      values += fmt::format("    {}) values='{}' ;;\n", list, words);
  }
  return fmt::format(
      "# bash completion for hadal, as `hadal --completion bash` prints it\n"
      "_hadal() {{\n"
      "  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  local command='' flags='' values='' seconds=''\n"
      "  COMPREPLY=()\n"
      "  # A '=' is a word of its own to bash: --flag=value has three.\n"
      "  if [[ $before == '=' ]]; then before=${{COMP_WORDS[COMP_CWORD-2]}}; fi\n"
      "  if [[ $current == '=' ]]; then current=''; fi\n"
      "  if (( COMP_CWORD == 1 )); then\n"
      "    COMPREPLY=($(compgen -W '{0}' -- \"$current\"))\n"
      "    return\n"
      "  fi\n"
      "  case ${{COMP_WORDS[1]}} in\n"
      "    --completion) COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$current\")); return ;;\n"
      "    --flags) COMPREPLY=($(compgen -W '--json' -- \"$current\")); return ;;\n"
      "{1}"
      "  esac\n"
      "  if (( COMP_CWORD == 2 )) && [[ -n $seconds && $current != -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$seconds\" -- \"$current\"))\n"
      "    (( ${{#COMPREPLY[@]}} )) && return\n"
      "  fi\n"
      "  case \"${{COMP_WORDS[1]}} ${{COMP_WORDS[2]}}\" in\n"
      "{2}"
      "  esac\n"
      "  case \"$command $before\" in\n"
      "{3}"
      "  esac\n"
      "  case $values in\n"
      "    '') ;;\n"
      "    '<none>') return ;;\n"
      "    '<files>') COMPREPLY=($(compgen -f -- \"$current\")); compopt -o filenames 2>/dev/null; return "
      ";;\n"
      "    *) COMPREPLY=($(compgen -W \"$values\" -- \"$current\")); return ;;\n"
      "  esac\n"
      "  case $command in\n"
      "{4}"
      "  esac\n"
      "  if [[ $current == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$flags\" -- \"$current\"))\n"
      "  else\n"
      "    COMPREPLY=($(compgen -d -- \"$current\")); compopt -o filenames 2>/dev/null\n"
      "  fi\n"
      "}}\n"
      "complete -F _hadal hadal\n",
      first_words(), seconds_case, command_case(), values, flags);
}

// Writes a text between single quotes of zsh or fish; `quote` is how the shell writes a quote inside.
std::string quoted(std::string_view text, std::string_view quote) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += quote;
    } else {
      out += c;
    }
  }
  return out;
}

// Returns the first clause of a flag's help, because only that fits beside a completion.
std::string_view short_help(const Flag& flag) {
  return std::string_view(flag.text).substr(0, flag.text.find(';'));
}

std::string zsh_script() {
  std::string out =
      "#compdef hadal\n"
      "# zsh completion for hadal, as `hadal --completion zsh` prints it\n"
      "_hadal() {\n"
      "  local command=''\n"
      "  local -a commands\n"
      "  if (( CURRENT == 2 )); then\n"
      "    commands=(";
  for (const auto& [first, seconds] : words_of_commands()) out += fmt::format("{} ", first);
  out +=
      "--help --version --flags --completion --man)\n"
      "    compadd -a commands\n"
      "    return\n"
      "  fi\n"
      "  case $words[2] in\n"
      "    --completion) compadd bash zsh fish; return ;;\n";
  for (const auto& [first, seconds] : words_of_commands()) {
    if (seconds.empty()) continue;
    // A word such as "eval" is also a command by itself, so its flags may follow it.
    out += fmt::format("    {}) if (( CURRENT == 3 )) && [[ $words[3] != -* ]]; then compadd {};{} fi ;;\n",
                       first, joined(seconds), is_command(first) ? "" : " return;");
  }
  out += "  esac\n  case \"$words[2] $words[3]\" in\n" + command_case() + "  esac\n  case $command in\n";
  for (const CommandInfo& info : commands()) {
    out += fmt::format("    '{}')\n      _arguments -S '*: :_files'", info.name);
    for (const CompletedFlag& entry : completed_flags(info.command)) {
      std::string help;
      for (const char c : short_help(*entry.flag)) {
        if (c == '[' || c == ']' || c == ':' || c == '\\') help += '\\';
        help += c;
      }
      std::string value;
      if (entry.flag->kind != ValueKind::kSwitch) {
        value = entry.values.empty() ? entry.files ? ":value:_files" : ":value: "
                                     : fmt::format(":value:({})", entry.values);
      }
      out += fmt::format(" \\\n        '*--{}{}[{}]{}'", entry.flag->name,
                         entry.flag->kind == ValueKind::kSwitch ? "" : "=", quoted(help, "'\\''"), value);
    }
    out += " \\\n        '*--help[list the flags of the command]' ;;\n";
  }
  return out +
         "  esac\n"
         "}\n"
         "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _hadal \"$@\"; else compdef _hadal hadal; "
         "fi\n";
}

std::string fish_script() {
  std::string out =
      "# fish completion for hadal, as `hadal --completion fish` prints it\n"
      "function __hadal_command\n"
      "  set -l words (commandline -opc) '' ''\n"
      "  switch \"$words[2] $words[3]\"\n";
  for (const auto& [first, seconds] : words_of_commands()) {
    for (const std::string_view second : seconds)
      out += fmt::format("    case '{0} {1}'\n      echo '{0} {1}'\n", first, second);
  }
  for (const auto& [first, seconds] : words_of_commands())
    out += fmt::format("    case '{0} *'\n      echo '{0}'\n", first);
  out +=
      "  end\n"
      "end\n"
      "complete -c hadal -n 'test (count (commandline -opc)) -eq 1' -f -a '";
  out += first_words() + "'\n";
  out += "complete -c hadal -n 'contains -- --completion (commandline -opc)' -f -a 'bash zsh fish'\n";
  for (const auto& [first, seconds] : words_of_commands()) {
    if (seconds.empty()) continue;
    out += fmt::format(
        "complete -c hadal -n 'set -l w (commandline -opc); test (count $w) -eq 2; and test $w[2] = {}' -f "
        "-a '{}'\n",
        first, joined(seconds));
  }
  for (const CommandInfo& info : commands()) {
    for (const CompletedFlag& entry : completed_flags(info.command)) {
      std::string value;
      if (entry.flag->kind != ValueKind::kSwitch) {
        value =
            entry.values.empty() ? entry.files ? " -r -F" : " -x" : fmt::format(" -x -a '{}'", entry.values);
      }
      out += fmt::format("complete -c hadal -n 'test (__hadal_command) = \"{}\"' -l {}{} -d '{}'\n",
                         info.name, entry.flag->name, value, quoted(short_help(*entry.flag), "\\'"));
    }
  }
  return out;
}

}  // namespace

Result<std::string> completion_script(std::string_view shell) {
  if (shell == "bash") return bash_script();
  if (shell == "zsh") return zsh_script();
  if (shell == "fish") return fish_script();
  return invalid_argument("--completion {}: must be one of bash, zsh, fish", shell.empty() ? "''" : shell);
}

}  // namespace hadal::cli
