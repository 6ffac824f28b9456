#include "model/config_json.h"

#include <algorithm>
#include <cmath>

namespace hadal::config_json {
namespace {

constexpr int kMaxDepth = 64;

bool nested_deeper_than(std::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > limit) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<Json> parse_object(std::string_view text, std::string_view source) {
  if (nested_deeper_than(text, kMaxDepth)) {
    return invalid_argument("{}: nested deeper than {} levels", source, kMaxDepth);
  }
  try {
    Json json = Json::parse(text.begin(), text.end());
    if (!json.is_object())
      return invalid_argument("{}: must be a JSON object, but is {}", source, describe(json));
    return json;
  } catch (const Json::exception& e) {
    std::string reason = e.what();
    const size_t bracket = reason.find("] ");  // "[json.exception.parse_error.101] parse error at line …"
    if (bracket != std::string::npos) reason.erase(0, bracket + 2);
    if (reason.size() > 200) reason.resize(200);
    std::replace_if(
        reason.begin(), reason.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
    return invalid_argument("{}: is not valid JSON: {}", source, reason);
  }
}

std::string describe(const Json& value) {
  if (value.is_object()) return "an object";
  std::string text;
  if (value.is_array()) {
    const bool flat =
        std::none_of(value.begin(), value.end(), [](const Json& v) { return v.is_structured(); });
    if (!flat) return "a nested list";
  }
  text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  constexpr size_t kMaxLength = 60;
  if (text.size() > kMaxLength) {
    size_t length = kMaxLength;
    while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xc0U) == 0x80U) --length;
    text = text.substr(0, length) + "…";
  }
  return text;
}

const Json* ConfigReader::find(const char* name) {
  known_.emplace_back(name);
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

int64_t ConfigReader::integer(const char* name, int64_t min, int64_t max, std::optional<int64_t> fallback) {
  const Json* value = find(name);
  if (value == nullptr) {
    if (!fallback) fail(name, "is missing; allowed: {} to {}", min, max);
    return fallback.value_or(min);
  }
  // get<int64_t> would wrap values that fit only into uint64_t.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= uint64_t{INT64_MAX});
  if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    fail(name, "is {}; allowed: a whole number from {} to {}", describe(*value), min, max);
    return fallback.value_or(min);
  }
  return value->get<int64_t>();
}

double ConfigReader::number(const char* name, double min, double max, std::optional<double> fallback) {
  const Json* value = find(name);
  if (value == nullptr) {
    if (!fallback) fail(name, "is missing; allowed: {} to {}", min, max);
    return fallback.value_or(min);
  }
  const double number = value->is_number() ? value->get<double>() : std::nan("");
  if (!(number >= min && number <= max)) {
    fail(name, "is {}; allowed: a number from {} to {}", describe(*value), min, max);
    return fallback.value_or(min);
  }
  return number;
}

bool ConfigReader::boolean(const char* name, bool fallback) {
  const Json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) {
    fail(name, "is {}; allowed: true or false", describe(*value));
    return fallback;
  }
  return value->get<bool>();
}

size_t ConfigReader::one_of(const char* name, std::initializer_list<const char*> allowed,
                            std::optional<size_t> fallback) {
  const Json* value = find(name);
  if (value == nullptr && fallback) return *fallback;
  if (value != nullptr && value->is_string()) {
    const auto it = std::find(allowed.begin(), allowed.end(), value->get_ref<const std::string&>());
    if (it != allowed.end()) return static_cast<size_t>(it - allowed.begin());
  }
  fail(name, "{}; supported: {}", value == nullptr ? std::string("is missing") : "is " + describe(*value),
       fmt::join(allowed, ", "));
  return fallback.value_or(0);
}

void ConfigReader::fixed(const char* name, int64_t value) {
  const Json* found = find(name);
  if (found != nullptr && found->is_number_integer() && *found == value) return;
  fail(name, "{}; only {} is supported",
       found == nullptr ? std::string("is missing") : "is " + describe(*found), value);
}

const Json* ConfigReader::object(const char* name) {
  const Json* value = find(name);
  if (value == nullptr || value->is_object()) return value;
  fail(name, "is {}; allowed: an object or null", describe(*value));
  return nullptr;
}

}  // namespace hadal::config_json
