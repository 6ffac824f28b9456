#include "cli/flags/flag_json.h"

#include <cmath>

#include <nlohmann/json.hpp>

#include "base/version.h"
#include "cli/flags/flag_table.h"
#include "cli/flags/flag_values.h"
#include "cli/flags/foreign_names.h"

namespace hadal::cli {
namespace {

using nlohmann::ordered_json;

const char* name_of(FlagClass flag_class) {
  switch (flag_class) {
    case FlagClass::kHonoured:
      return "honoured";
    case FlagClass::kAlready:
      return "accepted";
    case FlagClass::kAlias:
      return "alias";
    case FlagClass::kError:
      return "refused";
  }
  return "unknown";
}

const char* name_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::kSwitch:
      return "none";
    case ValueKind::kText:
      return "text";
    case ValueKind::kTexts:
      return "texts";
    case ValueKind::kInteger:
      return "integer";
    case ValueKind::kNumber:
      return "number";
    case ValueKind::kList:
      return "list";
  }
  return "unknown";
}

ordered_json strings(std::string_view text, std::string_view separator) {
  ordered_json list = ordered_json::array();
  for (const std::string_view part : split(text, separator)) list.push_back(part);
  return list;
}

ordered_json row_json(const Flag& flag) {
  ordered_json row = {
      {"name", flag.name}, {"class", name_of(flag.flag_class)}, {"value", name_of(flag.kind)}};
  if (flag.flag_class == FlagClass::kAlias) {
    row["alias_of"] = flag.text;
    return row;
  }
  if (flag.flag_class == FlagClass::kHonoured) {
    row["commands"] = ordered_json::array();
    for (const CommandInfo& info : commands()) {
      if ((flag.commands & static_cast<CommandSet>(info.command)) != 0) row["commands"].push_back(info.name);
    }
    row["group"] = flag.group;
  }
  if (!flag.choices.empty()) row["choices"] = strings(flag.choices, "|");
  if (!flag.value_name.empty()) row["value_name"] = flag.value_name;
  if (std::isfinite(flag.min)) row[flag.min_open ? "above" : "min"] = flag.min;
  if (std::isfinite(flag.max)) row["max"] = flag.max;
  if (flag.gpu_only) row["gpu_only"] = true;
  if (!flag.default_text.empty()) row["default"] = flag.default_text;
  row["text"] = flag.text;
  return row;
}

}  // namespace

std::string flags_json() {
  ordered_json out = {{"version", version()}};
  out["commands"] = ordered_json::array();
  for (const CommandInfo& info : commands())
    out["commands"].push_back({{"name", info.name}, {"summary", info.summary}, {"example", info.example}});
  out["flags"] = ordered_json::array();
  for (const Flag& flag : flag_table()) out["flags"].push_back(row_json(flag));
  out["other_engines"] = ordered_json::array();
  for (const ForeignFlag& foreign : foreign_flags()) {
    ordered_json row = {{"engine", foreign.engine}, {"names", strings(foreign.names, " ")}};
    if (!foreign.flag.empty()) row["flag"] = foreign.flag;
    if (!foreign.text.empty()) row["text"] = foreign.text;
    out["other_engines"].push_back(std::move(row));
  }
  return out.dump(1) + "\n";
}

}  // namespace hadal::cli
