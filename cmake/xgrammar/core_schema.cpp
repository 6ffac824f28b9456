// This translation unit joins sources of xgrammar: JSON schemas and structural tags, as CMakeLists.txt
// changes them.
#include "json_spaces.h"

// Makes, in the converter of schemas, the expression of white space inside of an object or array whose
// members are indented by `blanks` (see json_levels()).
#define HADAL_SPACES(BLANKS)                                                                        \
  [this](int64_t blanks) {                                                                          \
    const std::string& pattern = hadal_xgrammar::json_spaces_pattern();                             \
    if (!pattern.empty()) return RegexExpression(pattern, false, false);                            \
    const int32_t levels = hadal_xgrammar::json_levels(blanks);                                     \
    const int32_t blank = ByteString(" ");                                                          \
    if (levels == 0) return Choice({Empty(), blank});                                               \
    const int32_t line = ByteString("\n");                                                          \
    return Choice(                                                                                  \
        {Empty(), blank,                                                                            \
         Sequence({line, Repeat("blanks", builder_.AddCharacterClass({{' ', ' '}}), 0,              \
                                levels * hadal_xgrammar::kIndent)}),                                \
         Sequence({line, Repeat("tabs", builder_.AddCharacterClass({{'\t', '\t'}}), 1, levels)})}); \
  }(BLANKS)

// clang-format off: the first declares what the second needs
#include "json_schema_converter_with_spaces.cc"
#include "structural_tag_with_spaces.cc"
// clang-format on
