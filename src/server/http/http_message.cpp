#include "server/http/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "base/printable.h"

namespace hadal::server {
namespace {

bool is_token(std::string_view text) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kMarks.find(c) != kMarks.npos;
  });
}

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

bool belongs_to_transport(std::string_view name) {
  constexpr std::array<std::string_view, 6> kOwn = {"Content-Length", "Transfer-Encoding", "Connection",
                                                    "Date",           "X-Request-Id",      "Content-Type"};
  return std::any_of(kOwn.begin(), kOwn.end(),
                     [&](std::string_view own) { return equals_ignoring_case(name, own); });
}

void append_clean(std::string& out, std::string_view value) {
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back((byte < 0x20 && c != '\t') || byte == 0x7f ? ' ' : c);
  }
}

void append_field(std::string& out, std::string_view name, std::string_view value) {
  out.append(name).append(": ");
  append_clean(out, value);
  out.append("\r\n");
}

}  // namespace

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Unknown";
  }
}

std::string http_date(std::time_t time) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc{};
  gmtime_r(&time, &utc);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday,
                     kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

void append_head(std::string& out, const HttpResponse& response, const ResponseHead& head) {
  fmt::format_to(std::back_inserter(out), "HTTP/1.1 {} {}\r\n", response.status,
                 reason_phrase(response.status));
  append_field(out, "Date", head.date);
  if (!response.content_type.empty() && response.status != 204)
    append_field(out, "Content-Type", response.content_type);
  if (head.content_length)
    fmt::format_to(std::back_inserter(out), "Content-Length: {}\r\n", *head.content_length);
  else if (head.chunked)
    out.append("Transfer-Encoding: chunked\r\n");
  if (head.close)
    out.append("Connection: close\r\n");
  else if (!head.http11)
    out.append("Connection: keep-alive\r\n");
  if (!head.request_id.empty()) append_field(out, "X-Request-Id", head.request_id);
  if (head.cors) {
    append_field(out, "Access-Control-Allow-Origin", head.cors_allow_origin);
    out.append("Access-Control-Expose-Headers: X-Request-Id, Retry-After");
    for (const auto& [name, value] : head.more)
      if (is_token(name)) out.append(", ").append(name);
    out.append("\r\n");
    if (head.cors_allow_origin != "*") out.append("Vary: Origin\r\n");
  }
  for (const auto list : {std::span(response.headers), head.more})
    for (const auto& [name, value] : list)
      if (is_token(name) && !belongs_to_transport(name)) append_field(out, name, value);
  out.append("\r\n");
}

HttpResponse preflight_response(const HttpRequest& request) {
  HttpResponse response;
  response.status = 204;
  if (request.header("access-control-request-method")) {
    const auto wanted = request.header("access-control-request-headers");
    response.headers.emplace_back("Access-Control-Allow-Headers", wanted ? std::string(*wanted) : "*");
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  return response;
}

std::string for_log(std::string_view text, size_t max_bytes) {
  std::string out;
  for (const char c : text.substr(0, max_bytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7f)
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", byte);
    else
      out.push_back(c);
  }
  if (text.size() > max_bytes) out.append("…");
  return out;
}

bool valid_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 && is_visible_ascii(id);
}

}  // namespace hadal::server
