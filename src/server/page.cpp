#include "server/page.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace hadal::server {
namespace {

// All resources come from this server, the document contains no script or style, and no other site may frame
// it. So even text that bypassed the page's own rendering could neither run code nor contact another host.
constexpr std::string_view kSecurityPolicy =
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; font-src 'self'; img-src "
    "'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

// Compares If-None-Match: "*" or a list of tags; a weak tag matches the strong one here (RFC 9110, 13.1.2).
bool names_tag(std::string_view list, std::string_view etag) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view tag = list.substr(0, comma);
    while (tag.starts_with(' ') || tag.starts_with('\t')) tag.remove_prefix(1);
    while (tag.ends_with(' ') || tag.ends_with('\t')) tag.remove_suffix(1);
    if (tag.starts_with("W/")) tag.remove_prefix(2);
    if (tag == "*" || tag == etag) return true;
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return false;
}

constexpr size_t kPieceBytes = 16 << 10;

// Writes the rest of a file in pieces, each once the client has read the previous one. If several pieces
// could wait for each connection, clients without a key that do not read could fill the memory of requests.
void write_rest(const std::shared_ptr<HttpExchange>& exchange, std::string_view rest) {
  for (; !rest.empty(); rest.remove_prefix(std::min(rest.size(), kPieceBytes))) {
    if (!exchange->writable()) return exchange->on_writable([exchange, rest] { write_rest(exchange, rest); });
    exchange->write(rest.substr(0, kPieceBytes));
  }
  exchange->finish();
}

void answer_page(const PageFile& file, const std::shared_ptr<HttpExchange>& exchange) {
  HttpResponse response;
  response.content_type = file.content_type;
  // The page is requested each time and usually answered with 304, so that the page of a new binary is used
  // at once.
  response.headers = {{"ETag", std::string(file.etag)},
                      {"Cache-Control", "no-cache"},
                      {"Content-Security-Policy", std::string(kSecurityPolicy)},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"}};
  if (names_tag(exchange->request().header("if-none-match").value_or(""), file.etag)) {
    response.status = 304;
  } else if (file.content.size() > kPieceBytes) {
    exchange->set_high_water(0);
    exchange->start_stream(std::move(response));
    return write_rest(exchange, file.content);
  } else {
    response.body = file.content;
  }
  exchange->respond(std::move(response));
}

}  // namespace

void add_page_routes(Router& router) {
  for (const PageFile& file : page_files()) {
    router.add(
        {.method = "GET",
         .path = file.path,
         .access = Access::kOpen,
         .handler = [&file](const std::shared_ptr<HttpExchange>& exchange) { answer_page(file, exchange); }});
  }
}

}  // namespace hadal::server
