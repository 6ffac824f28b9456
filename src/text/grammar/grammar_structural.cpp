#include "text/grammar/grammar_structural.h"

#include <algorithm>

#include <boost/json.hpp>

#include "base/printable.h"
#include "text/chat/chat_markers.h"
#include "text/grammar/grammar_schema.h"
#include "text/json_error.h"

namespace hadal {

namespace {

namespace json = boost::json;

constexpr size_t kMaxFormatDepth = 32;
constexpr int64_t kMaxRepeat = 1024;
constexpr std::string_view kDsmlStyle = "deepseek_xml";  // the library's name for V3.2's parameters

constexpr std::string_view kStructuralFormats[] = {"const_string",
                                                   "json_schema",
                                                   "any_text",
                                                   "regex",
                                                   "grammar",
                                                   "sequence",
                                                   "or",
                                                   "tag",
                                                   "triggered_tags",
                                                   "tags_with_separator",
                                                   "optional",
                                                   "plus",
                                                   "star",
                                                   "repeat",
                                                   "token",
                                                   "exclude_token",
                                                   "any_tokens",
                                                   "token_triggered_tags",
                                                   "dispatch",
                                                   "token_dispatch"};

class TagWalk {
 public:
  TagWalk(std::string_view field, const AddedTokenIds& added, PreparedTag& out)
      : field_(field), added_(added), out_(out) {}

  // Checks a format and rewrites it in place. With `is_tag` its "type" may be missing.
  Result<void> walk(json::value& format, const std::string& at, size_t depth, bool is_tag = false);

 private:
  Status error(std::string_view at, const std::string& why) const {
    return invalid_argument("{}", one_line(fmt::format("{}: at {}: {}", field_, cut(at), why)));
  }
  static std::string cut(std::string_view at) { return cut_text(at, 4 * kShownChars); }
  // Says that the value at `at` is of the wrong kind.
  Status must_be(std::string_view at, const json::value& value, std::string_view allowed) const {
    return invalid_argument(
        "{}", one_line(fmt::format("{}: at {} is {}; must be {}", field_, cut(at), shown(value), allowed)));
  }
  Result<void> walk_list(json::value& list, const std::string& at, size_t depth, bool are_tags);
  Result<void> walk_rules(json::value& rules, const std::string& at, size_t depth, bool by_token);
  Result<void> walk_text(const json::value& value, const std::string& at);
  Result<void> name_token(json::value& token, const std::string& at) const;

  std::string_view field_;
  const AddedTokenIds& added_;
  PreparedTag& out_;
};

Result<void> TagWalk::walk_list(json::value& list, const std::string& at, size_t depth, bool are_tags) {
  if (!list.is_array() || list.get_array().empty()) return must_be(at, list, "a non-empty list");
  for (size_t i = 0; i < list.get_array().size(); ++i)
    HADAL_RETURN_IF_ERROR(walk(list.get_array()[i], at + "/" + std::to_string(i), depth + 1, are_tags));
  return {};
}

Result<void> TagWalk::walk_rules(json::value& rules, const std::string& at, size_t depth, bool by_token) {
  if (!rules.is_array()) return must_be(at, rules, "a list of pairs");
  for (size_t i = 0; i < rules.get_array().size(); ++i) {
    json::value& rule = rules.get_array()[i];
    const std::string here = at + "/" + std::to_string(i);
    if (!rule.is_array() || rule.get_array().size() != 2)
      return must_be(here, rule, "a pair of trigger and format");
    HADAL_RETURN_IF_ERROR(by_token ? name_token(rule.get_array()[0], here + "/0")
                                   : walk_text(rule.get_array()[0], here + "/0"));
    HADAL_RETURN_IF_ERROR(walk(rule.get_array()[1], here + "/1", depth + 1));
  }
  return {};
}

// Checks a text or a list of texts, and collects them as literals.
Result<void> TagWalk::walk_text(const json::value& value, const std::string& at) {
  if (value.is_string()) {
    out_.literals.emplace_back(std::string_view(value.get_string()));
    return {};
  }
  if (!value.is_array()) return must_be(at, value, "a string or a list of strings");
  for (const json::value& element : value.get_array()) {
    if (!element.is_string()) return must_be(at, value, "a string or a list of strings");
    out_.literals.emplace_back(std::string_view(element.get_string()));
  }
  return {};
}

Result<void> TagWalk::name_token(json::value& token, const std::string& at) const {
  if (token.is_int64()) return {};  // the compiler checks the range
  if (!token.is_string()) return must_be(at, token, "a token's text or its id");
  const auto found = added_.find(std::string_view(token.get_string()));
  if (found == added_.end())
    return error(at, fmt::format("{} is not one of the model's added tokens",
                                 shown_text(std::string_view(token.get_string()))));
  token = found->second;
  return {};
}

Result<void> TagWalk::walk(json::value& format, const std::string& at, size_t depth, bool is_tag) {
  if (depth > kMaxFormatDepth)
    return error(
        at, fmt::format("this format is {} formats deep; at most {} are allowed", depth, kMaxFormatDepth));
  if (!format.is_object()) return must_be(at, format, "a format, which is an object");
  json::object& members = format.get_object();
  if (is_tag && !members.contains("type")) members["type"] = "tag";
  const json::value* type_value = members.if_contains("type");
  const std::string type = type_value != nullptr && type_value->is_string()
                               ? std::string(type_value->get_string())
                               : std::string();
  if (std::find(std::begin(kStructuralFormats), std::end(kStructuralFormats), type) ==
      std::end(kStructuralFormats))
    return error(at, fmt::format("\"type\" is {}; allowed are {}",
                                 type_value == nullptr ? "missing" : shown(*type_value),
                                 fmt::join(kStructuralFormats, ", ")));

  if (type == "json_schema") members["max_whitespace_cnt"] = kMaxJsonBlanks;
  for (auto& [key, value] : members) {
    const std::string name(key);
    const std::string here = at + "/" + name;
    if (name == "json_schema") {
      HADAL_ASSIGN_OR_RETURN(
          PreparedSchema schema,
          prepare_json_schema(json::serialize(value), fmt::format("{}: at {}", field_, here)));
      value = json::parse(schema.json);
      out_.has_length = out_.has_length || schema.has_length;
      for (auto& [place, pattern] : schema.patterns)
        out_.patterns.emplace_back(here + place, std::move(pattern));
    } else if (name == "style") {
      if (!value.is_string() || (value.get_string() != "json" && value.get_string() != kDsmlStyle))
        return must_be(here, value, fmt::format("\"json\" or \"{}\"", kDsmlStyle));
      // The library adds these tags, which may contain an added token.
      if (value.get_string() == kDsmlStyle) out_.literals.emplace_back(dsml::kParameter);
    } else if (name == "content") {
      HADAL_RETURN_IF_ERROR(walk(value, here, depth + 1));
    } else if (name == "elements" || name == "tags") {
      HADAL_RETURN_IF_ERROR(walk_list(value, here, depth, name == "tags"));
    } else if (name == "rules") {
      HADAL_RETURN_IF_ERROR(walk_rules(value, here, depth, type == "token_dispatch"));
    } else if (name == "token") {
      HADAL_RETURN_IF_ERROR(name_token(value, here));
    } else if (name == "exclude_tokens" || name == "trigger_tokens") {
      if (!value.is_array()) return must_be(here, value, "a list of tokens");
      for (json::value& token : value.get_array()) HADAL_RETURN_IF_ERROR(name_token(token, here));
    } else if ((name == "begin" || name == "end") && value.is_object()) {
      HADAL_RETURN_IF_ERROR(walk(value, here, depth + 1));
    } else if (name == "begin" || name == "end" || name == "triggers" || name == "excludes" ||
               name == "value" || name == "separator" || name == "pattern" || name == "grammar") {
      HADAL_RETURN_IF_ERROR(walk_text(value, here));
      if (type == "regex" && name == "pattern" && value.is_string())
        out_.patterns.emplace_back(at, std::string_view(value.get_string()));
    } else if (name == "min" || name == "max" || name == "max_tokens" || name == "max_chars") {
      const int64_t most = name.size() == 3 ? kMaxRepeat : int64_t{1} << 20;
      if (!value.is_int64() || value.get_int64() < -1 || value.get_int64() > most)
        return must_be(here, value, fmt::format("an integer of -1 to {}", most));
    }
  }
  return {};
}

// Converts the older form to the newer one.
Result<json::value> from_structures(const json::object& tag, std::string_view field) {
  const json::value* structures = tag.if_contains("structures");
  const json::value* triggers = tag.if_contains("triggers");
  if (structures == nullptr || !structures->is_array() || triggers == nullptr || !triggers->is_array())
    return invalid_argument("{}: it needs a \"format\", or \"structures\" and \"triggers\"", field);
  json::array tags;
  for (size_t i = 0; i < structures->get_array().size(); ++i) {
    const json::object* structure = structures->get_array()[i].if_object();
    if (structure == nullptr || !structure->contains("begin") || !structure->contains("end"))
      return invalid_argument("{}: structures[{}] needs \"begin\", \"schema\" and \"end\"", field, i);
    const json::value* schema = structure->if_contains("schema");
    tags.push_back(json::object{
        {"type", "tag"},
        {"begin", structure->at("begin")},
        {"content", json::object{{"type", "json_schema"},
                                 {"json_schema", schema != nullptr ? *schema : json::value(json::object())}}},
        {"end", structure->at("end")}});
  }
  return json::value(
      json::object{{"type", "triggered_tags"}, {"triggers", *triggers}, {"tags", std::move(tags)}});
}

}  // namespace

Result<PreparedTag> prepare_structural_tag(std::string_view tag_json, std::string_view field,
                                           const AddedTokenIds& added_tokens) {
  if (tag_json.size() > kMaxGrammarBytes)
    return invalid_argument("{} has {} bytes; at most {} are allowed", field, tag_json.size(),
                            kMaxGrammarBytes);
  HADAL_ASSIGN_OR_RETURN(const json::value root,
                         parse_json_text(tag_json, field, 4 * kMaxSchemaDepth + 4 * kMaxFormatDepth));
  const json::object* tag = root.if_object();
  const json::value* type = tag != nullptr ? tag->if_contains("type") : nullptr;
  if (type == nullptr || !type->is_string() || type->get_string() != "structural_tag")
    return invalid_argument("{}: it is {}; must be an object with the \"type\" \"structural_tag\"", field,
                            shown(root));
  json::value format;
  if (const json::value* given = tag->if_contains("format")) {
    format = *given;
  } else {
    HADAL_ASSIGN_OR_RETURN(format, from_structures(*tag, field));
  }
  PreparedTag out;
  TagWalk walk(field, added_tokens, out);
  HADAL_RETURN_IF_ERROR(walk.walk(format, "/format", 0));
  out.json = json::serialize(json::object{{"type", "structural_tag"}, {"format", std::move(format)}});
  return out;
}

}  // namespace hadal
