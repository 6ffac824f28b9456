#include "server/json/json_fields.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include <boost/json.hpp>

#include "base/nearest_word.h"
#include "base/printable.h"
#include "server/admission/memory_costs.h"
#include "text/json_error.h"
#include "text/json_members.h"
#include "text/utf8.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

// Returns an integer, even if it was written as 16.0; nullopt if it is not an integer or beyond int64.
std::optional<int64_t> as_integer(const json::value& value) {
  if (const int64_t* number = value.if_int64()) return *number;
  if (value.if_uint64() != nullptr) return std::nullopt;
  if (const double* number = value.if_double()) {
    if (std::abs(*number) < 9e15 && std::floor(*number) == *number) return static_cast<int64_t>(*number);
  }
  return std::nullopt;
}

std::optional<double> as_number(const json::value& value) {
  if (const int64_t* number = value.if_int64()) return static_cast<double>(*number);
  if (const uint64_t* number = value.if_uint64()) return static_cast<double>(*number);
  if (const double* number = value.if_double()) {
    if (std::isfinite(*number)) return *number;
  }
  return std::nullopt;
}

// LimitedMemory provides memory up to a limit, beyond which it throws. Its charge only grows: memory that is
// freed stays charged until the object is destroyed.
class LimitedMemory final : public json::memory_resource {
 public:
  // After std::bad_alloc this says which limit was reached: that of this request or that of all requests.
  struct Limits {
    bool is_full = false;
    size_t refused_bytes = 0;
  };
  LimitedMemory(std::shared_ptr<RequestMemory> memory, std::shared_ptr<Limits> reached)
      : charge_(std::move(memory)), reached_(std::move(reached)) {}

 private:
  static constexpr size_t kGranule = size_t{1} << 20;

  // Boost.JSON frees keys with another alignment than it asked for, so no alignment is passed on to new and
  // delete. Every allocation has the alignment of the default operator new, which is enough for every value.
  void* do_allocate(size_t bytes, size_t alignment) override {
    if (alignment > __STDCPP_DEFAULT_NEW_ALIGNMENT__) throw std::bad_alloc();
    if (bytes > kMaxJsonMemory - used_) {
      reached_->is_full = true;
      throw std::bad_alloc();
    }
    if (used_ + bytes > charge_.bytes(MemoryKind::kJson)) {
      const size_t more = used_ + bytes - charge_.bytes(MemoryKind::kJson) + kGranule;
      if (!charge_.try_add(MemoryKind::kJson, more)) {
        reached_->refused_bytes = more;
        throw std::bad_alloc();
      }
    }
    void* const memory = ::operator new(bytes);
    used_ += bytes;
    return memory;
  }
  void do_deallocate(void* memory, size_t bytes, size_t /*alignment*/) override {
    used_ -= bytes;
    ::operator delete(memory);
  }
  bool do_is_equal(const json::memory_resource& other) const noexcept override { return this == &other; }

  MemoryCharge charge_;
  const std::shared_ptr<Limits> reached_;
  size_t used_ = 0;
};

// Values of smaller bodies cannot reach the limit, so their upper estimate is counted all at once.
constexpr size_t kLimitedBody = size_t{1} << 20;

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
}

}  // namespace

Result<json::object> parse_json_object(std::string_view body, MemoryCharge* reading) {
  if (body.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return invalid_argument("the body is empty; must be a JSON object");
  }
  json::parse_options options;
  options.max_depth = kMaxJsonDepth;
  if (reading != nullptr) {
    HADAL_RETURN_IF_ERROR(reading->add(MemoryKind::kPrompt, body.size() * kTextBytesPerByte));
    if (body.size() < kLimitedBody)
      HADAL_RETURN_IF_ERROR(reading->add(MemoryKind::kJson, body.size() * kJsonBytesPerByte));
  }
  HADAL_RETURN_IF_ERROR(check_json_members(body, "the body", kMaxJsonDepth));
  json::storage_ptr memory;
  const auto reached = std::make_shared<LimitedMemory::Limits>();
  if (body.size() >= kLimitedBody) {
    memory =
        json::make_shared_resource<LimitedMemory>(reading == nullptr ? nullptr : reading->memory(), reached);
  }
  json::stream_parser parser(memory, options);
  parser.reset(memory);
  json::error_code error;
  size_t taken = 0;
  try {
    taken = parser.write_some(body.data(), body.size(), error);
  } catch (const std::bad_alloc&) {
    if (reached->refused_bytes != 0)
      return memory_exhausted(*reading->memory(), MemoryKind::kJson, reached->refused_bytes);
    if (!reached->is_full) throw;
    return invalid_argument("the body's JSON values need more than {} MiB of memory; send fewer of them",
                            kMaxJsonMemory >> 20);
  }
  if (!error && body.find_first_not_of(" \t\r\n", taken) != std::string_view::npos) {
    error = json::error::extra_data;
  }
  if (!error) parser.finish(error);
  if (error) {
    if (error == json::error::too_deep) {
      return invalid_argument("the body is nested {} levels deep; at most {} are allowed", json_depth(body),
                              kMaxJsonDepth);
    }
    // The parser calls both a syntax error.
    if (const size_t valid = valid_utf8_bytes(body); valid < body.size() && valid <= taken) {
      return invalid_argument(
          "the body is invalid UTF-8 at byte {} (0x{:02x}); must be a JSON object in UTF-8", valid,
          static_cast<unsigned char>(body[valid]));
    }
    return invalid_argument("the body is not JSON: {}", json_syntax_error(body, taken));
  }
  json::value value = parser.release();
  if (!value.is_object()) return invalid_argument("the body is {}; must be a JSON object", shown(value));
  return std::move(value.get_object());
}

FieldReader::FieldReader(const json::object& object, std::string prefix)
    : object_(object), prefix_(std::move(prefix)) {}

Result<void> FieldReader::result() const {
  if (status_) return *status_;
  return {};
}

const json::value* FieldReader::find(std::string_view name) const {
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool FieldReader::has(std::string_view name) const {
  return find(name) != nullptr;
}

void FieldReader::fail(std::string_view name, std::string_view message) {
  if (status_) return;
  failed_field_ = prefix_ + cut_text(name);
  status_ = invalid_argument("{}: {}", failed_field_, message);
}

void FieldReader::fail(std::string_view name, const Status& status) {
  if (status_) return;
  fail(name, status.message);
  status_->code = status.code;
}

void FieldReader::refuse(std::string_view name, const Status& status) {
  if (status_) return;
  failed_field_ = prefix_ + std::string(name);
  status_ = status;
}

void FieldReader::must_be(std::string_view name, const json::value& value, std::string_view allowed) {
  if (status_) return;
  failed_field_ = prefix_ + cut_text(name);
  status_ = invalid_argument("{} is {}; must be {}", failed_field_, shown(value), allowed);
}

void FieldReader::must_be(std::string_view name, std::string_view allowed) {
  const json::value* value = find(name);
  must_be(name, value == nullptr ? json::value(nullptr) : *value, allowed);
}

void FieldReader::boolean(std::string_view name, bool& out) {
  const json::value* value = find(name);
  if (value == nullptr || status_) return;
  if (const bool* flag = value->if_bool()) {
    out = *flag;
  } else {
    must_be(name, *value, "true or false");
  }
}

void FieldReader::integer(std::string_view name, std::optional<int64_t>& out, int64_t min, int64_t max,
                          std::string_view because) {
  const json::value* value = find(name);
  if (value == nullptr || status_) return;
  const std::optional<int64_t> number = as_integer(*value);
  if (!number || *number < min || *number > max) {
    const std::string range = fmt::format("an integer in [{}, {}]", min, max);
    must_be(name, *value, because.empty() ? range : fmt::format("{} ({})", range, because));
    return;
  }
  out = number;
}

void FieldReader::integer(std::string_view name, int64_t& out, int64_t min, int64_t max,
                          std::string_view because) {
  std::optional<int64_t> number;
  integer(name, number, min, max, because);
  if (number) out = *number;
}

void FieldReader::number(std::string_view name, float& out, double min, double max) {
  const json::value* value = find(name);
  if (value == nullptr || status_) return;
  const std::optional<double> number = as_number(*value);
  const bool is_float = number && std::abs(*number) <= std::numeric_limits<float>::max();
  const float rounded = is_float ? static_cast<float>(*number) : 0.0F;
  if (!is_float || rounded < static_cast<float>(min) || rounded > static_cast<float>(max))
    return must_be(name, *value, fmt::format("a number in [{:g}, {:g}]", min, max));
  out = rounded;
}

void FieldReader::text(std::string_view name, std::optional<std::string>& out) {
  const json::value* value = find(name);
  if (value == nullptr || status_) return;
  if (const json::string* text = value->if_string()) {
    out = std::string(view(*text));
  } else {
    must_be(name, *value, "a string");
  }
}

void FieldReader::text(std::string_view name, std::string& out) {
  std::optional<std::string> found;
  text(name, found);
  if (found) out = std::move(*found);
}

std::string FieldReader::required_text(std::string_view name) {
  std::string out;
  if (!has(name)) fail(name, "is missing; must be a string");
  text(name, out);
  return out;
}

void FieldReader::choice(std::string_view name, std::string& out,
                         std::initializer_list<std::string_view> choices) {
  const json::value* value = find(name);
  if (value == nullptr || status_) return;
  const json::string* text = value->if_string();
  const std::string_view given = text == nullptr ? std::string_view() : view(*text);
  if (text != nullptr && std::find(choices.begin(), choices.end(), given) != choices.end()) {
    out = std::string(given);
    return;
  }
  std::vector<std::string_view> told(choices);
  std::erase(told, std::string_view());
  std::string allowed = fmt::format("{}", fmt::join(told.begin(), told.end() - 1, ", "));
  allowed += fmt::format(" or {}", told.back());
  if (const std::string_view nearest = nearest_word(given, told); !nearest.empty())
    allowed += fmt::format("; the nearest one is {}", nearest);
  must_be(name, *value, allowed);
}

void FieldReader::texts(std::string_view name, std::vector<std::string>& out, size_t max_count,
                        size_t max_bytes) {
  const json::value* value = find(name);
  if (value == nullptr || status_) return;
  constexpr size_t kAny = std::numeric_limits<size_t>::max();
  const std::string bytes = max_bytes == kAny ? "" : fmt::format(" of at most {} bytes", max_bytes);
  const auto text_in = [max_bytes](const json::value& item) {
    const json::string* text = item.if_string();
    return text != nullptr && text->size() <= max_bytes ? text : nullptr;
  };
  const auto refuse = [&](const std::string& field, const json::value& item) {
    if (!item.is_string()) return must_be(field, item, "a string" + bytes);
    fail(field, fmt::format("has {} bytes; must be a string{}", item.get_string().size(), bytes));
  };
  std::vector<std::string> found;
  if (value->is_string()) {
    const json::string* text = text_in(*value);
    if (text == nullptr) return refuse(std::string(name), *value);
    found.emplace_back(view(*text));
  } else if (const json::array* list = value->if_array(); list != nullptr && list->size() <= max_count) {
    for (size_t i = 0; i < list->size(); ++i) {
      const json::string* text = text_in((*list)[i]);
      if (text == nullptr) return refuse(fmt::format("{}[{}]", name, i), (*list)[i]);
      found.emplace_back(view(*text));
    }
  } else {
    const std::string count = max_count == kAny ? "" : fmt::format("at most {} ", max_count);
    return must_be(name, *value, fmt::format("a string{}, or a list of {}such strings", bytes, count));
  }
  out = std::move(found);
}

void FieldReader::integers(std::string_view name, std::vector<int32_t>& out, int64_t min, int64_t max,
                           size_t max_count) {
  const json::value* value = find(name);
  if (value == nullptr || status_) return;
  const auto allowed = [&] { return fmt::format("a list of integers in [{}, {}]", min, max); };
  const auto take = [&](const json::value& item, std::vector<int32_t>& found) {
    const std::optional<int64_t> number = as_integer(item);
    if (!number || *number < min || *number > max) return false;
    found.push_back(static_cast<int32_t>(*number));
    return true;
  };
  std::vector<int32_t> found;
  const json::array* list = value->if_array();
  if (list == nullptr) {
    if (!take(*value, found)) return must_be(name, *value, allowed());
    out = std::move(found);
    return;
  }
  if (list->size() > max_count) {
    return fail(name, fmt::format("has {} entries; at most {} are allowed", list->size(), max_count));
  }
  found.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    if (take((*list)[i], found)) continue;
    return must_be(fmt::format("{}[{}]", name, i), (*list)[i],
                   fmt::format("an integer in [{}, {}]", min, max));
  }
  out = std::move(found);
}

void FieldReader::adopt(const FieldReader& part) {
  if (status_ || part.ok()) return;
  status_ = part.status();
  failed_field_ = part.failed_field();
}

void FieldReader::unsupported(std::initializer_list<std::string_view> names, std::string_view why) {
  for (const std::string_view name : names) {
    const json::value* value = find(name);
    if (value == nullptr || status_) continue;
    if (const bool* flag = value->if_bool(); flag != nullptr && !*flag) continue;
    if (const json::array* list = value->if_array(); list != nullptr && list->empty()) continue;
    if (const json::object* object = value->if_object(); object != nullptr && object->empty()) continue;
    fail(name, fmt::format("is not supported: {}", why));
  }
}

void FieldReader::only(std::initializer_list<std::string_view> names) {
  for (const auto& entry : object_) {
    const std::string_view key(entry.key().data(), entry.key().size());
    bool known = false;
    for (const std::string_view name : names) known = known || name == key;
    if (known || status_) continue;
    const std::string_view nearest =
        key.size() > kShownChars ? "" : nearest_word(key, std::vector<std::string_view>(names));
    constexpr size_t kMostNames = 12;  // more of them would hide the rest of the error
    std::string instead;
    if (!nearest.empty()) {
      instead = fmt::format("; the nearest one is {}", nearest);
    } else if (names.size() <= kMostNames) {
      instead = fmt::format("; allowed are {}", fmt::join(names.begin(), names.end(), ", "));
    }
    failed_field_ = prefix_ + cut_text(key);
    status_ =
        invalid_argument("{} is {}; there is no such field{}", failed_field_, shown(entry.value()), instead);
  }
}

}  // namespace hadal::server
