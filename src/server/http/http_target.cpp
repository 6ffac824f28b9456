#include "server/http/http_target.h"

#include <optional>
#include <utility>

#include "server/http/http_parse_error.h"
#include "text/utf8.h"

namespace hadal::server {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Decodes percent escapes. Returns nothing for a broken escape, for a control character (which no path here
// has, and which would let a request write into logs) and for text that is not UTF-8 (errors quote the path
// in JSON).
std::optional<std::string> decode_path(std::string_view path) {
  std::string out;
  out.reserve(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    char c = path[i];
    if (c == '%') {
      if (i + 2 >= path.size()) return std::nullopt;
      const int high = hex_digit(path[i + 1]);
      const int low = hex_digit(path[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return std::nullopt;
    out.push_back(c);
  }
  if (!is_valid_utf8(out)) return std::nullopt;
  return out;
}

}  // namespace

Result<HttpTarget> read_target(std::string_view target) {
  std::string_view rest = target;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!rest.starts_with(scheme)) continue;
    const size_t slash = rest.find_first_of("/?", scheme.size());
    rest = slash == rest.npos ? std::string_view("/") : rest.substr(slash);
    break;
  }
  rest = rest.substr(0, rest.find('#'));
  const size_t mark = rest.find('?');
  const std::string_view sent = rest.substr(0, mark);
  auto path = decode_path(sent);
  if (path && path->empty()) path->push_back('/');
  if (!path || ((*path)[0] != '/' && *path != "*")) {
    return invalid_argument(
        "the request's path is {}; must begin with / and be UTF-8, with % only before two hexadecimal digits "
        "and without control characters",
        shown_header(sent));
  }
  return HttpTarget{.path = std::move(*path),
                    .query = mark == rest.npos ? std::string() : std::string(rest.substr(mark + 1))};
}

}  // namespace hadal::server
