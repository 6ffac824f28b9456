#include "client/http_url.h"

#include <charconv>

namespace hadal::client {

Result<HttpUrl> parse_url(std::string_view text, std::string_view source) {
  HttpUrl url;
  std::string_view rest = text;
  if (rest.starts_with("https://")) url.tls = true;
  const size_t scheme = rest.find("://");
  if (scheme != std::string_view::npos) {
    if (!url.tls && !rest.starts_with("http://")) {
      return invalid_argument("{} {}: must begin with http:// or https://", source, text);
    }
    rest = rest.substr(scheme + 3);
  }
  url.port = url.tls ? 443 : 80;
  const size_t slash = rest.find('/');
  std::string_view authority = rest.substr(0, slash);
  std::string_view path = slash == std::string_view::npos ? std::string_view() : rest.substr(slash);
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  const size_t bracket = authority.find(']');
  const size_t colon = authority.rfind(':');
  if (colon != std::string_view::npos && (bracket == std::string_view::npos || colon > bracket)) {
    const std::string_view digits = authority.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), url.port);
    if (error != std::errc() || end != digits.data() + digits.size() || url.port == 0) {
      return invalid_argument("{} {}: '{}' is not a port; must be in [1, 65535]", source, text, digits);
    }
    authority = authority.substr(0, colon);
  }
  if (authority.starts_with('[') && authority.ends_with(']')) {
    authority = authority.substr(1, authority.size() - 2);
  }
  constexpr std::string_view kNever = " @?#\r\n\t";  // in neither host nor path
  if (authority.empty() || authority.find_first_of(kNever) != std::string_view::npos ||
      path.find_first_of(kNever) != std::string_view::npos) {
    return invalid_argument("{} {}: must be http://HOST:PORT", source, text.empty() ? "''" : text);
  }
  url.host = authority;
  url.prefix = path;
  return url;
}

}  // namespace hadal::client
