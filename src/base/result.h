// Result<T> is a value or a Status, for outcomes that a caller is expected to handle. Functions that return
// Result<void> write `return {};` for success and `return invalid_argument("…")` for failure.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/error.h"

namespace hadal {

struct Status {
  StatusCode code = StatusCode::kInternal;
  std::string message;  // one clear line: what, where, what is allowed
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : state_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(state_); }
  explicit operator bool() const { return ok(); }

  T& value() & {
    HADAL_CHECK(ok(), "{}", status().message);
    return std::get<T>(state_);
  }
  const T& value() const& {
    HADAL_CHECK(ok(), "{}", status().message);
    return std::get<T>(state_);
  }
  T value() && {  // by value: a reference into a dead temporary would dangle
    HADAL_CHECK(ok(), "{}", status().message);
    return std::get<T>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Status& status() const { return std::get<Status>(state_); }

 private:
  std::variant<T, Status> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !status_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Status& status() const { return *status_; }

 private:
  std::optional<Status> status_;
};

template <typename... Args>
Status make_status(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status{code, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status not_found(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kNotFound, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kUnsupported, format, std::forward<Args>(args)...);
}
template <typename... Args>
Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kDataLoss, format, std::forward<Args>(args)...);
}

}  // namespace hadal

#define HADAL_CONCAT_INNER_(a, b) a##b
#define HADAL_CONCAT_(a, b) HADAL_CONCAT_INNER_(a, b)

// HADAL_ASSIGN_OR_RETURN(auto x, f()) assigns the value, or returns the Status of a failed Result.
#define HADAL_ASSIGN_OR_RETURN(lhs, expr) \
  HADAL_ASSIGN_OR_RETURN_(HADAL_CONCAT_(hadal_result_, __LINE__), lhs, expr)
#define HADAL_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return tmp.status();           \
  lhs = std::move(tmp).value()

// HADAL_RETURN_IF_ERROR(f()) does the same for Result<void>.
#define HADAL_RETURN_IF_ERROR(expr)                         \
  do {                                                      \
    auto hadal_result_ = (expr);                            \
    if (!hadal_result_.ok()) return hadal_result_.status(); \
  } while (0)
