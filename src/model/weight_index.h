// Reads model.safetensors.index.json, which says which file holds a tensor. The functions are pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal {

inline constexpr const char* kSingleWeightFile = "model.safetensors";
inline constexpr const char* kWeightIndexFile = "model.safetensors.index.json";

// Returns true if a name is that of a file in the same directory. A name that contains a path could refer to
// any file.
bool is_plain_file_name(std::string_view name);

// Reads weight_map: pairs of a tensor and its file, whose name has no path (is_plain_file_name). `source`
// names the index in errors. The errors (kDataLoss) are a text that is not a JSON object, a missing
// weight_map, and a file in another directory.
Result<std::vector<std::pair<std::string, std::string>>> parse_weight_map(std::string_view json,
                                                                          const std::string& source);

}  // namespace hadal
