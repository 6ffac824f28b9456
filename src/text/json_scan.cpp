#include "text/json_scan.h"

#include <cstdint>
#include <limits>

#include <boost/json/basic_parser_impl.hpp>

namespace hadal {
namespace {

namespace json = boost::json;

// Ignores everything that the parser finds.
struct Ignore {
  using Error = boost::system::error_code;
  static constexpr size_t kAny = std::numeric_limits<size_t>::max();
  static constexpr size_t max_object_size = kAny;
  static constexpr size_t max_array_size = kAny;
  static constexpr size_t max_key_size = kAny;
  static constexpr size_t max_string_size = kAny;

  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_object_begin(Error&) { return true; }
  bool on_object_end(size_t, Error&) { return true; }
  bool on_array_begin(Error&) { return true; }
  bool on_array_end(size_t, Error&) { return true; }
  bool on_key_part(json::string_view, size_t, Error&) { return true; }
  bool on_key(json::string_view, size_t, Error&) { return true; }
  bool on_string_part(json::string_view, size_t, Error&) { return true; }
  bool on_string(json::string_view, size_t, Error&) { return true; }
  bool on_number_part(json::string_view, Error&) { return true; }
  bool on_int64(int64_t, json::string_view, Error&) { return true; }
  bool on_uint64(uint64_t, json::string_view, Error&) { return true; }
  bool on_double(double, json::string_view, Error&) { return true; }
  bool on_bool(bool, Error&) { return true; }
  bool on_null(Error&) { return true; }
  bool on_comment_part(json::string_view, Error&) { return true; }
  bool on_comment(json::string_view, Error&) { return true; }
};

json::parse_options options_of(size_t max_depth) {
  json::parse_options options;
  options.max_depth = max_depth;
  return options;
}

}  // namespace

struct JsonScan::Parser {
  explicit Parser(size_t max_depth) : json(options_of(max_depth)) {}
  json::basic_parser<Ignore> json;
};

JsonScan::JsonScan(size_t max_depth) : parser_(std::make_unique<Parser>(max_depth)) {}
JsonScan::~JsonScan() = default;

// The parser receives single bytes, because only then the byte at which it finds an error is known.
size_t JsonScan::read(std::string_view text) {
  size_t size = 0;
  boost::system::error_code error;
  while (size < text.size() && !parser_->json.done()) {
    const size_t taken = parser_->json.write_some(true, text.data() + size, 1, error);
    is_broken_ = error.failed();
    if (is_broken_) break;
    size += taken;  // the byte after a number, which shows that it is whole, is not taken
  }
  return size;
}

bool JsonScan::is_whole() const {
  return parser_->json.done();
}

}  // namespace hadal
