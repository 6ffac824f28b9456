// Checks structural tags (xgrammar's description of free text with tagged, constrained parts) and translates
// them for one vocabulary. The function is pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal {

using AddedTokenIds = std::map<std::string, int32_t, std::less<>>;  // text -> id

struct PreparedTag {
  std::string json;                   // tokens by id, schemas prepared (prepare_json_schema)
  std::vector<std::string> literals;  // every text, pattern and grammar in it
  bool has_length = false;            // see PreparedSchema
  std::vector<std::pair<std::string, std::string>> patterns;  // see PreparedSchema; also those of its schemas
};

// `tag_json` is {"type": "structural_tag", "format": …}, or the older form {"type": "structural_tag",
// "structures": [{"begin", "schema", "end"}], "triggers": […]}. Tokens are named by the text of an added
// token or by id. The errors (kInvalidArgument, beginning with `field`) are text that is not JSON or is too
// large or deep, an unknown format or token, and a schema that cannot be enforced.
Result<PreparedTag> prepare_structural_tag(std::string_view tag_json, std::string_view field,
                                           const AddedTokenIds& added_tokens);

}  // namespace hadal
