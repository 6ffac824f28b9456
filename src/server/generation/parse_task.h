// Parses the bodies of requests: small ones on the request's I/O thread, and those that may take long on
// worker threads, so that they do not delay the answers of other requests.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "server/http/http.h"
#include "server/json/api_error.h"
#include "server/server_context.h"

namespace hadal::server {

// Bodies up to this size are parsed at once, unless they may have stop expressions, several choices, many
// values, or tools whose schemas must be checked. Tokenising a text of this length takes at most half a
// millisecond, which only blanks need, but compiling an expression of a few bytes takes up to 6 ms.
inline constexpr size_t kInlineBodyBytes = size_t{2} << 10;
// This is the limit for bodies that may have tools or tool calls, because their prompt is several times as
// long as the body: 16 KiB of nested schemas take 8 ms.
inline constexpr size_t kInlineToolsBytes = size_t{1} << 10;
// This is the limit of commas in a body, which separate the values of its lists. 16 KiB of token ids, or of
// prompts of one letter, take several milliseconds. Commas in texts are few, so they count too.
inline constexpr size_t kInlineCommas = 512;
// Returns true if a body is parsed at once.
bool is_parsed_inline(std::string_view body);

// This runs on the exchange's I/O thread with the parsed body.
using ParseDone = std::function<void(std::shared_ptr<HttpExchange>)>;
// This is a pure function of the body: any thread may call it. `body` is valid during the call only.
using ParseWork = std::function<ParseDone(std::string_view body)>;

// Calls work(body) and then, on the exchange's I/O thread, the function that it returned. The body is moved
// out of the request and stays charged until `work` has ended. If the client goes, the returned function is
// not called: waiting work is dropped at once with the body, and running work is cancelled (base/cancel.h).
// When the server stops, work is cancelled too and the request is answered with a 503. A full queue is also a
// 503. Any other exception becomes a 500.
void run_parse_work(ServerContext& context, std::shared_ptr<HttpExchange> exchange, ErrorStyle style,
                    ParseWork work);

// Does the same for a function parse(body) and a continuation done(exchange, parsed).
template <typename Parse, typename Done>
void parse_body(ServerContext& context, std::shared_ptr<HttpExchange> exchange, ErrorStyle style, Parse parse,
                Done done) {
  run_parse_work(context, std::move(exchange), style,
                 [parse = std::move(parse), done = std::move(done)](std::string_view body) -> ParseDone {
                   using Parsed = decltype(parse(body));
                   const auto parsed = std::make_shared<Parsed>(parse(body));
                   return [done, parsed](std::shared_ptr<HttpExchange> client) {
                     done(std::move(client), std::move(*parsed));
                   };
                 });
}

}  // namespace hadal::server
