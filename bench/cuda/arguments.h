// What the benches' command lines share.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace hadal::bench {

// "1,8,64"
inline std::vector<int64_t> numbers(const char* text) {
  std::vector<int64_t> values;
  for (const char* p = text; *p != '\0';) {
    char* end = nullptr;
    values.push_back(std::strtoll(p, &end, 10));
    p = *end == ',' ? end + 1 : end;
  }
  return values;
}

}  // namespace hadal::bench
