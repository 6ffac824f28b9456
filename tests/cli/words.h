// Cuts a command line into its words, for the tests of flags.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace hadal::cli {

inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace hadal::cli
