// Errors on the wire. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http.h"

namespace hadal::server {

enum class ErrorStyle {
  kSglang,  // {"object": "error", "message", "type", "param", "code"}, then OpenAI's object, which clients of
            // SGLang read too
  kOpenAi,  // {"error": {"message", "type", "param", "code"}}, then SGLang's fields beside it
};

// The HTTP status of a Status code: 400 kInvalidArgument, kUnsupported; 404 kNotFound; 503 kResourceExhausted
// (the queue is full) and kCancelled (shutting down); 500 the rest. What can never fit is found before the
// engine is asked and is kInvalidArgument.
int http_status(StatusCode code);

// `param`: the field at fault, empty when there is none. 503 answers carry Retry-After.
HttpResponse error_response(ErrorStyle style, int status, std::string_view message,
                            std::string_view param = {});
HttpResponse error_response(ErrorStyle style, const Status& status, std::string_view param = {});

// The JSON of an error event inside a stream: {"error": {…}}, as both styles write it there.
std::string error_event(int status, std::string_view message);

}  // namespace hadal::server
