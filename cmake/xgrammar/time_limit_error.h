// Defines what TimeLimit (time_limit.h) throws. This is a header of its own because every file of the library
// includes the other.
#pragma once

#include <exception>
#include <stdexcept>

namespace hadal_xgrammar {

class TimeLimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class StackLimitError : public std::exception {
 public:
  const char* what() const noexcept override {
    return "its parts are nested in each other too deeply, or without end";
  }
};

}  // namespace hadal_xgrammar
