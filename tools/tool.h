// What the tools beside this file share: how they are interrupted, say how far they are, refuse values and
// end. Included once by each tool's one source file.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace hadal::tool {

inline constexpr int kFailure = 1;
inline constexpr int kUsage = 2;
inline constexpr int kInterrupted = 130;

// Set by SIGINT and SIGTERM once catch_signals() was called. Signals are the process's own: the one piece of
// state that hangs from no object. Lock-free on every platform we build for.
inline std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

inline void catch_signals() {
  std::signal(SIGINT, [](int) { interrupted.store(true); });
  std::signal(SIGTERM, [](int) { interrupted.store(true); });
}

// One line on stderr, and the exit code.
inline int fail(const char* tool, const Status& status) {
  fmt::print(stderr, "{}: {}\n", tool, status.message);
  return status.code == StatusCode::kCancelled ? kInterrupted : kFailure;
}

// "writing DIR  42% of 1.25 GiB" on a terminal, in one line; nothing elsewhere.
inline std::function<void(int64_t done, int64_t total)> writing_progress(const std::string& output) {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [output, shown = -1](int64_t done, int64_t total) mutable {
    const int percent = static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
    if (percent == shown) return;
    shown = percent;
    fmt::print(stderr, "\rwriting {} {:3}% of {:.2f} GiB{}", output, percent,
               static_cast<double>(total) / 0x1p30, done == total ? "\n" : "");
  };
}

// Numbers from `least` on; CLI11's own checks tell of the ends of the type instead.
inline CLI::Validator at_least(double least) {
  return {[least](std::string& text) {
            double value = 0.0;
            const bool fits = CLI::detail::lexical_cast(text, value) && value >= least;
            return fits ? std::string() : fmt::format("{}: must be a number from {:g} on", text, least);
          },
          fmt::format(">={:g}", least)};
}

// The options' values, or the exit code: 0 after --help, 2 where the words are wrong.
inline bool parse(CLI::App& app, int argc, char** argv, int& exit_code) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : kUsage;
    return false;
  }
}

// The body of main: what is thrown ends the tool with a line, too. What was half written is gone by then.
inline int run_main(const char* tool, int argc, char** argv, int (*run)(int argc, char** argv)) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", tool, error.what());
    return kFailure;
  }
}

}  // namespace hadal::tool
