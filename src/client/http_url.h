// Reads the address of a server. The functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::client {

struct HttpUrl {
  bool tls = false;
  std::string host;
  uint16_t port = 0;
  std::string prefix;  // put in front of every target; does not end in a slash
};

// Reads "http://host:port/prefix", "https://…" or "host:port". A "/v1" at the end of the prefix is removed,
// because targets begin with it. IPv6 addresses stand in brackets. The error is kInvalidArgument; `source`
// names the text in it.
Result<HttpUrl> parse_url(std::string_view text, std::string_view source);

}  // namespace hadal::client
