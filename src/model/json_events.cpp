#include "model/json_events.h"

#include <string>

#include <nlohmann/json.hpp>

namespace hadal {
namespace {

class EventReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit EventReader(const std::function<bool(const JsonEvent&)>& on_value) : on_value_(on_value) {}

  bool is_json() const { return is_json_; }

  bool null() override { return value({}); }
  bool boolean(bool) override { return value({}); }
  bool number_integer(number_integer_t number) override {
    return value({.kind = JsonKind::kInteger, .integer = number});
  }
  bool number_unsigned(number_unsigned_t number) override {
    if (number > uint64_t{INT64_MAX}) return value({});
    return value({.kind = JsonKind::kInteger, .integer = static_cast<int64_t>(number)});
  }
  bool number_float(number_float_t, const string_t&) override { return value({}); }
  bool string(string_t& text) override { return value({.kind = JsonKind::kString, .text = text}); }
  bool binary(binary_t&) override { return value({}); }
  bool start_object(std::size_t) override { return open(JsonKind::kObject); }
  bool start_array(std::size_t) override { return open(JsonKind::kArray); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    key_.swap(name);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    is_json_ = false;
    return false;
  }

 private:
  bool value(JsonEvent event) {
    event.depth = depth_;
    event.key = key_;
    const bool goes_on = on_value_(event);
    key_.clear();  // values of an array have no keys
    return goes_on;
  }
  bool open(JsonKind kind) {
    if (!value({.kind = kind})) return false;
    ++depth_;
    return true;
  }
  bool close() {
    --depth_;
    return true;
  }

  const std::function<bool(const JsonEvent&)>& on_value_;
  std::string key_;  // of the next value
  int depth_ = 0;
  bool is_json_ = true;
};

}  // namespace

JsonEnd read_json_events(std::string_view json, const std::function<bool(const JsonEvent&)>& on_value) {
  EventReader reader(on_value);
  if (nlohmann::json::sax_parse(json, &reader)) return JsonEnd::kComplete;
  return reader.is_json() ? JsonEnd::kStopped : JsonEnd::kNoJson;
}

}  // namespace hadal
