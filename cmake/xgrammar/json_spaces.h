// Decides the white space between the tokens of JSON in grammars made from JSON schemas. The library allows
// any white space up to a number of characters. Here JsonSchemaConverter's function for white space (see
// CMakeLists.txt) and the converter of structural tags call these functions instead. A setting belongs to
// one thread.
#pragma once

#include <cstdint>
#include <string>

namespace hadal_xgrammar {

struct JsonSpaces {
  bool is_compact = false;  // nothing but one blank after each comma and colon
  std::string pattern;      // regular expression of what may stand between tokens; empty: the rule below
};

// While an object lives, grammars that this thread makes from schemas have these spaces.
class JsonSpacesScope {
 public:
  explicit JsonSpacesScope(const JsonSpaces& spaces);
  ~JsonSpacesScope();
  JsonSpacesScope(const JsonSpacesScope&) = delete;
  JsonSpacesScope& operator=(const JsonSpacesScope&) = delete;
};

inline constexpr int kIndent = 4;  // the most blanks that models indent by at each level

bool json_is_compact();

// Returns the pattern of the thread's setting.
const std::string& json_spaces_pattern();

// Returns the number of levels of indentation that a line may have inside an object or array whose members
// are indented by `blanks`, with kIndent blanks for each level. `blanks` is 0 if the level is not known
// (inside values of any type), and -1 beside a colon, where no line ends and the result is 0.
int32_t json_levels(int64_t blanks);

}  // namespace hadal_xgrammar
