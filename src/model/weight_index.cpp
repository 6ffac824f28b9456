#include "model/weight_index.h"

#include <nlohmann/json.hpp>

#include "base/printable.h"

namespace hadal {
namespace {

using Json = nlohmann::json;

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
  // The callback keeps the DOM from growing below the two levels that matter: hostile nesting is dropped as
  // it is read.
  const auto shallow = [](int depth, Json::parse_event_t event, Json&) {
    const bool opens =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    return !opens || depth < 2;
  };
  const Json index = Json::parse(json, shallow, /*allow_exceptions=*/false);
  if (index.is_discarded() || !index.is_object()) return data_loss("{}: is not a JSON object", source);
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    return data_loss("{}: weight_map is missing or empty; it must map tensor names to file names", source);
  }
  std::vector<std::pair<std::string, std::string>> map;
  for (const auto& [name, file] : weight_map->items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return data_loss("{}: weight_map places {} in {}; allowed: the name of a file in the same directory",
                       source, shown_name(name),
                       file.is_string() ? "\"" + shown_name(file.get_ref<const std::string&>()) + "\""
                                        : std::string("a value that is not a string"));
    }
    map.emplace_back(name, file.get_ref<const std::string&>());
  }
  return map;
}

}  // namespace hadal
