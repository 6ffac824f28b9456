#include "model/weight_index.h"

#include <functional>
#include <map>
#include <optional>

#include "base/printable.h"
#include "model/json_events.h"

namespace hadal {
namespace {

constexpr size_t kShownNameChars = 160;

std::string shown_name(std::string_view name) {
  return printable(cut_text(name, kShownNameChars));
}

}  // namespace

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() < 256 && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

Result<std::vector<std::pair<std::string, std::string>>> parse_weight_map(std::string_view json,
                                                                          const std::string& source) {
  bool is_object = false;
  bool in_map = false;
  std::map<std::string, std::optional<std::string>, std::less<>> files;  // no file: not a string
  const JsonEnd end = read_json_events(json, [&](const JsonEvent& value) {
    if (value.depth == 0) is_object = value.kind == JsonKind::kObject;
    if (value.depth == 1) {
      in_map = value.key == "weight_map" && value.kind == JsonKind::kObject;
      if (value.key == "weight_map") files.clear();  // if there are two, the last one counts
    }
    if (value.depth == 2 && in_map) {
      auto& file = files[std::string(value.key)];
      file.reset();
      if (value.kind == JsonKind::kString) file = value.text;
    }
    return true;
  });
  if (end != JsonEnd::kComplete || !is_object) return data_loss("{}: is not a JSON object", source);
  if (files.empty()) {
    return data_loss("{}: weight_map is missing or empty; it must map tensor names to file names", source);
  }
  std::vector<std::pair<std::string, std::string>> map;
  for (auto& [name, file] : files) {
    if (!file || !is_plain_file_name(*file)) {
      return data_loss("{}: weight_map places {} in {}; allowed: the name of a file in the same directory",
                       source, shown_name(name),
                       file ? "\"" + shown_name(*file) + "\"" : std::string("a value that is not a string"));
    }
    map.emplace_back(name, *std::move(file));
  }
  return map;
}

}  // namespace hadal
