// HADAL_CHECK(cond, "fmt", args…) and HADAL_CHECK_EQ/NE/LT/LE/GT/GE(a, b) throw hadal::Error with the
// expression, the values and the source location. They guard invariants; expected failures return Result<T>.
#pragma once

#include <fmt/format.h>

#include <string>

#include "base/error.h"

namespace hadal::detail {

[[noreturn]] void check_failed(const char* file, int line, const char* expr, const std::string& detail);

}  // namespace hadal::detail

#define HADAL_CHECK(cond, ...)                                                                 \
  do {                                                                                         \
    if (!(cond)) [[unlikely]]                                                                  \
      ::hadal::detail::check_failed(__FILE__, __LINE__, #cond, ::fmt::format("" __VA_ARGS__)); \
  } while (0)

#define HADAL_CHECK_OP_(a, b, op)                                                       \
  do {                                                                                  \
    const auto& hadal_lhs_ = (a);                                                       \
    const auto& hadal_rhs_ = (b);                                                       \
    if (!(hadal_lhs_ op hadal_rhs_)) [[unlikely]]                                       \
      ::hadal::detail::check_failed(__FILE__, __LINE__, #a " " #op " " #b,              \
                                    ::fmt::format("{} vs {}", hadal_lhs_, hadal_rhs_)); \
  } while (0)

#define HADAL_CHECK_EQ(a, b) HADAL_CHECK_OP_(a, b, ==)
#define HADAL_CHECK_NE(a, b) HADAL_CHECK_OP_(a, b, !=)
#define HADAL_CHECK_LT(a, b) HADAL_CHECK_OP_(a, b, <)
#define HADAL_CHECK_LE(a, b) HADAL_CHECK_OP_(a, b, <=)
#define HADAL_CHECK_GT(a, b) HADAL_CHECK_OP_(a, b, >)
#define HADAL_CHECK_GE(a, b) HADAL_CHECK_OP_(a, b, >=)
