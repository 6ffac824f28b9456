// Writes calls as models write them, for the tests of the tool call parser.
#pragma once

#include <fmt/format.h>

#include <string>

#include "text/chat/chat_markers.h"

namespace hadal {

// These are the markers as strings, which + joins.
namespace marks {
inline const std::string kCallsBegin(hadal::kCallsBegin);
inline const std::string kCallsEnd(hadal::kCallsEnd);
inline const std::string kCallBegin(hadal::kCallBegin);
inline const std::string kCallEnd(hadal::kCallEnd);
inline const std::string kSep(hadal::kSep);
}  // namespace marks

inline std::string v3(const std::string& name, const std::string& arguments) {
  return fmt::format("{}function{}{}\n```json\n{}\n```{}", kCallBegin, kSep, name, arguments, kCallEnd);
}
inline std::string v31(const std::string& name, const std::string& arguments) {
  return fmt::format("{}{}{}{}{}", kCallBegin, name, kSep, arguments, kCallEnd);
}
inline std::string block(const std::string& calls) {
  return fmt::format("{}{}{}", kCallsBegin, calls, kCallsEnd);
}

}  // namespace hadal
