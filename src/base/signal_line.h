// Holds what the handlers of fatal signals share. Everything here may be called in such a handler, which must
// neither allocate nor wait for a lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hadal {

// A SignalLine is text in a buffer of a fixed size. Text that does not fit is left out.
class SignalLine {
 public:
  void add(std::string_view text);
  void add(size_t number);
  void add_hex(uintptr_t number);  // "0x1f"
  // Gives up when stderr accepts no bytes for a second, because the process has to end in any case. It
  // ignores SIGPIPE from then on, so that a pipe without a reader only makes the write fail.
  void write_to_stderr() const;

 private:
  char bytes_[2048];  // a file's name and the words around it
  size_t size_ = 0;
};

// Returns to the first thread that calls it, which then ends the process. When several threads fail at the
// same time, the others wait here for that end.
void begin_ending();

}  // namespace hadal
