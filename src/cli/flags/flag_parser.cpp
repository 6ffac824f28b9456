#include "cli/flags/flag_parser.h"

#include <algorithm>
#include <utility>

#include "cli/flags/complaints.h"
#include "cli/flags/flag_names.h"
#include "cli/flags/flag_values.h"
#include "cli/flags/foreign_names.h"

namespace hadal::cli {
namespace {

// Tells whether a word is never a value. Values may be negative numbers, or texts that begin with one dash.
bool is_flag_word(std::string_view word) {
  return (word.starts_with("--") && word.size() > 2) || word == "-h" || word == "-n";
}

// Tells whether a word in a place where no value is expected is meant as a flag, such as llama.cpp's -ngl.
bool is_meant_as_flag(std::string_view word) {
  return is_flag_word(word) ||
         (word.size() > 1 && word[0] == '-' && word.find_first_not_of("0123456789.", 1) == 1);
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

bool asks_for_help(Command command, std::span<const std::string> words) {
  for (size_t i = 0; i < words.size(); ++i) {
    // A help word in place of a flag's value is not a request for help, because the missing value is then the
    // error.
    if (is_help(words[i])) return i == 0 || !awaits_value(command, words[i - 1]);
  }
  return false;
}

// Returns the flag --model-path if it names the model that the command loads, and null if it names a server's
// model.
const Flag* model_flag(Command command) {
  if (command == Command::kNone || command == Command::kBenchServing) return nullptr;
  return honours(command, "model-path") ? find_flag("model-path", command) : nullptr;
}

// Reads words from left to right.
class WordReader {
 public:
  WordReader(Command command, std::span<const std::string> words, Complaints& complaints)
      : command_(command), words_(words), complaints_(complaints) {}

  std::vector<FlagUse> read() {
    if (!words_.empty() && !words_[0].empty() && !is_meant_as_flag(words_[0])) read_model();
    while (at_ < words_.size()) {
      if (is_meant_as_flag(words_[at_])) {
        read_flag();
      } else {
        refuse_values();
      }
    }
    return std::move(uses_);
  }

 private:
  void read_model() {
    const Flag* flag = model_flag(command_);
    if (flag == nullptr) return;
    uses_.push_back({.flag = flag, .spelled = "the model", .values = {words_[at_++]}});
  }

  bool value_follows() const { return at_ < words_.size() && !is_flag_word(words_[at_]); }

  // Skips the words after a flag that could not be resolved, because they are not faults of their own.
  void skip_values() {
    while (at_ < words_.size() && !is_meant_as_flag(words_[at_])) ++at_;
  }

  void refuse_values() {
    const size_t begin = at_;
    std::string list;
    for (; at_ < words_.size() && !is_meant_as_flag(words_[at_]); ++at_)
      list += fmt::format("{}'{}'", list.empty() ? "" : ", ", words_[at_]);
    complaints_.add(
        "", fmt::format("unexpected argument{} {}; {}, see `{} --help`", at_ - begin > 1 ? "s" : "", list,
                        model_flag(command_) == nullptr
                            ? "all arguments are flags"
                            : "all arguments but the model, which may come first, are flags",
                        command_name(command_)));
  }

  void read_flag() {
    std::string word = words_[at_++];
    if (word == "-n" && (command_ == Command::kNone || honours(command_, "n"))) word = "--n";
    const size_t equals = word.find('=');
    FlagUse use;
    use.spelled = word.substr(0, equals);
    const Result<const Flag*> flag = resolve_name(command_, use.spelled);
    if (!flag.ok()) {
      complaints_.add("", flag.status().message);
      return skip_values();
    }
    use.flag = *flag;
    const bool has_value = equals != std::string::npos;
    if (use.flag->kind == ValueKind::kSwitch) {
      if (has_value) return complaints_.add("", fmt::format("{} takes no value", use.spelled));
    } else if (has_value) {
      use.values.push_back(word.substr(equals + 1));
    } else {
      if (value_follows()) use.values.push_back(words_[at_++]);
      while (use.flag->kind == ValueKind::kList && value_follows() && !is_meant_as_flag(words_[at_]))
        use.values.push_back(words_[at_++]);
      if (use.values.empty()) {
        return complaints_.add("", fmt::format("{} needs a value (write {}=VALUE if it begins with -)",
                                               use.spelled, use.spelled));
      }
    }
    uses_.push_back(std::move(use));
  }

  const Command command_;
  const std::span<const std::string> words_;
  Complaints& complaints_;
  size_t at_ = 0;
  std::vector<FlagUse> uses_;
};

// Reads a boolean of YAML 1.1, as SGLang's parser does.
std::optional<bool> boolean_from(const std::string& text) {
  std::string word;
  for (const char c : text) word += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

// Turns the entries of a --config file into uses of flags.
std::vector<FlagUse> uses_of_file(Command command, std::span<const ConfigEntry> file,
                                  Complaints& complaints) {
  std::vector<FlagUse> uses;
  for (const ConfigEntry& entry : file) {
    const Result<const Flag*> flag = resolve_name(command, "--" + entry.key);
    if (!flag.ok()) {
      complaints.add("", fmt::format("{}: {}", entry.place, flag.status().message));
      continue;
    }
    FlagUse use{.flag = *flag, .spelled = fmt::format("{}: {}", entry.place, entry.key), .values = {}};
    if (!entry.fault.empty()) {
      complaints.add(use.spelled, entry.fault);
    } else if (use.flag->name == "config") {
      complaints.add(use.spelled, "a file cannot name another one");
    } else if (use.flag->kind == ValueKind::kSwitch) {
      const auto value = entry.values.size() == 1 ? boolean_from(entry.values[0]) : std::nullopt;
      if (!value) {
        complaints.add(use.spelled + " " + entry.values[0], "is a switch; must be true or false");
      } else if (*value) {
        uses.push_back(std::move(use));
      }
    } else if (entry.values.size() > 1 && use.flag->kind != ValueKind::kList &&
               use.flag->kind != ValueKind::kTexts) {
      complaints.add(use.spelled, "is a list; must be one value");
    } else {
      use.values = entry.values;
      uses.push_back(std::move(use));
    }
  }
  return uses;
}

void refuse_two_models(std::span<const FlagUse> uses, Complaints& complaints) {
  if (uses.empty() || uses[0].spelled != "the model") return;
  for (const FlagUse& use : uses.subspan(1)) {
    if (use.flag != uses[0].flag) continue;
    complaints.add("", fmt::format("'{}' and {} {} both name the model; leave one of them out",
                                   uses[0].values[0], use.spelled, use.values[0]));
  }
}

// Tells whether the last use of a flag counts. It does in SGLang's commands, as in argparse, because scripts
// change a setting by appending the flag again to a command line.
bool last_one_counts(Command command) {
  return command == Command::kServe || command == Command::kBenchServing ||
         command == Command::kBenchOneBatch || command == Command::kBenchOffline;
}

// Refuses a flag that is given more than once, unless all of its values count or it is a switch.
void refuse_repetitions(Command command, std::span<const FlagUse> uses, Complaints& complaints) {
  if (last_one_counts(command)) return;
  for (size_t i = 0; i < uses.size(); ++i) {
    const FlagUse& use = uses[i];
    const ValueKind kind = use.flag->kind;
    if (kind == ValueKind::kSwitch || kind == ValueKind::kTexts) continue;
    const auto first = std::find_if(uses.begin(), uses.begin() + static_cast<std::ptrdiff_t>(i),
                                    [&](const FlagUse& other) { return other.flag == use.flag; });
    // There is a separate complaint about a model that is named twice.
    if (first == uses.begin() + static_cast<std::ptrdiff_t>(i) || first->spelled == "the model") continue;
    complaints.add(
        fmt::format("{} {}", use.spelled, use.values[0]),
        fmt::format("{} {} is given before it; must be given once", first->spelled, first->values[0]));
  }
}

void check_use(const FlagUse& use, Complaints& complaints) {
  const Flag& flag = *use.flag;
  if (flag.flag_class == FlagClass::kError) return complaints.add(use.spelled, flag.text);
  if (flag.kind == ValueKind::kList) return;
  for (const std::string& value : use.values) {
    if (auto fault = fault_of(flag, value))
      complaints.add(fmt::format("{} {}", use.spelled, value.empty() ? "''" : value), *std::move(fault));
  }
}

}  // namespace

Result<std::vector<FlagUse>> resolve_flags(Command command, std::span<const std::string> words) {
  Complaints complaints;
  std::vector<FlagUse> uses = WordReader(command, words, complaints).read();
  if (!complaints.empty()) return complaints.status();
  return uses;
}

std::optional<std::string> config_path(Command command, std::span<const std::string> words) {
  if (asks_for_help(command, words)) return std::nullopt;
  Complaints ignored;
  std::optional<std::string> path;
  for (const FlagUse& use : WordReader(command, words, ignored).read()) {
    if (use.flag->name == "config") path = use.values[0];
  }
  return path;
}

Result<ParsedFlags> parse_flags(Command command, std::span<const std::string> words,
                                std::span<const ConfigEntry> file) {
  ParsedFlags parsed;
  parsed.command_ = command;
  parsed.help = asks_for_help(command, words);
  if (parsed.help) return parsed;
  Complaints complaints;
  const std::vector<FlagUse> given = WordReader(command, words, complaints).read();
  refuse_two_models(given, complaints);
  refuse_repetitions(command, given, complaints);
  std::vector<FlagUse> uses = uses_of_file(command, file, complaints);
  std::erase_if(uses, [&](const FlagUse& use) {
    return std::any_of(given.begin(), given.end(), [&](const FlagUse& own) { return own.flag == use.flag; });
  });
  uses.insert(uses.end(), given.begin(), given.end());
  for (const FlagUse& use : uses) check_use(use, complaints);
  if (!complaints.empty()) return complaints.status();
  for (const FlagUse& use : uses) {
    const Flag& flag = *use.flag;
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

void ParsedFlags::override_with(const ParsedFlags& other) {
  for (const auto& [name, values] : other.values_) values_[name] = values;
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
