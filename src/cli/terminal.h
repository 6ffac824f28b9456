// The process's edges: stdout, stdin, Ctrl-C and the progress bar. Main thread, except where noted.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace hadal::cli {

// Writes all of `text` to stdout at once, unbuffered. Throws hadal::Error when that fails (a full disk); a
// closed pipe ends the process quietly by SIGPIPE.
void write_stdout(std::string_view text);

// `text` with its control bytes written out (\n, \x1b), so that a value in an error line neither breaks the
// line nor reaches the terminal as a command.
std::string printable(std::string_view text);

// All of stdin. Error: it cannot be read.
Result<std::string> read_stdin();

// One line of stdin without its end; nullopt at the end of the input or when Ctrl-C came meanwhile.
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

// Ctrl-C (SIGINT). Without a guard the process ends at once with exit code 130. While a guard lives
// the first signal only sets a flag that the command looks at between steps; the second one ends the process.
// Signals are the process's own: the flag is the one piece of state that does not hang from an object.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;
  bool interrupted() const;
  void reset();
};

// Makes SIGINT outside of a guard end the process with exit code 130. Called once, by main.
void install_signal_handlers();

// How far loading is: a bar on a terminal, else log lines at 25 %, 50 %, … when it takes longer than a
// second. Any thread, one at a time.
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
