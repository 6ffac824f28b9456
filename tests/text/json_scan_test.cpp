// Tests that the end of a JSON value is found however its text is cut.
#include "text/json_scan.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace hadal {
namespace {

constexpr size_t kScanDepth = 128;

struct Read {
  size_t size = 0;
  bool is_whole = false;
  bool is_broken = false;
  bool operator==(const Read&) const = default;
};
void PrintTo(const Read& read, std::ostream* out) {
  *out << read.size << (read.is_whole ? " whole" : "") << (read.is_broken ? " broken" : "");
}

// Reads `text` in pieces of `piece` bytes.
Read read_pieces(std::string_view text, size_t piece) {
  JsonScan scan(kScanDepth);
  Read out;
  for (size_t at = 0; at < text.size() && !out.is_whole && !out.is_broken; at += piece) {
    out.size += scan.read(text.substr(at, piece));
    out.is_whole = scan.is_whole();
    out.is_broken = scan.is_broken();
  }
  return out;
}

void expect_read(std::string_view text, const Read& expected) {
  for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, text.size()})
    EXPECT_EQ(read_pieces(text, piece), expected) << text.substr(0, 80) << " in pieces of " << piece;
}

std::string repeat(std::string_view text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(JsonScan, EndsWithTheLastByteOfTheValue) {
  for (const std::string value :
       {R"({})", R"([])", R"({"a":1})", R"( {"a" : [1, -2.5e3, true, null, "x\"}]"]} )",
        R"("é\u00e9\ud83d\ude00")", R"([[{"a":{}}],[]])", "true"}) {
    const size_t end = value.find_last_not_of(' ') + 1;
    for (const std::string_view rest : {"", "}", "<x", ",1"})
      expect_read(value.substr(0, end) + std::string(rest),
                  {.size = end, .is_whole = true, .is_broken = false});
  }
}

TEST(JsonScan, ANumberIsWholeWhenTheByteAfterItIsThere) {
  expect_read("12", {.size = 2, .is_whole = false, .is_broken = false});
  expect_read("12<", {.size = 2, .is_whole = true, .is_broken = false});
}

TEST(JsonScan, StopsBeforeTheFirstByteThatCannotBeThere) {
  const struct {
    std::string text;
    size_t size;
  } cases[] = {{"{,", 1},          {"{\"a\"1", 4},         {"[1,]", 3},    {"{\"a\":1]", 6},
               {"[tru]", 4},       {"{\"a\":oops", 5},     {"[01", 2},     {"[\"a\nb\"", 3},
               {"[\"\\x", 3},      {"[\"\\u12g", 6},       {"[\"\xff", 2}, {"x", 0},
               {"[\"\xc3\x28", 3}, {"{\"a\":1,\"b\"}", 10}};
  for (const auto& one : cases)
    expect_read(one.text, {.size = one.size, .is_whole = false, .is_broken = true});
}

TEST(JsonScan, NestingBeyondTheLimitIsBrokenAtItsFirstByteHoweverMuchFollows) {
  const std::string allowed = repeat("[", kScanDepth) + repeat("]", kScanDepth);
  expect_read(allowed, {.size = allowed.size(), .is_whole = true, .is_broken = false});
  expect_read(repeat("[", 1'000'000), {.size = kScanDepth, .is_whole = false, .is_broken = true});
  expect_read(repeat("{\"a\":", 100'000), {.size = kScanDepth * 5, .is_whole = false, .is_broken = true});
}

TEST(JsonScan, LongStringsAndManyValuesAreWhole) {
  for (const std::string& value :
       {"[\"" + repeat("a\\n", 300'000) + "\"]", "[" + repeat("[],", 300'000) + "0]",
        "{\"" + repeat("k", 300'000) + "\":" + repeat(" ", 300'000) + repeat("1", 300) + "}"})
    expect_read(value, {.size = value.size(), .is_whole = true, .is_broken = false});
}

// JsonScan finds a whole value in a random text exactly if another parser accepts that part as JSON.
TEST(JsonScan, AgreesWithAnotherParserAboutRandomTexts) {
  const uint32_t seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> words = {"{",     "}",       "[",  "]",       ":",   ",",
                                          "\"a\"", "\"\\n\"", "1",  "-0.5",    "2e1", "true",
                                          "null",  " ",       "\"", "\\u0041", "\\",  "é"};
  int num_whole = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string text = random() % 2 == 0 ? "{" : "[";
    for (size_t j = random() % 8; j > 0; --j) text += words[random() % words.size()];
    text += text[0] == '{' ? "}" : "]";
    const Read whole = read_pieces(text, text.size());
    EXPECT_EQ(read_pieces(text, 1), whole) << text;
    num_whole += whole.is_whole ? 1 : 0;
    EXPECT_EQ(nlohmann::json::accept(text.substr(0, whole.size)), whole.is_whole) << text;
  }
  EXPECT_GT(num_whole, 100);
}

}  // namespace
}  // namespace hadal
