// Fuzzes the raw bytes of a connection: a stream of requests cut into pieces. The first byte selects the size
// of the pieces; for every size the parsed requests must be the same, and limits must be respected.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/http/http_parser.h"

namespace {

using namespace hadal;
using State = server::HttpRequestParser::State;
constexpr size_t kHeaderLimit = 2048;
constexpr size_t kBodyLimit = 4096;

// Returns the complete requests as text.
std::string run(std::string_view wire, size_t piece) {
  server::HttpRequestParser parser(kHeaderLimit, kBodyLimit);
  std::string seen;
  std::string waiting;
  size_t taken = 0;  // bytes of this request, with empty lines before it
  for (size_t at = 0; at < wire.size(); at += piece) {
    waiting.append(wire.substr(at, piece));
    for (;;) {
      const size_t used = parser.feed(waiting);
      HADAL_CHECK(used <= waiting.size());
      taken += used;
      waiting.erase(0, used);
      if (parser.state() != State::kComplete) break;
      const server::HttpRequest& request = parser.request();
      HADAL_CHECK(request.body.size() <= kBodyLimit);
      // At most this much is read: the head, the body in chunks of one byte, the last chunk, and what chunks
      // may add.
      HADAL_CHECK(taken <= kHeaderLimit + 6 * request.body.size() + 5 + kHeaderLimit);
      taken = 0;
      HADAL_CHECK(!request.path.empty());
      HADAL_CHECK(request.path.find('\n') == std::string::npos);
      seen += request.method + " " + request.path + "?" + request.query + "\n";
      size_t header_bytes = 0;
      for (const auto& [name, value] : request.headers) {
        header_bytes += name.size() + value.size();
        HADAL_CHECK(value.find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
        seen += name + ": " + value + "\n";
      }
      HADAL_CHECK(header_bytes <= kHeaderLimit);
      seen += request.body + (parser.keep_alive() ? "\n--\n" : "\n==\n");
      parser.reset();
      if (waiting.empty()) break;
    }
    if (parser.state() == State::kFailed) {
      HADAL_CHECK(parser.error_status() >= 400 && !parser.error_message().empty());
      return seen;
    }
    HADAL_CHECK(waiting.size() <=
                kHeaderLimit + 5 + piece);  // 5: the last chunk of a body, with its trailers
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view wire(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = run(wire, std::max<size_t>(wire.size(), 1));
  const std::string cut = run(wire, data[0] % 64 + 1);
  // If the input comes in pieces, a limit may be reached earlier. The requests that were completed before are
  // the same.
  HADAL_CHECK(whole.starts_with(cut) || cut.starts_with(whole));
  return 0;
}
