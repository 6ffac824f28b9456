// Connects the process to its user: stdout, stdin, Ctrl-C and the progress bar. Only the main thread calls
// it, except where noted.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::cli {

// Writes all of `text` to stdout, unbuffered. It throws hadal::Error if that fails, for example on a full
// disk; a closed pipe ends the process by SIGPIPE, without a message.
void write_stdout(std::string_view text);

// Reads all of stdin. The error is kInternal if it cannot be read.
Result<std::string> read_stdin();

// Returns one line of stdin without its line break; nullopt at the end of the input or after Ctrl-C.
class LineReader {
 public:
  std::optional<std::string> next_line();

 private:
  std::string pending_;
  bool at_end_ = false;
};

bool stdin_is_terminal();
bool stdout_is_terminal();
bool stderr_is_terminal();

// Handles Ctrl-C (SIGINT). Without a guard the signal ends the process at once with exit code 130. While a
// guard exists, the first signal only sets a flag, which the command checks between steps; the second one
// ends the process. Because signals belong to the process, this flag is the only state here that no object
// owns.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  bool interrupted() const { return seen(); }
  void reset();
  // Tells whether a signal has come since the guard was made or reset.
  static bool seen();
};

// Makes SIGINT end the process with exit code 130 while no guard exists. main calls this once.
void install_signal_handlers();

// Estimates how long work will still take if it continues at its average speed so far: "12 s", "3 min 20 s",
// "1 h 5 min". The text is empty at the beginning and at the end, when no estimate is possible.
std::string time_left(size_t done, size_t total, double elapsed_s);

// Shows progress and the time left: as a bar on a terminal, else as log lines at 25 %, 50 %, … if the work
// takes longer than a second. Any thread may call it, but only one at a time.
class Progress {
 public:
  explicit Progress(std::string_view title);
  ~Progress();
  void update(size_t done, size_t total, std::string_view what);
  void finish();

 private:
  std::string title_;
  bool bar_;
  bool drawn_ = false;
  int next_percent_ = 25;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point last_draw_;
};

}  // namespace hadal::cli
