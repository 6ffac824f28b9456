// Reads JSON as a sequence of events, in time linear in the text, however deep the text is nested. It stores
// nothing that the caller does not keep. Any thread may call it.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace hadal {

enum class JsonKind { kObject, kArray, kString, kInteger, kOther };

// JsonEvent is one value. The values in an object or array follow it, with a depth that is larger by 1.
struct JsonEvent {
  int depth = 0;         // 0: the whole text
  std::string_view key;  // of a value in an object; empty in an array
  JsonKind kind = JsonKind::kOther;
  std::string_view text;  // of a string; valid during the call only, like key
  int64_t integer = 0;    // of an integer; those that do not fit are of another kind
};

enum class JsonEnd { kComplete, kStopped, kNoJson };

// Calls `on_value` for each value, in the order of the text, until `on_value` returns false (kStopped) or the
// text turns out not to be JSON.
JsonEnd read_json_events(std::string_view json, const std::function<bool(const JsonEvent&)>& on_value);

}  // namespace hadal
