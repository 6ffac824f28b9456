#include "server/http_parse_error.h"

#include <boost/beast/http/error.hpp>

namespace hadal::server {

std::string_view malformed_reason(const boost::system::error_code& error) {
  namespace http = boost::beast::http;
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
      {http::error::bad_content_length, "Content-Length must be one decimal number below 2^64"},
      {http::error::multiple_content_length, "more than one Content-Length"},
      {http::error::bad_transfer_encoding,
       "Transfer-Encoding must be \"chunked\", once and without a Content-Length"},
      {http::error::bad_chunk,
       "a chunk must be its size in hexadecimal digits, CR LF, as many bytes as its size says, and CR LF"},
      {http::error::bad_chunk_extension, "a chunk's extension must be ;name or ;name=value"},
  };
  for (const Reason& reason : kReasons)
    if (error == reason.error) return reason.text;
  return "its bytes must be HTTP/1.1";
}

}  // namespace hadal::server
