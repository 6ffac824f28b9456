// Cuts a command line into its words and parses it, for the tests of flags.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "cli/flags/flag_parser.h"

namespace hadal::cli {

inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// Returns the one line that says what is wrong with a command line.
inline std::string error_of(Command command, const std::string& line) {
  const auto parsed = parse_flags(command, words_of(line));
  EXPECT_FALSE(parsed.ok()) << line;
  if (parsed.ok()) return "";
  EXPECT_EQ(parsed.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(parsed.status().message.find('\n'), std::string::npos) << "one line";
  return parsed.status().message;
}

}  // namespace hadal::cli
