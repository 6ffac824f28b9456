#include "cli/flags/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <utility>

#include "base/mapped_file.h"

namespace hadal::cli {
namespace {

std::string place_of(std::string_view source, const YAML::Mark& mark) {
  return fmt::format("{}:{}", source, mark.line + 1);
}

// Returns the texts of a value. The errors say what is wrong with the value, without the key.
Result<std::vector<std::string>> values_of(const YAML::Node& value) {
  if (value.IsScalar()) return std::vector<std::string>{value.Scalar()};
  if (value.IsNull()) return invalid_argument("has no value; remove the key, or write a value");
  if (!value.IsSequence()) {
    return invalid_argument(
        "is a mapping; must be a text, a number, true, false or a list (write JSON as a quoted text)");
  }
  std::vector<std::string> values;
  for (const YAML::Node& item : value) {
    if (!item.IsScalar()) {
      return invalid_argument("item {} is a {}; must be a text or a number", values.size() + 1,
                              item.IsNull()  ? "null"
                              : item.IsMap() ? "mapping"
                                             : "list");
    }
    values.push_back(item.Scalar());
  }
  if (values.empty()) return invalid_argument("the list is empty; remove the key, or add an item");
  return values;
}

Result<std::vector<ConfigEntry>> entries_of(const YAML::Node& document, std::string_view source) {
  std::vector<ConfigEntry> entries;
  if (!document || document.IsNull()) return entries;
  if (!document.IsMap()) {
    return invalid_argument("{}: must be a mapping of flags to values, as in `tp-size: 8`",
                            place_of(source, document.Mark()));
  }
  for (const auto& pair : document) {
    ConfigEntry entry;
    entry.place = place_of(source, pair.first.Mark());
    if (!pair.first.IsScalar()) return invalid_argument("{}: a key must be the name of a flag", entry.place);
    entry.key = pair.first.Scalar();
    const auto is_same = [&](const ConfigEntry& other) { return other.key == entry.key; };
    const auto first = std::find_if(entries.begin(), entries.end(), is_same);
    if (auto values = values_of(pair.second); !values.ok()) {
      entry.fault = values.status().message;
    } else if (first != entries.end()) {
      entry.fault = fmt::format("appears twice, first at {}", first->place);
    } else {
      entry.values = std::move(values).value();
    }
    entries.push_back(std::move(entry));
  }
  return entries;
}

}  // namespace

Result<std::vector<ConfigEntry>> parse_config(const std::string& text, std::string_view source) {
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1)
      return invalid_argument("{}: has {} documents; must have one", source, documents.size());
    return entries_of(documents.empty() ? YAML::Node() : documents[0], source);
  } catch (const YAML::Exception& error) {
    return invalid_argument("{}: is not YAML: {}", place_of(source, error.mark), error.msg);
  }
}

Result<std::vector<ConfigEntry>> read_config_file(const std::string& path) {
  auto text = read_text_file(path, size_t{1} << 20);
  if (!text.ok()) return make_status(text.status().code, "--config {}", text.status().message);
  return parse_config(*text, path);
}

}  // namespace hadal::cli
