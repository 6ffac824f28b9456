#include "cli/chat/chat_settings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "cli/flags/defaults.h"
#include "cli/flags/flag_names.h"

namespace hadal::cli {

Result<ChatSettings> ChatSettings::make(const ParsedFlags& flags, const GenerationConfig& file,
                                        int64_t vocab_size) {
  ChatSettings settings(flags, file, vocab_size);
  HADAL_ASSIGN_OR_RETURN(settings.sampling_, settings.resolve({}));
  return settings;
}

Result<SamplingOptions> ChatSettings::resolve(const std::map<std::string, std::string>& changes) const {
  std::vector<std::string> words;
  for (const auto& [name, word] : changes) words.push_back(word);
  HADAL_ASSIGN_OR_RETURN(const ParsedFlags changed, parse_flags(Command::kChat, words));
  ParsedFlags flags = *flags_;
  flags.override_with(changed);
  HADAL_ASSIGN_OR_RETURN(SamplingOptions sampling, resolve_sampling(flags, *file_, kDefaultAnswerTokens));
  HADAL_RETURN_IF_ERROR(check_token_flags(sampling.params, vocab_size_));
  if (sampling.params.max_new_tokens < 1)
    return invalid_argument("--max-new-tokens {}: must be at least 1, because each message is answered",
                            sampling.params.max_new_tokens);
  return sampling;
}

Result<std::string> ChatSettings::set(std::string_view text) {
  const size_t end = std::min(text.find_first_of(" \t="), text.size());
  const std::string name(text.substr(0, end));
  HADAL_ASSIGN_OR_RETURN(const Flag* flag, resolve_name(Command::kChat, "--" + name));
  if (flag->group != "Sampling") {
    std::vector<std::string_view> names;
    for (const Flag& row : flag_table()) {
      if (row.group == "Sampling" && (row.commands & static_cast<CommandSet>(Command::kChat)) != 0)
        names.push_back(row.name);
    }
    return invalid_argument("/set {}: cannot be changed in a conversation; allowed: {}", name,
                            fmt::join(names, ", "));
  }
  std::map<std::string, std::string> changes = changes_;
  const size_t value = text.find_first_not_of(" \t=", end);
  if (flag->kind == ValueKind::kSwitch) {
    const std::string_view word = value == text.npos ? "on" : text.substr(value);
    if (word != "on" && word != "off") return invalid_argument("/set {} {}: must be on or off", name, word);
    changes.erase(flag->name);
    if (word == "on") changes[flag->name] = "--" + flag->name;
  } else if (value == text.npos) {
    changes.erase(flag->name);
  } else {
    changes[flag->name] = fmt::format("--{}={}", flag->name, text.substr(value));
  }
  HADAL_ASSIGN_OR_RETURN(sampling_, resolve(changes));
  changes_ = std::move(changes);
  return describe(*flag);
}

std::vector<ChatSettings::Row> ChatSettings::rows() const {
  const SamplingParams& params = sampling_.params;
  std::vector<Row> rows = {
      {"temperature", fmt::format("{:g}", params.temperature)},
      {"top-p", fmt::format("{:g}", params.top_p)},
      {"top-k", fmt::format("{}", params.top_k)},
      {"min-p", fmt::format("{:g}", params.min_p)},
      {"repetition-penalty", fmt::format("{:g}", params.repetition_penalty)},
      {"frequency-penalty", fmt::format("{:g}", params.frequency_penalty)},
      {"presence-penalty", fmt::format("{:g}", params.presence_penalty)},
      {"max-new-tokens", fmt::format("{}", params.max_new_tokens)},
  };
  if (params.seed) rows.push_back({"seed", fmt::format("{}", *params.seed)});
  for (const std::string& stop : sampling_.stop) rows.push_back({"stop", stop});
  return rows;
}

std::string ChatSettings::describe(const Flag& flag) const {
  std::string found;
  for (const auto& [name, value] : rows()) {
    if (name == flag.name) found += fmt::format("{}{} {}", found.empty() ? "" : ", ", name, value);
  }
  if (!found.empty()) return found;
  const auto changed = changes_.find(std::string(flag.name));
  if (flag.kind == ValueKind::kSwitch)
    return fmt::format("{} {}", flag.name, changed != changes_.end() ? "on" : "off");
  if (changed == changes_.end()) return fmt::format("{} is not set", flag.name);
  return fmt::format("{} {}", flag.name, changed->second.substr(changed->second.find('=') + 1));
}

std::string ChatSettings::describe() const {
  std::string out;
  for (const auto& [name, value] : rows()) out += fmt::format("{} {}\n", name, value);
  return out;
}

}  // namespace hadal::cli
