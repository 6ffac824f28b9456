// Reads a small JSON object field by field, with errors that name the field, its value and what is allowed.
// Only the config parser includes it, because nlohmann's header is slow to compile.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/result.h"

namespace hadal::config_json {

using Json = nlohmann::json;

// Parses a JSON object. It is an error if the text is not JSON (this includes NaN and numbers beyond double's
// range), is not an object, or is nested deeper than 64 (so that recursion over the value cannot exhaust the
// stack).
Result<Json> parse_object(std::string_view text, std::string_view source);

// Describes a value for error messages: "12", "\"llama\"", "an object", shortened to fit one line.
std::string describe(const Json& value);

// Reads fields of one object. The first error is kept; after it every read returns its fallback, so that a
// sequence of reads needs one check at its end. An absent field and null are equivalent.
class ConfigReader {
 public:
  // `prefix` precedes field names in errors, for example "rope_scaling.".
  ConfigReader(const Json& object, std::string_view source, std::string_view prefix = {})
      : object_(object), source_(source), prefix_(prefix) {}

  // Reads an integer. A field without a fallback is required.
  int64_t integer(const char* name, int64_t min, int64_t max, std::optional<int64_t> fallback = {});
  // Reads a finite number with min ≤ value ≤ max.
  double number(const char* name, double min, double max, std::optional<double> fallback = {});
  bool boolean(const char* name, bool fallback);
  // Returns the index of the value among `allowed`.
  size_t one_of(const char* name, std::initializer_list<const char*> allowed,
                std::optional<size_t> fallback = {});
  // Reads an integer that can have only one value.
  void fixed(const char* name, int64_t value);
  // Returns an object, or null if absent.
  const Json* object(const char* name);
  // Returns the value whatever its type, or null if absent.
  const Json* find(const char* name);

  template <typename... Args>
  void fail(const char* name, fmt::format_string<Args...> format, Args&&... args) {
    if (status_) return;
    status_ = invalid_argument("{}: {}{} {}", source_, prefix_, name,
                               fmt::format(format, std::forward<Args>(args)...));
  }
  void fail(Status status) {
    if (!status_) status_ = std::move(status);
  }
  bool ok() const { return !status_; }
  const Status& status() const { return *status_; }
  // Lists every field that was requested.
  const std::vector<std::string>& known() const { return known_; }

 private:
  const Json& object_;
  std::string source_;
  std::string prefix_;
  std::optional<Status> status_;
  std::vector<std::string> known_;
};

}  // namespace hadal::config_json
