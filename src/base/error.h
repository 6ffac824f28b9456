// Defines the kinds of error. Expected outcomes travel as Result<T> with a Status code (base/result.h);
// broken invariants and device failures throw hadal::Error, which is caught where work ends as a whole: by
// the engine step (which fails the step's requests), by the threads of ranks, and by main.
#pragma once

#include <stdexcept>
#include <string>

namespace hadal {

// StatusCode is the kind of an expected failure. It maps to an HTTP status and to a process exit code.
enum class StatusCode {
  kInvalidArgument,    // the caller's value is wrong: 400, exit 2 on the command line, 1 for files
  kNotFound,           // a file, field or id does not exist: 404
  kUnsupported,        // valid, but this build or model cannot do it: 400
  kResourceExhausted,  // memory, pages, queue places, disk space: 503
  kDataLoss,           // a file is truncated or corrupt: 500
  kCancelled,          // aborted by the user or the client: 499, exit 130
  kInternal,           // anything else: 500
};

const char* to_string(StatusCode code);

// Error is a broken invariant or a device failure; the message carries the expression, the values and the
// location.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace hadal
