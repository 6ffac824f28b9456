// Checks the bounds of numbers and the multipleOf in a JSON schema. Only grammar_schema.cpp includes it. The
// function is pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <boost/json/fwd.hpp>

namespace hadal {

inline constexpr int64_t kMaxMultipleOf = 1024;           // a grammar has a state for each remainder
inline constexpr int64_t kMaxIntegersOfMultiple = 10000;  // between the bounds beside a multipleOf

struct NumberFault {
  std::string_view keyword;  // the keyword at fault, which is in the schema
  std::string why;
};

// Returns why a grammar cannot enforce the bounds and the multipleOf of `schema`, or nothing if it can. The
// keywords have the right shapes (KeywordShape): numbers between -9e15 and 9e15.
std::optional<NumberFault> number_fault(const boost::json::object& schema);

}  // namespace hadal
