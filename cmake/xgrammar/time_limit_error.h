// Defines what TimeLimit (time_limit.h) throws. It is a header of its own because every file of the library
// includes the other.
#pragma once

#include <stdexcept>

namespace hadal_xgrammar {

class TimeLimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace hadal_xgrammar
