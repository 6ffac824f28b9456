// Reads a client's JSON with types and bounds. Every error names the field, its value and what is allowed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/fwd.hpp>

#include "base/result.h"

namespace hadal::server {

class MemoryCharge;  // server/admission/request_memory.h

inline constexpr size_t kMaxJsonDepth = 100;
// Limits the memory of a body's values and of their parser, because a value of two bytes in the body may take
// up to thirty times as much memory.
inline constexpr size_t kMaxJsonMemory = size_t{256} << 20;

// Parses a request's body. It is an error (kInvalidArgument) if the body is empty, not JSON (with the
// offset), not UTF-8 (with the byte), nested deeper than kMaxJsonDepth, has more values than kMaxJsonMemory
// holds, more members than check_json_members allows (text/json_members.h), or is not an object. If a key
// occurs twice, the last one counts. The memory of the values, and of the texts that a handler copies out of
// them, is counted as long as `reading` and they exist (null: it is not counted). If there is no room for it,
// the error is kResourceExhausted.
Result<boost::json::object> parse_json_object(std::string_view body, MemoryCharge* reading = nullptr);

// FieldReader reads fields of one object. The first error is kept and later reads do nothing, so that a
// request is read from top to bottom and checked once. An absent field and null are equivalent: the target
// keeps its value.
class FieldReader {
 public:
  // `prefix` precedes names in errors, for example "sampling_params.". `object` must outlive the reader.
  explicit FieldReader(const boost::json::object& object, std::string prefix = {});

  bool ok() const { return !status_; }
  // Returns the first error; call it only when !ok().
  const Status& status() const { return *status_; }
  // Returns the field of that error, with its prefix.
  const std::string& failed_field() const { return failed_field_; }
  Result<void> result() const;

  bool has(std::string_view name) const;                        // present and not null
  const boost::json::value* find(std::string_view name) const;  // null when absent or null

  void boolean(std::string_view name, bool& out);
  // Reads an integer in [min, max]; 16.0 counts as 16. The error adds `because`, for example the flag that
  // sets the range.
  void integer(std::string_view name, int64_t& out, int64_t min, int64_t max, std::string_view because = {});
  void integer(std::string_view name, std::optional<int64_t>& out, int64_t min, int64_t max,
               std::string_view because = {});
  // Reads a number in [min, max]. The number and the bounds are rounded to float32 before they are compared.
  void number(std::string_view name, float& out, double min, double max);
  void text(std::string_view name, std::string& out);
  void text(std::string_view name, std::optional<std::string>& out);
  // Returns the text of a field that must be present.
  std::string required_text(std::string_view name);
  // Reads one of `choices`. Errors do not list an empty choice; they name the nearest one if one is near.
  void choice(std::string_view name, std::string& out, std::initializer_list<std::string_view> choices);
  // Reads one string, or a list of at most `max_count`, each of at most `max_bytes`.
  void texts(std::string_view name, std::vector<std::string>& out, size_t max_count,
             size_t max_bytes = std::numeric_limits<size_t>::max());
  // Reads a list of integers in [min, max]; a single integer counts as a list.
  void integers(std::string_view name, std::vector<int32_t>& out, int64_t min, int64_t max,
                size_t max_count = std::numeric_limits<size_t>::max());

  // Records an error about field `name` unless there is one already: "<field>: <message>".
  void fail(std::string_view name, std::string_view message);
  // Does the same with the code of another error: "<field>: <its message>".
  void fail(std::string_view name, const Status& status);
  // Does the same with an error whose message does not begin with the field.
  void refuse(std::string_view name, const Status& status);
  // Does the same for a value of the wrong kind: "<field> is <value>; must be <allowed>".
  void must_be(std::string_view name, const boost::json::value& value, std::string_view allowed);
  // Does the same for the client's value of field `name` ("null" if there is none).
  void must_be(std::string_view name, std::string_view allowed);

  // Adopts the error of a reader of a part of this object, if that reader has one.
  void adopt(const FieldReader& part);

  // Records an error if one of these fields is present (and is not null, false or an empty list or object).
  // They are known fields of the API that this server does not support.
  void unsupported(std::initializer_list<std::string_view> names, std::string_view why);
  // Records an error for any field that is not in `names`, with its value. It suggests the nearest name, or
  // lists all if none is near and they are few.
  void only(std::initializer_list<std::string_view> names);

  const boost::json::object& object() const { return object_; }
  const std::string& prefix() const { return prefix_; }

 private:
  const boost::json::object& object_;
  std::string prefix_;
  std::optional<Status> status_;
  std::string failed_field_;
};

}  // namespace hadal::server
