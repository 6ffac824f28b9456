#include "cli/flags/flag_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/nearest_word.h"

namespace hadal::cli {
namespace {

std::string joined_choices(std::string_view choices) {
  std::string out;
  for (const std::string_view choice : split(choices, "|")) {
    if (!out.empty()) out += ", ";
    out += choice;
  }
  return out;
}

// Tells whether `text` is a whole number with any number of digits.
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

// Returns the choice that was probably meant: "cuda" for "gpu", a choice that begins with the word, or one
// that differs from the word in at most a third of its letters.
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

std::optional<std::string> fault_of_choice(const Flag& flag, std::string_view value) {
  const auto allowed = split(flag.choices, "|");
  if (std::find(allowed.begin(), allowed.end(), value) != allowed.end()) return std::nullopt;
  if (flag.flag_class == FlagClass::kAlready) {
    return fmt::format("only {} is possible here: {}", joined_choices(flag.choices), flag.text);
  }
  const std::string_view nearest = nearest_choice(value, allowed);
  return fmt::format("must be one of {}{}", joined_choices(flag.choices),
                     nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
}

std::optional<std::string> fault_of_integer(const Flag& flag, std::string_view value) {
  const auto parsed = number_from<int64_t>(value);
  if (!parsed && !is_whole_number(value)) return "must be a whole number";
  const bool allowed = parsed && static_cast<double>(*parsed) >= flag.min &&
                       static_cast<double>(*parsed) <= flag.max && !(flag.zero_is_out && *parsed == 0);
  if (!allowed) return fmt::format("must be {}", range_of(flag));
  return std::nullopt;
}

std::optional<std::string> fault_of_number(const Flag& flag, std::string_view value) {
  const auto parsed = number_from<double>(value);
  if (!parsed || std::isnan(*parsed)) return "must be a number";
  if (std::isinf(*parsed)) return "must be a finite number";
  const bool allowed = *parsed >= flag.min && *parsed <= flag.max && !(flag.min_open && *parsed == flag.min);
  if (allowed) return std::nullopt;
  if (flag.max == std::numeric_limits<double>::infinity())
    return fmt::format("must be {:g} or more", flag.min);
  return fmt::format("must be in {}{:g}, {:g}]", flag.min_open ? "(" : "[", flag.min, flag.max);
}

}  // namespace

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

std::optional<std::string> fault_of(const Flag& flag, std::string_view value) {
  // The session checks a template file, because only the model determines which format is right.
  if (flag.name == "chat-template" && is_template_file(value)) return std::nullopt;
  if (!flag.choices.empty()) return fault_of_choice(flag, value);
  if (flag.kind == ValueKind::kInteger) return fault_of_integer(flag, value);
  if (flag.kind == ValueKind::kNumber) return fault_of_number(flag, value);
  return std::nullopt;
}

bool is_template_file(std::string_view value) {
  return value.find('/') != std::string_view::npos || value.ends_with(".jinja") || value.ends_with(".json");
}

}  // namespace hadal::cli
