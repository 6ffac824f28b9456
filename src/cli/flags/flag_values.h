// Checks whether the table allows the values of flags. The functions are pure.
#pragma once

#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/flags/flag_table.h"

namespace hadal::cli {

// Returns the parts of `text` between any of the separators, without empty ones.
std::vector<std::string_view> split(std::string_view text, std::string_view separators);

// Reads a number that is all of `text`; a leading + is allowed.
template <typename T>
std::optional<T> number_from(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Tells why a value is not allowed, as "must be …"; nullopt if it is allowed.
std::optional<std::string> fault_of(const Flag& flag, std::string_view value);

// Tells whether a value of --chat-template names a file, not one of the built-in formats.
bool is_template_file(std::string_view value);

}  // namespace hadal::cli
