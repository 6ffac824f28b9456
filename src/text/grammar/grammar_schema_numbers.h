// Checks what a JSON schema says about numbers. Only grammar_schema.cpp includes it. The function is pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

namespace hadal {

inline constexpr int64_t kMaxMultipleOf = 1024;           // multiples have a state for each remainder
inline constexpr int64_t kMaxIntegersOfMultiple = 10000;  // between the bounds beside a multipleOf

struct NumberFault {
  std::string_view keyword;  // the keyword to blame, which the schema has
  std::string why;
};

// Returns why a grammar cannot enforce the bounds and the multipleOf of `schema`, or nothing if it can. The
// keywords have the right shapes (KeywordShape): numbers between -9e15 and 9e15.
std::optional<NumberFault> number_fault(const boost::json::object& schema);

}  // namespace hadal
