#include "base/error.h"

#include "base/check.h"

namespace hadal {

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kResourceExhausted:
      return "resource exhausted";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";
}

namespace detail {

void check_failed(const char* file, int line, const char* expr, const std::string& detail) {
  throw Error(
      fmt::format("check failed: {}{}{} ({}:{})", expr, detail.empty() ? "" : ": ", detail, file, line));
}

}  // namespace detail
}  // namespace hadal
