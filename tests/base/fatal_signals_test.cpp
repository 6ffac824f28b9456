// Tests the line that the process writes when a signal ends it. Sanitizers have handlers of their own, which
// these tests remove first.
#include "base/fatal_signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mapping_faults.h"
#include "base/signal_line.h"
#include "base/version.h"

namespace hadal {
namespace {

constexpr std::pair<int, const char*> kSignals[] = {
    {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGILL, "SIGILL"}, {SIGFPE, "SIGFPE"}, {SIGABRT, "SIGABRT"}};

void install() {
  for (const auto& [signal, name] : kSignals) ::signal(signal, SIG_DFL);
  tell_fatal_signals();
  end_on_mapping_faults(7);  // as main does
}

// Matches the rest of the line, which follows the cause.
std::string rest_of_line() {
  return " in thread [0-9]+, version " + std::string(version()) + "\n$";
}

TEST(FatalSignals, NameTheSignalAndEndTheProcessByIt) {
  for (const auto& [signal, name] : kSignals) {
    EXPECT_EXIT(
        {
          install();
          ::raise(signal);
        },
        ::testing::KilledBySignal(signal),
        "^hadal: error: " + std::string(name) + ", raised by the process itself," + rest_of_line());
  }
}

TEST(FatalSignals, NameTheAddress) {
  const auto size = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const page = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const volatile char* const byte = static_cast<const volatile char*>(page) + 24;
  char address[32];
  std::snprintf(address, sizeof(address), "0x%zx", reinterpret_cast<size_t>(byte));
  EXPECT_EXIT(
      {
        install();
        (void)*byte;
      },
      ::testing::KilledBySignal(SIGSEGV),
      "^hadal: error: SIGSEGV at address " + std::string(address) + rest_of_line());
  ::munmap(page, size);
}

TEST(FatalSignals, NameTheSender) {
  for (const int signal : {SIGSEGV, SIGBUS}) {
    EXPECT_EXIT(
        {
          install();
          const pid_t failing = ::getpid();
          if (::fork() == 0) {
            ::kill(failing, signal);
            ::_exit(0);
          }
          while (true) ::pause();
        },
        ::testing::KilledBySignal(signal),
        "^hadal: error: SIG[A-Z]+, sent by process [0-9]+," + rest_of_line());
  }
}

TEST(FatalSignals, ThreadsThatFailTogetherWriteOneLine) {
  EXPECT_EXIT(
      {
        install();
        std::vector<std::thread> threads;
        for (int i = 0; i < 8; ++i) threads.emplace_back([] { ::raise(SIGFPE); });
        for (std::thread& thread : threads) thread.join();
      },
      ::testing::KilledBySignal(SIGFPE), "^hadal: error: SIGFPE[^\n]*\n$");
}

TEST(FatalSignals, AHandlerThatIsThereAlreadyStays) {
  EXPECT_EXIT(
      {
        ::signal(SIGSEGV, [](int) { ::_exit(9); });
        tell_fatal_signals();
        ::raise(SIGSEGV);
      },
      ::testing::ExitedWithCode(9), "^$");
}

TEST(SignalLine, WritesNumbersAndLeavesOutWhatDoesNotFit) {
  ::testing::internal::CaptureStderr();
  SignalLine line;
  line.add("a ");
  line.add(size_t{0});
  line.add(" ");
  line.add(SIZE_MAX);
  line.add(" ");
  line.add_hex(0);
  line.add(" ");
  line.add_hex(UINTPTR_MAX);
  line.write_to_stderr();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "a 0 18446744073709551615 0x0 0xffffffffffffffff");
  line.add(std::string(10'000, 'x'));
  ::testing::internal::CaptureStderr();
  line.write_to_stderr();
  EXPECT_EQ(::testing::internal::GetCapturedStderr().size(), 2048U);
}

}  // namespace
}  // namespace hadal
