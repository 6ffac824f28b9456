#include "text/stop/stop_search.h"

#include <gtest/gtest.h>

#include <string>

namespace hadal {
namespace {

struct Outcome {
  std::string shown;
  std::string matched;
};

std::shared_ptr<const StopPatterns> patterns(std::vector<std::string> strings,
                                             std::vector<std::string> regexes) {
  return StopPatterns::compile(std::move(strings), regexes).value();
}

// Returns everything that is shown of `text`, cut into pieces of `size` bytes.
Outcome run(const std::shared_ptr<const StopPatterns>& stops, const std::string& text, size_t size,
            bool no_stop_trim = false) {
  StopSearch search(stops, no_stop_trim);
  Outcome out;
  for (size_t at = 0; at < text.size() && !search.stopped(); at += size) {
    out.shown += search.append(std::string_view(text).substr(at, size));
  }
  out.shown += search.finish();
  out.matched = search.matched();
  return out;
}

TEST(StopSearch, AWholeExpressionEndsTheTextHoweverItIsCut) {
  const auto stops = patterns({}, {"[0-9]{3}"});
  for (size_t size = 1; size <= 12; ++size) {
    const Outcome out = run(stops, "a12b345c", size);
    EXPECT_EQ(out.shown, "a12b") << size;
    EXPECT_EQ(out.matched, "345") << size;
  }
}

TEST(StopSearch, OnlyAPossibleBeginningOfAMatchIsHeldBack) {
  StopSearch search(patterns({}, {"END[0-9]"}));
  EXPECT_EQ(search.append("text E"), "text ");
  EXPECT_EQ(search.append("N"), "");
  EXPECT_EQ(search.append("x"), "ENx");
  EXPECT_EQ(search.append("END"), "");
  EXPECT_EQ(search.finish(), "END");
}

TEST(StopSearch, TheMatchThatEndsFirstStopsTheText) {
  const auto stops = patterns({"stop"}, {"[0-9]+;"});
  for (size_t size = 1; size <= 14; ++size) {
    EXPECT_EQ(run(stops, "ab stop 12; x", size).shown, "ab ") << size;
    EXPECT_EQ(run(stops, "ab 12; stop x", size).shown, "ab ") << size;
    EXPECT_EQ(run(stops, "ab sto 12 x", size).shown, "ab sto 12 x") << size;
    EXPECT_EQ(run(stops, "ab stop 12; x", size, true).shown, "ab stop") << size;
    EXPECT_EQ(run(stops, "ab 12; stop x", size, true).shown, "ab 12;") << size;
  }
}

TEST(StopSearch, ExpressionsMatchCharactersNotBytes) {
  const auto stops = patterns({}, {"ä.ö"});
  EXPECT_EQ(run(stops, "xä漢ö!", 64).shown, "x");
}

TEST(StopSearch, AnEmptyMatchDoesNotStop) {
  EXPECT_EQ(run(patterns({}, {"z*"}), "abc", 1).shown, "abc");
}

TEST(StopSearch, BrokenPatternsAreErrorsThatNameThem) {
  const auto broken = StopPatterns::compile({}, {"a(b"});
  ASSERT_FALSE(broken.ok());
  EXPECT_EQ(broken.status().code, StatusCode::kInvalidArgument);
  EXPECT_NE(broken.status().message.find("a(b"), std::string::npos);
  EXPECT_FALSE(StopPatterns::compile({}, {"\xff"}).ok());
  EXPECT_TRUE(patterns({""}, {""})->empty());
}

}  // namespace
}  // namespace hadal
