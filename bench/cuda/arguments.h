// Parses command lines for the benches.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

namespace hadal::bench {

// Parses counts that fit an int, such as "1,8,64". Any other text ends the program with code 2. `name` is the
// name of the argument.
inline std::vector<int64_t> numbers(const char* name, const char* text) {
  std::vector<int64_t> values;
  const char* const end = text + std::strlen(text);
  for (const char* p = text;; ++p) {
    int value = 0;
    const auto [stop, error] = std::from_chars(p, end, value);
    if (error != std::errc() || value < 0 || (stop != end && *stop != ',')) {
      std::fprintf(stderr,
                   "%s: is '%s'; allowed: numbers from 0 to 2147483647 with commas between them (1,8,64)\n",
                   name, text);
      std::exit(2);
    }
    values.push_back(value);
    if (stop == end) return values;
    p = stop;
  }
}

// Splits "fp8,bf16" into {"fp8", "bf16"}.
inline std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words(1);
  for (const char letter : text) {
    if (letter == ',')
      words.emplace_back();
    else
      words.back() += letter;
  }
  return words;
}

// Calls run(argc, argv). After an exception it prints its text and ends the program with code 1.
template <typename Run>
int guarded(Run run, int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace hadal::bench
