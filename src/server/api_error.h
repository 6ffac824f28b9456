// Builds error answers. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "server/http.h"

namespace hadal::server {

enum class ErrorStyle {
  // {"object": "error", "message", "type", "param", "code"}, then OpenAI's object, which clients of SGLang
  // read too
  kSglang,
  kOpenAi,  // {"error": {"message", "type", "param", "code"}}, then SGLang's fields beside it
};

// Returns the HTTP status of a Status code: 400 for kInvalidArgument and kUnsupported; 404 for kNotFound; 503
// for kResourceExhausted (the queue is full) and kCancelled (shutting down); 500 for the rest. A request that
// can never fit is refused before the engine is called, with kInvalidArgument.
int http_status(StatusCode code);

// `param` names the wrong field; empty if there is none. 503 answers have a Retry-After header.
HttpResponse error_response(ErrorStyle style, int status, std::string_view message,
                            std::string_view param = {});
HttpResponse error_response(ErrorStyle style, const Status& status, std::string_view param = {});

// Returns the JSON of an error event inside a stream: {"error": {…}}, which is the same in both styles.
std::string error_event(int status, std::string_view message);

}  // namespace hadal::server
