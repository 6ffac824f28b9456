#include "server/http/http_parse_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>

#include "base/printable.h"
#include "server/http/http_message.h"
#include "text/utf8.h"

namespace hadal::server {
namespace {

namespace http = boost::beast::http;

constexpr std::string_view kLength = "Content-Length";
constexpr std::string_view kEncoding = "Transfer-Encoding";

// Returns the values of all headers of this name, in order.
std::vector<std::string_view> values_of(std::string_view head, std::string_view name) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<std::string_view> out;
  while (!head.empty()) {
    const std::string_view line = head.substr(0, head.find('\n'));
    head.remove_prefix(std::min(head.size(), line.size() + 1));
    if (line.size() <= name.size() || line[name.size()] != ':') continue;
    if (!boost::beast::iequals(line.substr(0, name.size()), name)) continue;
    std::string_view value = line.substr(name.size() + 1);
    value.remove_prefix(std::min(value.find_first_not_of(kBlanks), value.size()));
    out.push_back(value.substr(0, value.find_last_not_of(kBlanks) + 1));
  }
  return out;
}

// Says what is wrong with the headers that give a body's size, or nothing if the error is another one.
std::string size_reason(const boost::system::error_code& error, std::string_view head) {
  if (error != http::error::bad_content_length && error != http::error::multiple_content_length &&
      error != http::error::bad_transfer_encoding)
    return {};
  const auto lengths = values_of(head, kLength);
  const auto encodings = values_of(head, kEncoding);
  if (encodings.empty()) {
    return fmt::format("{}; must be one decimal number below 2^64{}", told_header(kLength, lengths),
                       lengths.size() > 1 ? ", and not more than one" : "");
  }
  return fmt::format("{}{}; must be \"chunked\", once and without a {}", told_header(kEncoding, encodings),
                     lengths.empty() ? "" : " and " + told_header(kLength, lengths), kLength);
}

}  // namespace

std::string shown_header(std::string_view value) {
  return is_valid_utf8(value) ? shown_text(value) : fmt::format("\"{}\"", for_log(value, kShownChars));
}

std::string told_header(std::string_view name, std::span<const std::string_view> values) {
  constexpr size_t kTold = 2;
  std::string out(name);
  for (size_t i = 0; i < std::min(values.size(), kTold); ++i)
    out += (i == 0 ? " is " : " and ") + shown_header(values[i]);
  return out;
}

std::string malformed_reason(const boost::system::error_code& error, std::string_view head) {
  if (std::string reason = size_reason(error, head); !reason.empty()) return reason;
  struct Reason {
    http::error error;
    std::string_view text;
  };
  constexpr Reason kReasons[] = {
      {http::error::bad_version, "only HTTP/1.0 and HTTP/1.1 are supported"},
      {http::error::bad_method, "a request line must begin with its method, which is letters, and one space"},
      {http::error::bad_target,
       "in a request line the method must be followed by one space, a path without spaces and control "
       "characters, one space and HTTP/1.1"},
      {http::error::bad_field, "a header line must be a name without spaces, a colon and a value"},
      {http::error::bad_value,
       "a header's value must have no control characters, and that of Connection must be a list of names"},
      {http::error::bad_line_ending, "a line must end in CR LF"},
      {http::error::bad_obs_fold, "a header of several lines (obs-fold) is not allowed"},
      {http::error::bad_chunk,
       "a chunk must be its size in hexadecimal digits, CR LF, as many bytes as its size says, and CR LF"},
      {http::error::bad_chunk_extension, "a chunk's extension must be ;name or ;name=value"},
  };
  for (const Reason& reason : kReasons)
    if (error == reason.error) return std::string(reason.text);
  return "its bytes must be HTTP/1.1";
}

}  // namespace hadal::server
