#include "cli/flags/flag_docs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/version.h"
#include "cli/flags/flag_values.h"
#include "cli/flags/foreign_names.h"

namespace hadal::cli {
namespace {

// Breaks `text` at spaces into lines of at most `width` bytes; all but the first begin at column `indent`.
std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string out;
  while (text.size() > width) {
    size_t cut = text.rfind(' ', width);
    if (cut == std::string_view::npos) cut = width;
    out += fmt::format("{}\n{:{}}", text.substr(0, cut), "", indent);
    text.remove_prefix(std::min(text.size(), cut + 1));
  }
  return out + std::string(text);
}

// Counts the columns that a terminal shows: characters such as "…" have several bytes but one column.
size_t columns(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return count;
}

std::string markdown_cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string command_names(CommandSet set) {
  std::string out;
  for (const CommandInfo& info : commands()) {
    if ((set & static_cast<CommandSet>(info.command)) == 0) continue;
    if (!out.empty()) out += ", ";
    out += info.name;
  }
  return out;
}

// Groups the rows of one class by their text, in the order of the table.
std::vector<std::pair<std::string, std::string>> names_by_text(FlagClass wanted) {
  std::vector<std::pair<std::string, std::string>> groups;
  std::map<std::string, size_t> at;
  for (const Flag& flag : flag_table()) {
    if (flag.flag_class != wanted) continue;
    const auto [found, is_new] = at.emplace(flag.text, groups.size());
    if (is_new) groups.emplace_back(flag.text, "");
    std::string& names = groups[found->second].second;
    names += fmt::format("{}`--{}{}`", names.empty() ? "" : ", ", flag.name,
                         flag.choices.empty() ? "" : " " + flag.choices);
  }
  return groups;
}

}  // namespace

// Groups that are not named here come last.
std::vector<std::string_view> flag_groups() {
  std::vector<std::string_view> groups = {"Server", "Load",     "Input", "Batch",
                                          "Output", "Sampling", "Model", "Running"};
  for (const Flag& flag : flag_table()) {
    if (flag.flag_class == FlagClass::kHonoured &&
        std::find(groups.begin(), groups.end(), flag.group) == groups.end()) {
      groups.push_back(flag.group);
    }
  }
  return groups;
}

std::string signature(const Flag& flag) {
  std::string out = "--" + flag.name;
  if (flag.kind == ValueKind::kSwitch) return out;
  if (!flag.choices.empty()) return out + " " + flag.choices;
  if (!flag.value_name.empty()) out += fmt::format(" {}", flag.value_name);
  if (flag.kind == ValueKind::kList) out += " …";
  return out;
}

std::string help_text(const Flag& flag) {
  if (flag.default_text.empty()) return flag.text;
  return fmt::format("{} [{}]", flag.text, flag.default_text);
}

std::string overview_help() {
  std::string out = fmt::format(
      "hadal {} runs DeepSeek models\n\nusage: hadal COMMAND MODEL [flags]\n\ncommands:\n", version());
  for (const CommandInfo& info : commands()) out += fmt::format("  {:<16}{}\n", info.name, info.summary);
  out +=
      "\n  hadal COMMAND --help   lists the flags of a command\n"
      "  hadal --flags          lists all flags, and those of SGLang that are accepted or refused\n"
      "  hadal --flags --json   prints them as JSON\n"
      "  hadal --completion SHELL   prints completions for bash, zsh or fish\n"
      "  hadal --man [COMMAND]  prints a manual page, as in: hadal --man serve | man -l -\n"
      "  hadal --version        prints the version\n";
  return out;
}

std::string group_help(std::string_view first_word) {
  std::string out = fmt::format("hadal {} is followed by one of these words:\n\n", first_word);
  for (const CommandInfo& info : commands()) {
    if (!info.name.starts_with(fmt::format("{} ", first_word))) continue;
    out += fmt::format("  {:<18}{}\n  {:<18}example: {}\n", info.name, info.summary, "", info.example);
  }
  return out + "\n  hadal COMMAND --help   lists the flags of a command\n";
}

std::string command_help(Command command) {
  constexpr size_t kIndent = 32;
  const CommandInfo& info = info_of(command);
  std::string out = fmt::format("hadal {}: {}\n\nexample: {}\n", info.name, info.summary, info.example);
  for (const std::string_view group : flag_groups()) {
    std::string section;
    for (const Flag& flag : flag_table()) {
      if (flag.flag_class != FlagClass::kHonoured || flag.group != group ||
          (flag.commands & static_cast<CommandSet>(command)) == 0) {
        continue;
      }
      const std::string left = "  " + signature(flag);
      section += left;
      section += columns(left) + 2 > kIndent ? fmt::format("\n{:{}}", "", kIndent)
                                             : std::string(kIndent - columns(left), ' ');
      section += wrapped(help_text(flag), 110 - kIndent, kIndent) + "\n";
    }
    if (!section.empty()) out += fmt::format("\n{}:\n{}", group, section);
  }
  out +=
      "\nNames may be shortened as long as they stay unique, and written with _ instead of -. `hadal "
      "--flags`\n"
      "lists the flags of SGLang that are accepted because hadal always does what they ask for, and those\n"
      "that are refused, with what to use instead.\n";
  return out;
}

std::string flags_markdown() {
  std::string out =
      "# Flags\n\n"
      "`hadal --flags` writes this page from `src/cli/flags/flag_table*.cpp`; a test compares the two.\n\n"
      "Names may be written with `-` or `_`, shortened as long as they stay unique (`--tp`, `--input`), and\n"
      "given as `--name value` or `--name=value`. An unknown flag is an error that names the nearest one. "
      "One error lists\neverything that is wrong with a command line. The model may come first without its "
      "flag: `hadal serve DIR`.\n\n"
      "## Honoured\n\n| flag | commands | meaning | default |\n|---|---|---|---|\n";
  for (const std::string_view group : flag_groups()) {
    for (const Flag& flag : flag_table()) {
      if (flag.flag_class != FlagClass::kHonoured || flag.group != group) continue;
      out += fmt::format("| `{}` | {} | {} | {} |\n", markdown_cell(signature(flag)),
                         command_names(flag.commands), markdown_cell(flag.text),
                         markdown_cell(flag.default_text));
    }
  }
  out +=
      "\n## Accepted without effect\n\nHadal always does what these flags ask for, or they have no effect "
      "here. Each is accepted with one log line at level info; where values are listed, no other value is "
      "accepted.\n\n"
      "| why | flags |\n|---|---|\n";
  for (const auto& [text, names] : names_by_text(FlagClass::kAlready)) {
    out += fmt::format("| {} | {} |\n", markdown_cell(text), markdown_cell(names));
  }
  out += "\n## Other spellings\n\n| flag | stands for |\n|---|---|\n";
  for (const Flag& flag : flag_table()) {
    if (flag.flag_class == FlagClass::kAlias)
      out += fmt::format("| `--{}` | `--{}` |\n", flag.name, flag.text);
  }
  out +=
      "\n## Names of other engines\n\nUsers of other engines write these names out of habit. Each is an "
      "error "
      "that says what to use here.\n\n| engine | flags | here |\n|---|---|---|\n";
  for (const ForeignFlag& foreign : foreign_flags()) {
    std::string names;
    for (const std::string_view name : split(foreign.names, " "))
      names += fmt::format("{}`{}`", names.empty() ? "" : ", ", name);
    const std::string here =
        foreign.flag.empty() ? std::string(foreign.text) : fmt::format("`--{}`", foreign.flag);
    out += fmt::format("| {} | {} | {} |\n", foreign.engine, markdown_cell(names), markdown_cell(here));
  }
  out +=
      "\n## Refused\n\nThese flags are errors that say what to do instead.\n\n| answer | flags "
      "|\n|---|---|\n";
  for (const auto& [text, names] : names_by_text(FlagClass::kError)) {
    out += fmt::format("| {} | {} |\n", markdown_cell(text), markdown_cell(names));
  }
  return out;
}

}  // namespace hadal::cli
