// Errors on the wire. Pure functions.
#pragma once

#include <string>

#include "base/result.h"
#include "server/http.h"

namespace hadal::server {

enum class ErrorStyle {
  kSglang,  // {"object": "error", "message", "type", "param", "code"}
  kOpenAi,  // {"error": {"message", "type", "param", "code"}}, and SGLang's fields beside it at the top
};

// The HTTP status of a Status code: 400 kInvalidArgument, kUnsupported; 404; 503 kResourceExhausted (queue
// full; but 400 where the request can never fit); 499 → 503 kCancelled; 500 the rest.
int http_status(StatusCode code);

// `param`: the field at fault, empty when there is none. 503 answers carry Retry-After.
HttpResponse error_response(ErrorStyle style, int status, std::string_view message,
                            std::string_view param = {});
HttpResponse error_response(ErrorStyle style, const Status& status);

}  // namespace hadal::server
