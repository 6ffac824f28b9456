#include "text/grammar/grammar_schema.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <boost/json.hpp>

#include "base/nearest_word.h"
#include "base/printable.h"
#include "text/grammar/expression_depth.h"
#include "text/grammar/grammar_schema_keywords.h"
#include "text/grammar/grammar_schema_numbers.h"
#include "text/grammar/grammar_schema_shapes.h"
#include "text/json_error.h"

namespace hadal {

namespace {

namespace json = boost::json;

using Shape = KeywordShape;
using About = KeywordAbout;

std::string escaped(std::string_view key) {  // one part of a JSON pointer (RFC 6901, section 3)
  std::string out;
  for (const char c : key) {
    if (c == '~')
      out += "~0";
    else if (c == '/')
      out += "~1";
    else
      out += c;
  }
  return out;
}

// Returns the place of a part of the schema at `at`. Messages show its beginning, so long ones are cut.
std::string part_of(const std::string& at, std::string_view key) {
  constexpr size_t kLongest = 512;
  if (at.size() > kLongest) return at;
  std::string place = at + "/" + escaped(key.substr(0, kLongest));
  if (place.size() > kLongest) place.resize(kLongest + 1);
  return place;
}

bool is_of_type(const json::value& value, std::string_view type) {
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_bool();
  if (type == "null") return value.is_null();
  if (type == "array") return value.is_array();
  if (type == "object") return value.is_object();
  if (type == "number") return value.is_number();
  return value.is_int64() || value.is_uint64() ||
         (value.is_double() && value.get_double() == std::floor(value.get_double()));
}

class SchemaWalk {
 public:
  SchemaWalk(const json::value& root, std::string_view field) : root_(root), field_(field) {}

  // Checks a schema and writes it for the library into `out`. `is_of_names` says that it is the value of
  // "propertyNames".
  Result<void> walk(const json::value& schema, const std::string& at, size_t depth, json::value& out,
                    bool is_of_names = false);

  // Checks that every $ref leads to a place that was walked as a schema, and that no chain of them is a
  // cycle.
  Result<void> check_refs() const;

  bool has_length() const { return has_length_; }
  std::vector<std::pair<std::string, std::string>>& patterns() { return patterns_; }

 private:
  static std::string place(std::string_view at) {
    return at.empty() ? "the root" : cut_text(at, 4 * kShownChars);
  }
  // Returns an error that shows `value`, to which the schema at `at` sets `keyword`.
  Status error(std::string_view at, std::string_view keyword, const json::value& value,
               const std::string& why) const {
    return invalid_argument("{}", one_line(fmt::format("{}: keyword {} at {} is {}: {}", field_,
                                                       shown_text(keyword), place(at), shown(value), why)));
  }

  Result<const Keyword*> check_members(const json::object& members, const std::string& at) const;
  Result<void> check_alone(const json::object& schema, const Keyword& keyword, const std::string& at) const;
  Result<void> check_typed(const json::object& schema, const std::string& at) const;
  Result<void> check_bounds(const json::object& schema, const std::string& at) const;
  Result<void> check_string(const json::object& schema, const std::string& at) const;
  Result<void> check_object(const json::object& schema, const std::string& at) const;
  Result<void> check_ref(const json::value& ref, const std::string& at) const;
  const json::value* target_of(std::string_view uri) const;
  Result<void> walk_members(const json::object& schema, const std::string& at, size_t depth,
                            json::object& out);

  const json::value& root_;
  std::string_view field_;
  bool has_length_ = false;
  std::vector<std::pair<std::string, std::string>> patterns_;  // place and expression
  std::unordered_set<const json::value*> schemas_;             // all schemas of root_
  struct Ref {
    const json::value* schema;  // that has the $ref
    const json::value* target;
    std::string at;
    std::string_view uri;
  };
  std::vector<Ref> refs_;
};

// The library evaluates some keywords alone and ignores everything beside them. So beside such a keyword only
// annotations are allowed, and beside a const or enum also the types that its values have anyway.
Result<void> SchemaWalk::check_alone(const json::object& schema, const Keyword& keyword,
                                     const std::string& at) const {
  for (const auto& [name, value] : schema) {
    const Keyword* other = find_keyword(name);
    if (other == nullptr || other == &keyword || other->about == About::kNothing) continue;
    const bool has_values = keyword.name == "const" || keyword.name == "enum";
    if (other->name != "type" || !has_values)
      return error(at, name, value,
                   fmt::format("it is not enforced beside \"{}\"; move it into that schema", keyword.name));
    const json::value& values = schema.at(keyword.name);
    const std::span<const json::value> list =
        keyword.name == "const"
            ? std::span(&values, 1)
            : std::span<const json::value>(values.get_array().data(), values.get_array().size());
    for (const json::value& element : list) {
      const auto fits = [&](const json::value& type) { return is_of_type(element, type.get_string()); };
      const bool is_fitting = value.is_string()
                                  ? fits(value)
                                  : std::any_of(value.get_array().begin(), value.get_array().end(), fits);
      if (!is_fitting)
        return error(at, keyword.name, values,
                     fmt::format("{} does not have the \"type\" beside it, which is {}", shown(element),
                                 shown(value)));
    }
  }
  const json::value& value = schema.at(keyword.name);
  if (keyword.name == "allOf" && value.get_array().size() > 1)
    return error(at, "allOf", value,
                 fmt::format("it is enforced with one schema only, and it has {}; merge them",
                             value.get_array().size()));
  if (keyword.name == "$ref") return check_ref(value, at);
  return {};
}

// Refuses keywords without the "type" that they need. Without a "type" the library guesses one from the
// keywords of objects and arrays, and ignores all other keywords.
Result<void> SchemaWalk::check_typed(const json::object& schema, const std::string& at) const {
  const bool is_object = schema.contains("properties") || schema.contains("additionalProperties") ||
                         schema.contains("unevaluatedProperties");
  const bool is_array =
      schema.contains("items") || schema.contains("prefixItems") || schema.contains("unevaluatedItems");
  for (const auto& [name, value] : schema) {
    const Keyword* keyword = find_keyword(name);
    if (keyword == nullptr || keyword->about == About::kNothing || keyword->name == "type") continue;
    const bool is_seen = schema.contains("type") || (keyword->about == About::kObject && is_object) ||
                         (keyword->about == About::kArray && is_array && !is_object);
    if (!is_seen) return error(at, name, value, "it is enforced only beside a \"type\"");
  }
  HADAL_RETURN_IF_ERROR(check_bounds(schema, at));
  HADAL_RETURN_IF_ERROR(check_string(schema, at));
  HADAL_RETURN_IF_ERROR(check_object(schema, at));
  if (const auto fault = number_fault(schema))
    return error(at, fault->keyword, schema.at(fault->keyword), fault->why);
  return {};
}

// Refuses a lower bound above the upper one, which allows no value, because the library reports that without
// a place.
Result<void> SchemaWalk::check_bounds(const json::object& schema, const std::string& at) const {
  constexpr std::pair<std::string_view, std::string_view> kBounds[] = {
      {"minLength", "maxLength"}, {"minItems", "maxItems"}, {"minProperties", "maxProperties"}};
  for (const auto& [least, most] : kBounds) {
    const json::value* low = schema.if_contains(least);
    const json::value* high = schema.if_contains(most);
    if (low == nullptr || high == nullptr || low->get_int64() <= high->get_int64()) continue;
    return error(at, least, *low, fmt::format("it is above \"{}\", which is {}", most, shown(*high)));
  }
  return {};
}

Result<void> SchemaWalk::check_string(const json::object& schema, const std::string& at) const {
  const json::value* format = schema.if_contains("format");
  const std::string_view name =
      format != nullptr ? std::string_view(format->get_string()) : std::string_view();
  if (is_unsupported_format(name))
    return error(at, "format", *format,
                 fmt::format("it is not enforced; enforced are {}", fmt::join(schema_formats(), ", ")));
  const bool has_pattern = schema.contains("pattern");
  const bool has_format = among(schema_formats(), name);
  if (has_pattern && has_format)
    return error(at, "pattern", schema.at("pattern"), "it is not enforced beside a \"format\"");
  for (const std::string_view length : {"minLength", "maxLength"})
    if (schema.contains(length) && (has_pattern || has_format))
      return error(at, length, schema.at(length),
                   fmt::format("it is not enforced beside a \"{}\"", has_pattern ? "pattern" : "format"));
  return {};
}

Result<void> SchemaWalk::check_object(const json::object& schema, const std::string& at) const {
  const json::value* properties = schema.if_contains("properties");
  if (const json::value* required = schema.if_contains("required"))
    for (const json::value& key : required->get_array())
      if (properties == nullptr || !properties->get_object().contains(key.get_string()))
        return error(at, "required", *required,
                     fmt::format("{} is not among the \"properties\"",
                                 shown_text(std::string_view(key.get_string()))));
  const json::value* names = schema.if_contains("propertyNames");
  if (const json::value* patterns = schema.if_contains("patternProperties")) {
    if (patterns->get_object().size() > 1)
      return error(
          at, "patternProperties", *patterns,
          fmt::format("it is enforced with one pattern only, and it has {}", patterns->get_object().size()));
    if (names != nullptr)
      return error(at, "propertyNames", *names, "it is not enforced beside \"patternProperties\"");
    if (properties != nullptr)
      return error(at, "patternProperties", *patterns, "it is not enforced beside \"properties\"");
  }
  if (names != nullptr && properties != nullptr)
    return error(at, "propertyNames", *names, "it is not enforced beside \"properties\"");
  // Keys that the schema does not name may be generated twice, and a repeated key counts only once.
  const json::value* least = schema.if_contains("minProperties");
  const auto is_open = [&](std::string_view name) {
    const json::value* value = schema.if_contains(name);
    return value != nullptr && !(value->is_bool() && !value->get_bool());
  };
  if (least != nullptr && least->get_int64() > 1 &&
      (properties == nullptr || is_open("additionalProperties") || is_open("unevaluatedProperties")))
    return error(at, "minProperties", *least,
                 "above 1 it is enforced only for objects with nothing but \"properties\"");
  return {};
}

// Follows a $ref as the library does: the target is "#" or "#/…", a path of members' names without escapes.
Result<void> SchemaWalk::check_ref(const json::value& ref, const std::string& at) const {
  const std::string_view uri = ref.get_string();
  const auto wrong = [&](const std::string& why) { return error(at, "$ref", ref, why); };
  if (uri != "#" && !uri.starts_with("#/"))
    return wrong("it must be \"#\" or \"#/…\", which is in this document");
  if (uri.find_first_of("~%") != uri.npos || uri.ends_with('/') || uri.find("//") != uri.npos)
    return wrong("it must have no escaped and no empty parts");
  if (target_of(uri) == nullptr) return wrong("it leads nowhere: not every part names a member of an object");
  return {};
}

// Returns the value to which a sound URI leads; null: there is none.
const json::value* SchemaWalk::target_of(std::string_view uri) const {
  const json::value* value = &root_;
  std::string_view rest = uri.substr(1);
  while (!rest.empty() && value != nullptr) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(part.size());
    const json::object* object = value->if_object();
    value = object != nullptr ? object->if_contains(part) : nullptr;
  }
  return value;
}

Result<void> SchemaWalk::check_refs() const {
  std::unordered_map<const json::value*, const Ref*> by_schema;
  for (const Ref& ref : refs_) by_schema.emplace(ref.schema, &ref);
  std::unordered_set<const json::value*> sound;  // schemas from which references end
  for (const Ref& ref : refs_) {
    const auto wrong = [&](const std::string& why) {
      return error(ref.at, "$ref", json::value(ref.uri), why);
    };
    if (!schemas_.contains(ref.target)) return wrong("it must lead to a schema");
    std::vector<const json::value*> way;
    for (auto next = by_schema.find(ref.schema); next != by_schema.end() && !sound.contains(next->first);
         next = by_schema.find(next->second->target)) {
      if (way.size() == refs_.size())
        return wrong("it leads in a circle; must lead to a schema that describes a value");
      way.push_back(next->first);
    }
    sound.insert(way.begin(), way.end());
  }
  return {};
}

// Schemas are not copied, because a copy at each depth would need many times their memory.
Result<void> SchemaWalk::walk_members(const json::object& schema, const std::string& at, size_t depth,
                                      json::object& out) {
  for (const auto& [name, value] : schema) {
    const Keyword* keyword = find_keyword(name);
    if (keyword == nullptr) continue;  // an annotation
    const std::string here = part_of(at, name);
    json::value& written = out[name];
    if (keyword->shape == Shape::kSchema) {
      HADAL_RETURN_IF_ERROR(walk(value, here, depth + 1, written, keyword->name == "propertyNames"));
    } else if (keyword->shape == Shape::kSchemaList) {
      const json::array& list = value.get_array();
      json::array& written_list = written.emplace_array();
      written_list.resize(list.size());
      for (size_t i = 0; i < list.size(); ++i)
        HADAL_RETURN_IF_ERROR(walk(list[i], part_of(here, std::to_string(i)), depth + 1, written_list[i]));
    } else if (keyword->shape == Shape::kSchemaMap) {
      json::object& written_map = written.emplace_object();
      for (const auto& [key, member] : value.get_object())
        HADAL_RETURN_IF_ERROR(walk(member, part_of(here, key), depth + 1, written_map[key]));
    } else {
      written = value;
    }
  }
  return {};
}

// Rewrites a schema for the library.
void rewrite(json::object& schema) {
  for (const Keyword& row : schema_keywords())
    if (row.decides_alone && schema.contains(row.name)) return;
  const json::value* types = schema.if_contains("type");
  const auto may_be = [&](std::string_view type) {
    if (types == nullptr) return false;
    const auto is_it = [&](const json::value& value) { return value.get_string() == type; };
    return types->is_string() ? is_it(*types)
                              : std::any_of(types->get_array().begin(), types->get_array().end(), is_it);
  };
  const auto has_any = [&](std::initializer_list<std::string_view> names) {
    return std::any_of(names.begin(), names.end(),
                       [&](std::string_view name) { return schema.contains(name); });
  };
  // The library would accept only an empty object or array where these keywords are absent.
  const bool is_open_object =
      may_be("object") && !has_any({"properties", "additionalProperties", "unevaluatedProperties",
                                    "patternProperties", "propertyNames"});
  const bool is_open_array = may_be("array") && !has_any({"items", "prefixItems", "unevaluatedItems"});
  if (is_open_object) schema["additionalProperties"] = true;
  if (is_open_array) schema["items"] = true;
}

// Checks the members of a schema, but not the schemas in them. Returns the keyword that decides alone; null:
// there is none.
Result<const Keyword*> SchemaWalk::check_members(const json::object& members, const std::string& at) const {
  const Keyword* alone = nullptr;
  for (const auto& [name, value] : members) {
    const Keyword* keyword = find_keyword(name);
    if (keyword != nullptr) {
      if (const std::string shape = wanted_shape(*keyword, value); !shape.empty())
        return error(at, name, value, fmt::format("it must be {}", shape));
      if (keyword->decides_alone && (alone == nullptr || keyword < alone)) alone = keyword;
      continue;
    }
    const bool is_off = name == "uniqueItems" && value.is_bool() && !value.get_bool();
    if (is_off || is_annotation(name) || std::string_view(name).starts_with("x-")) continue;
    if (is_unsupported_keyword(name)) return error(at, name, value, "it is not supported");
    const std::string_view nearest = nearest_word(name, keyword_names());
    return error(at, name, value,
                 nearest.empty() ? "it is unknown"
                                 : fmt::format("it is unknown; the nearest keyword is \"{}\"", nearest));
  }
  HADAL_RETURN_IF_ERROR(alone != nullptr ? check_alone(members, *alone, at) : check_typed(members, at));
  return alone;
}

Result<void> SchemaWalk::walk(const json::value& schema, const std::string& at, size_t depth,
                              json::value& out, bool is_of_names) {
  if (depth > kMaxSchemaDepth)
    return invalid_argument(
        "{}", one_line(fmt::format("{}: the schema at {} is {} schemas deep; at most {} are allowed", field_,
                                   place(at), depth, kMaxSchemaDepth)));
  schemas_.insert(&schema);
  if (schema.is_bool()) {
    out = schema.get_bool() ? json::value(json::object()) : schema;
    return {};
  }
  if (!schema.is_object())
    return invalid_argument(
        "{}", one_line(fmt::format("{}: at {} is {}; a schema must be an object or a boolean", field_,
                                   place(at), shown(schema))));
  const json::object& members = schema.get_object();
  const bool lacks_type = is_of_names && !members.contains("type");
  const Keyword* alone = nullptr;
  if (lacks_type) {  // all names are strings
    json::object typed = members;
    typed["type"] = "string";
    HADAL_ASSIGN_OR_RETURN(alone, check_members(typed, at));
  } else {
    HADAL_ASSIGN_OR_RETURN(alone, check_members(members, at));
  }
  if (alone != nullptr && alone->name == "$ref") {
    const std::string_view uri = members.at("$ref").get_string();
    refs_.push_back({.schema = &schema, .target = target_of(uri), .at = at, .uri = uri});
  }
  if (const json::value* pattern = members.if_contains("pattern")) {
    const std::string_view expression = pattern->get_string();
    if (const std::string why = why_regex_is_too_deep(expression); !why.empty())
      return error(at, "pattern", *pattern, why);
    patterns_.emplace_back(at, expression);
  }
  if (const json::value* patterns = members.if_contains("patternProperties")) {
    for (const auto& [pattern, member] : patterns->get_object()) {
      if (const std::string why = why_regex_is_too_deep(pattern); !why.empty())
        return error(at, "patternProperties", *patterns, why);
      patterns_.emplace_back(at + "/patternProperties", std::string_view(pattern));
    }
  }
  has_length_ = has_length_ || members.contains("minLength") || members.contains("maxLength");
  json::object copy;
  HADAL_RETURN_IF_ERROR(walk_members(members, at, depth, copy));
  if (lacks_type) copy["type"] = "string";
  rewrite(copy);
  out = std::move(copy);
  return {};
}

}  // namespace

Result<PreparedSchema> prepare_json_schema(std::string_view schema_json, std::string_view field) {
  if (schema_json.size() > kMaxGrammarBytes)
    return invalid_argument("{} has {} bytes; at most {} are allowed", field, schema_json.size(),
                            kMaxGrammarBytes);
  HADAL_ASSIGN_OR_RETURN(const json::value root, parse_json_text(schema_json, field, 4 * kMaxSchemaDepth));
  SchemaWalk walk(root, field);
  json::value out;
  HADAL_RETURN_IF_ERROR(walk.walk(root, "", 0, out));
  if (root.is_bool() && !root.get_bool())
    return invalid_argument("{}: it is the schema false, which no value matches", field);
  HADAL_RETURN_IF_ERROR(walk.check_refs());
  return PreparedSchema{json::serialize(out), walk.has_length(), std::move(walk.patterns())};
}

std::string one_line(std::string_view message) {
  constexpr size_t kLongest = 500;
  std::string out;
  for (const char c : message) {
    const bool is_blank = static_cast<unsigned char>(c) <= ' ' || c == '\x7f';
    if (!is_blank)
      out += c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  if (out.size() <= kLongest) return out;
  size_t end = kLongest;
  // The text is cut between two characters.
  while (end > 0 && (static_cast<unsigned char>(out[end]) & 0xC0U) == 0x80U) --end;
  return out.substr(0, end) + "…";
}

Result<void> check_json_schema(std::string_view schema_json, std::string_view field) {
  const auto prepared = prepare_json_schema(schema_json, field);
  if (!prepared.ok()) return prepared.status();
  return {};
}

}  // namespace hadal
