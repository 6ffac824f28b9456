// Decides the white space between the tokens of JSON in grammars made of JSON schemas. The library repeats
// any white space up to a number; here JsonSchemaConverter's function for it (see CMakeLists.txt) and the
// converter of structural tags call these functions instead. A setting belongs to one thread.
#pragma once

#include <cstdint>
#include <string>

namespace hadal_xgrammar {

struct JsonSpaces {
  bool is_compact = false;  // nothing but one blank after each comma and colon
  std::string pattern;      // regular expression of what may stand between tokens; empty: the rule below
};

// While an object lives, grammars that this thread makes of schemas have these spaces.
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

// Returns the levels of indentation that a line may have inside of an object or array whose members a text
// indents by `blanks`, kIndent for each level. With 0 the level is not known (inside of values of any type),
// and beside a colon, where it is -1, no line ends: the result is 0.
int32_t json_levels(int64_t blanks);

}  // namespace hadal_xgrammar
