#include "text/grammar/grammar_schema_shapes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include <boost/json.hpp>

#include "text/grammar/grammar_schema.h"

namespace hadal {

namespace {

namespace json = boost::json;

bool is_nonempty_list(const json::value& value) {
  return value.is_array() && !value.get_array().empty();
}

bool is_type(const json::value& value) {
  return value.is_string() && among(schema_type_names(), std::string_view(value.get_string()));
}

template <typename Predicate>
bool all_of(const json::value& list, const Predicate& is_right) {
  return std::all_of(list.get_array().begin(), list.get_array().end(), is_right);
}

}  // namespace

std::string wanted_shape(const Keyword& keyword, const json::value& value) {
  switch (keyword.shape) {
    case KeywordShape::kSchema:
      return value.is_object() || value.is_bool() ? "" : "a schema (an object or a boolean)";
    case KeywordShape::kSchemaList:
      return is_nonempty_list(value) ? "" : "a non-empty list of schemas";
    case KeywordShape::kSchemaMap:
      return value.is_object() ? "" : "an object of schemas";
    case KeywordShape::kString:
      return value.is_string() ? "" : "a string";
    case KeywordShape::kStringList: {
      const auto is_string = [](const json::value& element) { return element.is_string(); };
      return value.is_array() && all_of(value, is_string) ? "" : "a list of strings";
    }
    case KeywordShape::kCount:
      if (value.is_int64() && value.get_int64() >= 0 && value.get_int64() <= kMaxSchemaCount) return "";
      return fmt::format("an integer of 0 to {}", kMaxSchemaCount);
    case KeywordShape::kNumber:
      if (!value.is_number()) return "a number";
      if (value.is_uint64() || (value.is_double() && !(std::abs(value.get_double()) <= 9e15)))
        return "a number between -9e15 and 9e15";
      return "";
    case KeywordShape::kList:
      return is_nonempty_list(value) ? "" : "a non-empty list";
    case KeywordShape::kTypes:
      if (is_type(value) || (is_nonempty_list(value) && all_of(value, is_type))) return "";
      return fmt::format("one or a list of {}", fmt::join(schema_type_names(), ", "));
    case KeywordShape::kAnything:
      return "";
  }
  return "";
}

}  // namespace hadal
