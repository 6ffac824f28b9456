// What handlers of signals that end the process share. Everything here may be called in such a handler, where
// nothing may allocate or wait for a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hadal {

// A SignalLine is text in a buffer of its own. What does not fit is left out.
class SignalLine {
 public:
  void add(std::string_view text);
  void add(size_t number);
  void add_hex(uintptr_t number);  // "0x1f"
  // Gives up when nobody reads stderr for a second, because the process has to end in any case. From now on a
  // reader that has gone is an error of the write, not a signal.
  void write_to_stderr() const;

 private:
  char bytes_[2048];  // a file's name and the words around it
  size_t size_ = 0;
};

// Returns to the first thread that calls it, which then ends the process. When several threads fail at the
// same time, the others wait here for that end.
void begin_ending();

}  // namespace hadal
