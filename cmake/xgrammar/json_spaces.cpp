#include "json_spaces.h"

namespace hadal_xgrammar {

namespace {

constexpr int32_t kUnknownLevels = 4;

const JsonSpaces kDefault;
thread_local const JsonSpaces* current = &kDefault;

}  // namespace

JsonSpacesScope::JsonSpacesScope(const JsonSpaces& spaces) {
  current = &spaces;
}
JsonSpacesScope::~JsonSpacesScope() {
  current = &kDefault;
}

bool json_is_compact() {
  return current->is_compact;
}

const std::string& json_spaces_pattern() {
  return current->pattern;
}

int32_t json_levels(int64_t blanks) {
  if (blanks < 0) return 0;
  return blanks == 0 ? kUnknownLevels : static_cast<int32_t>(blanks / kIndent);
}

}  // namespace hadal_xgrammar
