// Writes the texts of answers: status lines, sanitised headers and error bodies. It uses no sockets.
#pragma once

#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "server/http/http.h"

namespace hadal::server {

std::string_view reason_phrase(int status);

// Formats a time as in "Sun, 06 Nov 1994 08:49:37 GMT" (RFC 9110, 5.6.7).
std::string http_date(std::time_t time);

// ResponseHead holds the parts of an answer's head that do not come from the handler.
struct ResponseHead {
  bool http11 = true;
  bool close = false;                      // the connection ends with this answer
  std::optional<uint64_t> content_length;  // nothing: `chunked`, or until the connection closes
  bool chunked = false;
  bool cors = false;  // the request had an Origin and CORS is on
  std::string_view cors_allow_origin;
  std::string_view request_id;
  std::string_view date;
  std::span<const HeaderList::value_type> more;  // headers besides those of the response
};

// Appends status line and headers up to and including the empty line. Names that are not tokens and names
// that belong to the transport are left out; control characters in values become spaces, so that no value can
// begin another header.
void append_head(std::string& out, const HttpResponse& response, const ResponseHead& head);

// Returns the answer to an OPTIONS request when CORS is on (Fetch standard, "CORS-preflight request"). The
// allowed methods are in HttpAdmission's headers.
HttpResponse preflight_response(const HttpRequest& request);

// Returns `text` in a form for one log line: control characters and non-ASCII as "\xNN", at most `max_bytes`
// of it.
std::string for_log(std::string_view text, size_t max_bytes = 256);

// Returns true if a client's X-Request-Id may be used: 1 to 128 printable ASCII characters without a space.
bool valid_request_id(std::string_view id);

}  // namespace hadal::server
