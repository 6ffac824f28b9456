#include "server/json/api_error.h"

#include <fmt/format.h>

#include <cctype>
#include <new>

#include "base/printable.h"
#include "server/json/json_writer.h"

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

// Returns Anthropic's class of error by status.
std::string_view anthropic_type_name(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

// These objects have no member for the field's name, so it begins the message, unless it does so already.
std::string message_with_field(std::string_view message, std::string_view param) {
  if (param.empty()) return std::string(message);
  if (message.starts_with(param)) {
    // The word must end there, because "needs a number" does not name the field `n`.
    const std::string_view rest = message.substr(param.size());
    if (rest.empty() || !(std::isalnum(static_cast<unsigned char>(rest[0])) || rest[0] == '_'))
      return std::string(message);
  }
  return fmt::format("{}: {}", param, message);
}

void append_anthropic_error(std::string& out, int status, std::string_view message, std::string_view param) {
  out += fmt::format("{{\"type\":\"error\",\"error\":{{\"type\":\"{}\",\"message\":",
                     anthropic_type_name(status));
  append_json_string(out, message_with_field(message, param));
  out += "}}";
}

void append_ollama_error(std::string& out, std::string_view message, std::string_view param) {
  out += "{\"error\":";
  append_json_string(out, message_with_field(message, param));
  out += '}';
}

void append_error(std::string& out, ErrorStyle style, int status, std::string_view message,
                  std::string_view param) {
  if (style == ErrorStyle::kAnthropic) return append_anthropic_error(out, status, message, param);
  if (style == ErrorStyle::kOllama) return append_ollama_error(out, message, param);
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
}

// Longer messages are cut. This leaves room for a value or two and for what is allowed instead.
constexpr size_t kMaxMessageChars = 1000;
// A field's name has a prefix that the server makes, and at most kShownChars of the client's.
constexpr size_t kMaxParamChars = 4 * kShownChars;

}  // namespace

int http_status(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return 400;
    case StatusCode::kUnsupported:
      return 501;
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
  const std::string param = cut_text(whole_param, kMaxParamChars);
  HttpResponse response;
  response.status = status;
  append_error(response.body, style, status, message, param);
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

std::string error_event(ErrorStyle style, int status, std::string_view message) {
  const std::string cut = cut_text(message, kMaxMessageChars);
  std::string out;
  if (style == ErrorStyle::kAnthropic || style == ErrorStyle::kOllama) {
    append_error(out, style, status, cut, {});
  } else {
    out += '{';
    append_openai_error(out, status, cut, {});
    out += '}';
  }
  return out;
}

}  // namespace hadal::server
