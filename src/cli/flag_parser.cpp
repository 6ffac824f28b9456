#include "cli/flag_parser.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "base/nearest_word.h"

namespace hadal::cli {
namespace {

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  size_t begin = text.find_first_not_of(separators);
  while (begin != std::string_view::npos) {
    const size_t end = text.find_first_of(separators, begin);
    parts.push_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(separators, end == std::string_view::npos ? text.size() : end);
  }
  return parts;
}

bool one_of(std::string_view value, std::string_view choices) {
  const auto allowed = split(choices, "|");
  return std::find(allowed.begin(), allowed.end(), value) != allowed.end();
}

std::string joined_choices(std::string_view choices) {
  std::string out;
  for (const std::string_view choice : split(choices, "|")) {
    if (!out.empty()) out += ", ";
    out += choice;
  }
  return out;
}

template <typename T>
std::optional<T> number_from(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Tells whether this is a whole number, which may have any length.
bool is_whole_number(std::string_view text) {
  if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Prints the end of a range exactly, although no double equals the largest 64-bit number.
std::string bound(double value) {
  if (value >= 9223372036854775807.0) return fmt::format("{}", std::numeric_limits<int64_t>::max());
  return fmt::format("{:.0f}", value);
}

std::string range_of(const Flag& flag) {
  if (flag.zero_is_out) return fmt::format("-1 or in [1, {}]", bound(flag.max));
  return fmt::format("in [{}, {}]", bound(flag.min), bound(flag.max));
}

// Returns the choice that was probably meant: another name of it, one that begins with the word, or one that
// differs from it in at most a third of its letters.
std::string_view nearest_choice(std::string_view word, std::span<const std::string_view> choices) {
  if (word.empty()) return {};
  if (word == "gpu") word = "cuda";
  for (const std::string_view choice : choices) {
    if (choice.starts_with(word)) return choice;
  }
  const std::string_view nearest = nearest_word(word, choices);
  if (nearest.empty() || 3 * edit_distance(word, nearest) > static_cast<int>(word.size())) return {};
  return nearest;
}

// Tells whether a flag can be meant in a command. A flag that only other commands have must be written in
// full.
bool known_in(const Flag& flag, Command command) {
  if (flag.flag_class != FlagClass::kHonoured || command == Command::kNone) return true;
  return (flag.commands & static_cast<CommandSet>(command)) != 0;
}

const Flag* target_of(const Flag& flag, Command command) {
  return flag.flag_class == FlagClass::kAlias ? find_flag(flag.text, command) : &flag;
}

std::string command_name(Command command) {
  return command == Command::kNone ? "hadal" : fmt::format("hadal {}", info_of(command).name);
}

// Lists the commands that honour a flag of this name, in any of its rows.
std::string commands_with(const Flag& flag) {
  std::string out;
  for (const CommandInfo& info : commands()) {
    const Flag& row = *find_flag(flag.name, info.command);
    if ((row.commands & static_cast<CommandSet>(info.command)) == 0) continue;
    if (!out.empty()) out += ", ";
    out += info.name;
  }
  return out;
}

Result<const Flag*> resolve_name(Command command, std::string_view spelled) {
  std::string name(spelled.substr(2));
  std::replace(name.begin(), name.end(), '_', '-');
  if (const Flag* exact = find_flag(name, command)) {
    const Flag* target = target_of(*exact, command);
    if (known_in(*target, command)) return target;
    // SGLang's one-batch benchmark accepts --output for its --output-len, but here another command has a flag
    // --output. In no other case is a full name read as the beginning of a longer one.
    if (command != Command::kBenchOneBatch || target->name != "output") {
      return invalid_argument("{} does not apply to `{}`; it belongs to {}", spelled, command_name(command),
                              commands_with(*target));
    }
  }
  std::vector<const Flag*> targets;
  if (!name.empty()) {
    for (const Flag& flag : flag_table()) {
      if (!flag.name.starts_with(name)) continue;
      // Only the row that counts in this command is considered.
      const Flag* target = find_flag(target_of(flag, command)->name, command);
      if (known_in(*target, command) && std::find(targets.begin(), targets.end(), target) == targets.end()) {
        targets.push_back(target);
      }
    }
  }
  // Flags that the command honours come before those that are only accepted or refused.
  if (command != Command::kNone) {
    const auto is_own = [](const Flag* flag) { return flag->flag_class == FlagClass::kHonoured; };
    if (std::any_of(targets.begin(), targets.end(), is_own)) std::erase_if(targets, std::not_fn(is_own));
  }
  if (targets.size() == 1) return targets[0];
  if (targets.size() > 1) {
    std::string list;
    for (size_t i = 0; i < targets.size() && i < 6; ++i)
      list += fmt::format("{}--{}", i ? ", " : "", targets[i]->name);
    if (targets.size() > 6) list += ", …";
    return invalid_argument("{} may stand for any of {}; write more of its name", spelled, list);
  }
  std::vector<std::string_view> candidates = {"help"};
  for (const Flag& flag : flag_table()) {
    if (known_in(*target_of(flag, command), command)) candidates.push_back(flag.name);
  }
  const std::string_view nearest = nearest_word(name, candidates);
  if (nearest.empty()) {
    return invalid_argument("unknown flag {}; `{} --help` lists the flags", spelled, command_name(command));
  }
  return invalid_argument("unknown flag {}; the nearest one is --{}", spelled, nearest);
}

Result<void> check_value(const Flag& flag, const std::string& spelled, const std::string& given) {
  const std::string_view value = given;
  const std::string_view shown = value.empty() ? "''" : value;
  if (!flag.choices.empty() && !one_of(value, flag.choices)) {
    if (flag.flag_class == FlagClass::kAlready) {
      return invalid_argument("{} {}: only {} is possible here: {}", spelled, shown,
                              joined_choices(flag.choices), flag.text);
    }
    const auto allowed = split(flag.choices, "|");
    const std::string_view nearest = nearest_choice(value, allowed);
    return invalid_argument("{} {}: must be one of {}{}", spelled, shown, joined_choices(flag.choices),
                            nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
  }
  if (flag.kind == ValueKind::kInteger) {
    const auto parsed = number_from<int64_t>(value);
    if (!parsed && !is_whole_number(value)) {
      return invalid_argument("{} {}: must be a whole number", spelled, shown);
    }
    if (!parsed || static_cast<double>(*parsed) < flag.min || static_cast<double>(*parsed) > flag.max ||
        (flag.zero_is_out && *parsed == 0)) {
      return invalid_argument("{} {}: must be {}", spelled, shown, range_of(flag));
    }
  }
  if (flag.kind == ValueKind::kNumber) {
    const auto parsed = number_from<double>(value);
    if (!parsed || std::isnan(*parsed)) {
      return invalid_argument("{} {}: must be a number", spelled, shown);
    }
    if (std::isinf(*parsed)) return invalid_argument("{} {}: must be a finite number", spelled, shown);
    if (*parsed < flag.min || *parsed > flag.max || (flag.min_open && *parsed == flag.min)) {
      if (flag.max == std::numeric_limits<double>::infinity()) {
        return invalid_argument("{} {}: must be {:g} or more", spelled, shown, flag.min);
      }
      return invalid_argument("{} {}: must be in {}{:g}, {:g}]", spelled, shown, flag.min_open ? "(" : "[",
                              flag.min, flag.max);
    }
  }
  return {};
}

// Tells whether a word is never a value. Values may be negative numbers, or texts that begin with one dash.
bool is_flag_word(std::string_view word) {
  return (word.starts_with("--") && word.size() > 2) || word == "-h" || word == "-n";
}

bool is_help(std::string_view word) {
  return word == "--help" || word == "-h";
}

// Tells whether the word after this one should be a value.
bool awaits_value(Command command, std::string_view word) {
  if (word == "-n") return true;
  if (!is_flag_word(word) || is_help(word) || word.find('=') != std::string_view::npos) return false;
  const Result<const Flag*> flag = resolve_name(command, word);
  return flag.ok() && (*flag)->kind != ValueKind::kSwitch;
}

}  // namespace

Result<std::vector<FlagUse>> resolve_flags(Command command, std::span<const std::string> words) {
  std::vector<FlagUse> uses;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string word = words[i];
    if (word == "-n") word = "--n";
    if (!is_flag_word(word)) {
      return invalid_argument("unexpected argument '{}'; all arguments are flags, see `{} --help`", word,
                              command_name(command));
    }
    const size_t equals = word.find('=');
    FlagUse use;
    use.spelled = word.substr(0, equals);
    HADAL_ASSIGN_OR_RETURN(use.flag, resolve_name(command, use.spelled));
    const bool has_value = equals != std::string::npos;
    if (use.flag->kind == ValueKind::kSwitch) {
      if (has_value) return invalid_argument("{} takes no value", use.spelled);
    } else if (has_value) {
      use.values.push_back(word.substr(equals + 1));
    } else {
      do {
        if (i + 1 >= words.size() || is_flag_word(words[i + 1])) break;
        use.values.push_back(words[++i]);
      } while (use.flag->kind == ValueKind::kList);
      if (use.values.empty()) {
        return invalid_argument("{} needs a value (write {}=VALUE if it begins with -)", use.spelled,
                                use.spelled);
      }
    }
    uses.push_back(std::move(use));
  }
  return uses;
}

Result<ParsedFlags> parse_flags(Command command, std::span<const std::string> words) {
  ParsedFlags parsed;
  parsed.command_ = command;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_help(words[i])) continue;
    if (i > 0 && awaits_value(command, words[i - 1])) break;  // then the missing value is the error
    parsed.help = true;
    return parsed;
  }
  HADAL_ASSIGN_OR_RETURN(const std::vector<FlagUse> uses, resolve_flags(command, words));
  for (const FlagUse& use : uses) {
    const Flag& flag = *use.flag;
    if (flag.flag_class == FlagClass::kError) return invalid_argument("{}: {}", use.spelled, flag.text);
    if (flag.kind != ValueKind::kList) {
      for (const std::string& value : use.values) {
        HADAL_RETURN_IF_ERROR(check_value(flag, use.spelled, value));
      }
    }
    if (flag.flag_class == FlagClass::kAlready) {
      parsed.notes.push_back(fmt::format("flag accepted flag={}{} note=\"{}\"", use.spelled,
                                         use.values.empty() ? "" : " value=" + use.values[0], flag.text));
      continue;
    }
    std::vector<std::string>& values = parsed.values_[flag.name];
    if (flag.kind != ValueKind::kTexts) values.clear();
    values.insert(values.end(), use.values.begin(), use.values.end());
  }
  return parsed;
}

std::optional<std::string> ParsedFlags::text(std::string_view name) const {
  const auto at = values_.find(name);
  if (at == values_.end() || at->second.empty()) return std::nullopt;
  return at->second.back();
}

std::string ParsedFlags::text_or(std::string_view name, std::string_view otherwise) const {
  return text(name).value_or(std::string(otherwise));
}

std::optional<int64_t> ParsedFlags::integer(std::string_view name) const {
  const auto value = text(name);
  return value ? number_from<int64_t>(*value) : std::nullopt;
}

std::optional<double> ParsedFlags::number(std::string_view name) const {
  const auto value = text(name);
  return value ? number_from<double>(*value) : std::nullopt;
}

std::vector<std::string> ParsedFlags::texts(std::string_view name) const {
  const auto at = values_.find(name);
  return at == values_.end() ? std::vector<std::string>() : at->second;
}

Result<std::vector<int32_t>> parse_ids(std::string_view text, std::string_view source) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  std::string_view body = begin == std::string_view::npos ? std::string_view() : text.substr(begin);
  body = body.substr(0, body.find_last_not_of(kSpace) + 1);
  if (body.starts_with('[') || body.ends_with(']')) {
    if (body.size() < 2 || !body.starts_with('[') || !body.ends_with(']')) {
      return invalid_argument("{}: '[' and ']' must come in pairs", source);
    }
    body = body.substr(1, body.size() - 2);
  }
  std::vector<int32_t> ids;
  // White space or one comma separates items; two commas, or one at an end, leave an empty item.
  for (size_t at = body.find_first_not_of(kSpace); at < body.size();) {
    const size_t end = std::min(body.find_first_of(", \t\r\n", at), body.size());
    const std::string_view part = body.substr(at, end - at);
    if (part.empty()) return invalid_argument("{}: item {} is empty; write 1,2,3", source, ids.size() + 1);
    at = std::min(body.find_first_not_of(kSpace, end), body.size());
    if (at < body.size() && body[at] == ',') {
      at = std::min(body.find_first_not_of(kSpace, at + 1), body.size());
      if (at == body.size()) {
        return invalid_argument("{}: item {} is empty; write 1,2,3", source, ids.size() + 2);
      }
    }
    const auto id = number_from<int32_t>(part);
    if (!id || *id < 0) {
      return invalid_argument("{}: '{}' is not a token id; write 1,2,3 or a JSON list", source,
                              part.substr(0, 40));
    }
    ids.push_back(*id);
  }
  if (ids.empty()) return invalid_argument("{}: no token ids; write 1,2,3 or a JSON list", source);
  return ids;
}

Result<std::vector<int64_t>> parse_counts(const ParsedFlags& flags, std::string_view name,
                                          std::vector<int64_t> otherwise) {
  if (!flags.has(name)) return otherwise;
  const Flag& flag = *find_flag(name, flags.command());
  std::vector<int64_t> counts;
  for (const std::string& value : flags.texts(name)) {
    for (const std::string_view part : split(value, ", ")) {
      const auto count = number_from<int64_t>(part);
      if (!count || static_cast<double>(*count) < flag.min || static_cast<double>(*count) > flag.max) {
        return invalid_argument("--{} {}: must be whole numbers in [{:.0f}, {:.0f}]", name, part, flag.min,
                                flag.max);
      }
      counts.push_back(*count);
    }
  }
  if (counts.empty()) return invalid_argument("--{}: needs at least one number", name);
  return counts;
}

}  // namespace hadal::cli
