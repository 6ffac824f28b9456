// Writes calls as models write them, for the tests of the tool call parser.
#pragma once

#include <fmt/format.h>

#include <string>

namespace hadal {

inline constexpr const char* kCallsBegin = "<｜tool▁calls▁begin｜>";
inline constexpr const char* kCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr const char* kCallBegin = "<｜tool▁call▁begin｜>";
inline constexpr const char* kCallEnd = "<｜tool▁call▁end｜>";
inline constexpr const char* kSep = "<｜tool▁sep｜>";

inline std::string v3(const std::string& name, const std::string& arguments) {
  return fmt::format("{}function{}{}\n```json\n{}\n```{}", kCallBegin, kSep, name, arguments, kCallEnd);
}
inline std::string v31(const std::string& name, const std::string& arguments) {
  return fmt::format("{}{}{}{}{}", kCallBegin, name, kSep, arguments, kCallEnd);
}
inline std::string block(const std::string& calls) {
  return kCallsBegin + calls + kCallsEnd;
}

}  // namespace hadal
