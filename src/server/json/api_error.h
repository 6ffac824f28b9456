// Builds error answers. The functions are pure.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/engine.h"
#include "server/http/http.h"

namespace hadal::server {

enum class ErrorStyle {
  // Writes {"object": "error", "message", "type", "param", "code"}, then OpenAI's object, which clients of
  // SGLang read too.
  kSglang,
  kOpenAi,     // {"error": {"message", "type", "param", "code"}}, then SGLang's fields beside it
  kAnthropic,  // {"type": "error", "error": {"type", "message"}}
  kOllama,     // {"error": message}
};

// Returns the HTTP status of a Status code: 400 for kInvalidArgument; 501 for kUnsupported (not text
// generation); 404 for kNotFound; 503 for kResourceExhausted (the queue is full) and kCancelled (shutting
// down); 500 for the rest. A request that can never fit is refused with kInvalidArgument before the engine is
// called.
int http_status(StatusCode code);

// Returns the HTTP status for a generation that was aborted before its answer began. If there is none, the
// answer is a 200 with the finish_reason "abort", and on /generate with the reason in its `message`. In a
// stream that has begun, an abort with a status is an error event in the other styles.
//
// | reason    | other styles             | /generate (kSglang)                           |
// |-----------|--------------------------|-----------------------------------------------|
// | kClient   | answer                   | answer                                        |
// | kShutdown | 503                      | answer, which is SGLang's form of every abort |
// | kFault    | 500                      | answer                                        |
// | kRequest  | 400                      | answer                                        |
// | kMemory   | 503                      | 503, as when the limit refuses the request    |
std::optional<int> abort_status(ErrorStyle style, AbortReason reason);

// `param` names the wrong field; empty if there is none. 503 answers have a Retry-After header.
HttpResponse error_response(ErrorStyle style, int status, std::string_view message,
                            std::string_view param = {});
HttpResponse error_response(ErrorStyle style, const Status& status, std::string_view param = {});

// This is all that a client is told about an exception; the log has the exception's text.
inline constexpr std::string_view kInternalError = "internal error; the server's log has the details";
// A client is told this when an allocation for its request has failed.
inline constexpr std::string_view kOutOfMemory =
    "the server has no memory left for this request; try again later";
// Returns the error that a client gets for an exception in its request: kResourceExhausted (503) for
// std::bad_alloc, otherwise kInternal (500).
Status status_of(const std::exception& error);
inline HttpResponse exception_response(ErrorStyle style, const std::exception& error) {
  return error_response(style, status_of(error));
}

// Returns the JSON of an error inside a stream that has begun: {"error": {…}} in the styles of SGLang and
// OpenAI, otherwise the body of error_response().
std::string error_event(ErrorStyle style, int status, std::string_view message);

}  // namespace hadal::server
