// Reads the target of a request line. The function is pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::server {

struct HttpTarget {
  std::string path;   // decoded, valid UTF-8 without control characters; begins with / or is "*"
  std::string query;  // what follows the first ?, as it was sent
};

// Supports the origin-form, the absolute-form, which is sent to proxies, and the asterisk-form (RFC 9112,
// 3.2). A fragment is dropped. Any other path is kInvalidArgument.
Result<HttpTarget> read_target(std::string_view target);

}  // namespace hadal::server
