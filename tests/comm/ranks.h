// Holds what the tests of ranks share: threads that make calls, and the outcomes of these calls.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/loopback.h"

namespace hadal::testing {

// This is the deadline where no rank is meant to be lost, however slow the machine is.
constexpr std::chrono::milliseconds kPatient = std::chrono::minutes(1);

// Calls body(end) on a thread for each rank. Returns what each has thrown, or null.
inline std::vector<std::exception_ptr> on_ranks(LoopbackGroup& group,
                                                const std::function<void(Communicator&)>& body) {
  std::vector<std::exception_ptr> thrown(group.num_ranks());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < group.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(group.end(rank));
      } catch (...) {
        thrown[rank] = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return thrown;
}

// Returns "RankLost: …", "RankFailed: …", "Error: …", "bad_alloc", the message of another exception, or
// "nothing".
inline std::string describe(const std::exception_ptr& thrown) {
  if (!thrown) return "nothing";
  try {
    std::rethrow_exception(thrown);
  } catch (const RankLost& error) {
    return std::string("RankLost: ") + error.what();
  } catch (const RankFailed& error) {
    return std::string("RankFailed: ") + error.what();
  } catch (const Error& error) {
    return std::string("Error: ") + error.what();
  } catch (const std::bad_alloc&) {
    return "bad_alloc";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Returns what `call` throws, described.
template <typename Call>
std::string thrown_by(const Call& call) {
  try {
    call();
  } catch (...) {
    return describe(std::current_exception());
  }
  return "nothing";
}

// On a busy machine a rank that does not hang may miss a short deadline too. This therefore calls
// attempt(deadline), which returns what differs from the expectation or "", with longer and longer deadlines
// until nothing differs. The test fails with what the last attempt returned.
inline void expect_with_some_deadline(
    const std::function<std::string(std::chrono::milliseconds deadline)>& attempt) {
  std::string wrong;
  for (const int milliseconds : {150, 600, 5000}) {
    wrong = attempt(std::chrono::milliseconds(milliseconds));
    if (wrong.empty()) return;
  }
  ADD_FAILURE() << wrong;
}

// Returns "" if `text` contains all `parts`, otherwise a line that says which one is missing.
inline std::string missing_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) return "'" + part + "' is not in '" + text + "'\n";
  }
  return "";
}

// Waits for a random time of at most 200 µs.
inline void delay(std::mt19937_64& random) {
  const uint64_t choice = random() % 4;
  if (choice == 1) std::this_thread::yield();
  if (choice == 2) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
}

}  // namespace hadal::testing
