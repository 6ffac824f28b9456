#include "server/api_error.h"

#include <fmt/format.h>

#include <new>

#include "server/json_writer.h"

namespace hadal::server {
namespace {

// Returns SGLang's class of error by status.
std::string_view type_name(int status) {
  switch (status) {
    case 400:
      return "BadRequestError";
    case 401:
      return "AuthenticationError";
    case 403:
      return "PermissionDeniedError";
    case 404:
      return "NotFoundError";
    case 405:
      return "MethodNotAllowedError";
    case 501:
      return "NotImplementedError";
    case 413:
      return "RequestTooLargeError";
    case 429:
      return "RateLimitError";
    case 503:
      return "ServiceUnavailableError";
    default:
      return status < 500 ? "BadRequestError" : "InternalServerError";
  }
}

// Returns OpenAI's class of error by status.
std::string_view openai_type_name(int status) {
  if (status == 503) return "service_unavailable_error";
  if (status == 429) return "rate_limit_error";
  return status < 500 ? "invalid_request_error" : "server_error";
}

std::string_view openai_code(int status) {
  switch (status) {
    case 401:
      return "\"invalid_api_key\"";
    case 404:
      return "\"not_found\"";
    case 429:
      return "\"rate_limit_exceeded\"";
    case 503:
      return "\"service_unavailable\"";
    default:
      return "null";
  }
}

void append_param(std::string& out, std::string_view param) {
  out += ",\"param\":";
  if (param.empty()) {
    out += "null";
  } else {
    append_json_string(out, param);
  }
}

void append_openai_error(std::string& out, int status, std::string_view message, std::string_view param) {
  out += "\"error\":{\"message\":";
  append_json_string(out, message);
  out += fmt::format(",\"type\":\"{}\"", openai_type_name(status));
  append_param(out, param);
  out += fmt::format(",\"code\":{}}}", openai_code(status));
}

// An answer carries no longer message than this: a value or two, and what is allowed instead.
constexpr size_t kMaxMessageChars = 1000;

}  // namespace

std::string cut_text(std::string_view text, size_t max_chars) {
  size_t at = 0;
  for (size_t chars = 0; at < text.size(); ++at) {
    const bool begins = (static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U;
    if (begins && ++chars > max_chars) break;
  }
  std::string out(text.substr(0, at));
  if (at < text.size()) out += "…";
  return out;
}

int http_status(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return 400;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kResourceExhausted:
    case StatusCode::kCancelled:
      return 503;
    case StatusCode::kDataLoss:
    case StatusCode::kInternal:
      break;
  }
  return 500;
}

std::optional<int> abort_status(ErrorStyle style, AbortReason reason) {
  if (reason == AbortReason::kMemory) return 503;
  if (style == ErrorStyle::kSglang) return std::nullopt;
  switch (reason) {
    case AbortReason::kShutdown:
      return 503;
    case AbortReason::kFault:
      return 500;
    case AbortReason::kRequest:
      return 400;
    case AbortReason::kNone:
    case AbortReason::kClient:
    case AbortReason::kMemory:
      break;
  }
  return std::nullopt;
}

HttpResponse error_response(ErrorStyle style, int status, std::string_view whole_message,
                            std::string_view whole_param) {
  const std::string message = cut_text(whole_message, kMaxMessageChars);
  const std::string param = cut_text(whole_param);
  HttpResponse response;
  response.status = status;
  std::string& out = response.body;
  out += '{';
  if (style == ErrorStyle::kOpenAi) {
    append_openai_error(out, status, message, param);
    out += ',';
  }
  out += "\"object\":\"error\",\"message\":";
  append_json_string(out, message);
  out += fmt::format(",\"type\":\"{}\"", type_name(status));
  append_param(out, param);
  out += fmt::format(",\"code\":{}", status);
  if (style == ErrorStyle::kSglang) {
    out += ',';
    append_openai_error(out, status, message, param);
  }
  out += '}';
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse error_response(ErrorStyle style, const Status& status, std::string_view param) {
  return error_response(style, http_status(status.code), status.message, param);
}

Status status_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return {StatusCode::kResourceExhausted, std::string(kOutOfMemory)};
  return {StatusCode::kInternal, std::string(kInternalError)};
}

std::string error_event(int status, std::string_view message) {
  std::string out(1, '{');
  append_openai_error(out, status, cut_text(message, kMaxMessageChars), {});
  out += "}";
  return out;
}

}  // namespace hadal::server
