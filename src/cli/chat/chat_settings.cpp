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
  HADAL_RETURN_IF_ERROR(validate(sampling.params, vocab_size_));
  return sampling;
}

Result<void> ChatSettings::set(std::string_view text) {
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
  return {};
}

std::string ChatSettings::describe() const {
  const SamplingParams& params = sampling_.params;
  std::string out = fmt::format(
      "temperature {:g}\ntop-p {:g}\ntop-k {}\nmin-p {:g}\nrepetition-penalty {:g}\nfrequency-penalty {:g}\n"
      "presence-penalty {:g}\nmax-new-tokens {}\n",
      params.temperature, params.top_p, params.top_k, params.min_p, params.repetition_penalty,
      params.frequency_penalty, params.presence_penalty, params.max_new_tokens);
  if (params.seed) out += fmt::format("seed {}\n", *params.seed);
  for (const std::string& stop : sampling_.stop) out += fmt::format("stop {}\n", stop);
  return out;
}

}  // namespace hadal::cli
