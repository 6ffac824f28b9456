// Provides what the tools in this folder share: handling of interruptions, progress lines, validation of
// values, and exit codes. Each tool's single source file includes it once.
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

// SIGINT and SIGTERM set this once catch_signals() was called. Signals belong to the process, so this is the
// one piece of state that belongs to no object. It is lock-free on every platform for which we build.
inline std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

inline void catch_signals() {
  std::signal(SIGINT, [](int) { interrupted.store(true); });
  std::signal(SIGTERM, [](int) { interrupted.store(true); });
}

// Prints one line on stderr and returns the exit code.
inline int fail(const char* tool, const Status& status) {
  fmt::print(stderr, "{}: {}\n", tool, status.message);
  return status.code == StatusCode::kCancelled ? kInterrupted : kFailure;
}

// Shows "writing DIR  42% of 1.25 GiB" on a terminal, in one line; shows nothing elsewhere.
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

// Accepts numbers from `least` on; CLI11's own checks would report the limits of the type instead.
inline CLI::Validator at_least(double least) {
  return {[least](std::string& text) {
            double value = 0.0;
            const bool fits = CLI::detail::lexical_cast(text, value) && value >= least;
            return fits ? std::string() : fmt::format("{}: must be a number from {:g} on", text, least);
          },
          fmt::format(">={:g}", least)};
}

// Parses the options' values. On false, exit_code is 0 after --help and 2 for wrong arguments.
inline bool parse(CLI::App& app, int argc, char** argv, int& exit_code) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::ParseError& error) {
    exit_code = app.exit(error) == 0 ? 0 : kUsage;
    return false;
  }
}

// Runs the body of main. An exception ends the tool with one line, too; partly written files have been
// removed by then.
inline int run_main(const char* tool, int argc, char** argv, int (*run)(int argc, char** argv)) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", tool, error.what());
    return kFailure;
  }
}

}  // namespace hadal::tool
