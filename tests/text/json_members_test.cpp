// Tests which objects of a JSON text have too many members, and that no string or broken text hides them.
#include "text/json_members.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "base/cancel.h"
#include "text/json_error.h"

namespace hadal {
namespace {

constexpr size_t kTextDepth = 100;
constexpr std::string_view kTooManySquares =
    "the body has too many large objects: the squares of their numbers of members add up to more than "
    "268435456, the most that is allowed";

std::string error(std::string_view text, size_t max_depth = kTextDepth) {
  const Result<void> checked = check_json_members(text, "the body", max_depth);
  return checked.ok() ? std::string() : checked.status().message;
}

std::string too_many_at(size_t byte) {
  return "the body has an object of more than 4096 members, at byte " + std::to_string(byte) +
         "; at most 4096 are allowed";
}

// Returns `count` members with different keys and the same value.
std::string members(size_t count, std::string_view value = "1") {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) text += ',';
    text += '"' + std::to_string(i) + "\":";
    text += value;
  }
  return text;
}

std::string object(size_t count, std::string_view value = "1") {
  return "{" + members(count, value) + "}";
}

// Returns a list of `count` equal values.
std::string list(size_t count, const std::string& value) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i > 0 ? "," : "") + value;
  return text + "]";
}

TEST(JsonMembers, AnObjectHas4096MembersAtMost) {
  EXPECT_EQ(error("{}"), "");
  EXPECT_EQ(error(object(4096)), "");
  EXPECT_EQ(error(object(4097)), too_many_at(0));
  EXPECT_EQ(error(" \n" + object(4097)), too_many_at(2));
  EXPECT_EQ(error("{" + members(4097)), too_many_at(0)) << "the object need not be complete";
}

TEST(JsonMembers, ARepeatedKeyCountsEachTime) {
  std::string text = "{\"a\":1";
  for (int i = 0; i < 4095; ++i) text += ",\"a\":1";
  EXPECT_EQ(error(text + "}"), "");
  EXPECT_EQ(error(text + ",\"a\":1}"), too_many_at(0));
}

TEST(JsonMembers, TheSquaresOfAllObjectsHaveALimit) {
  EXPECT_EQ(error(list(16, object(4096))), "");
  EXPECT_EQ(error(list(16, object(4096)).insert(1, "{},")), "") << "an empty object adds nothing";
  EXPECT_EQ(error(list(16, object(4096)).insert(1, "{\"a\":1},")), kTooManySquares);
  EXPECT_EQ(error(list(300, object(4000))), kTooManySquares);
  EXPECT_EQ(error(list(64 * 1024, object(16))), "") << "a million members in small objects";
}

TEST(JsonMembers, EveryLevelIsCountedForItself) {
  EXPECT_EQ(error(object(4096, R"({"a":{"b":[1,2,{"c":1}]},"d":[]})")), "");
  EXPECT_EQ(error(R"({"a":[[1,2],{"b":)" + object(4097) + "}]}"), too_many_at(17));
  // The members before and after an inner object belong to the same outer object.
  EXPECT_EQ(error("{" + members(2000) + ",\"in\":" + object(4096) + "," + members(2095) + "}"), "");
  EXPECT_EQ(error("{" + members(2000) + ",\"in\":" + object(4096) + "," + members(2096) + "}"),
            too_many_at(0));
}

TEST(JsonMembers, StringsAndTheirEscapesAreNotCounted) {
  const std::string colons = "\"" + list(5000, R"({\"a\":1,\"b\":2})") + "\"";
  EXPECT_EQ(error("{\"text\":" + colons + "," + colons + ":1}"), "");
  // Each string ends where it should: otherwise the members after it would be hidden.
  for (const std::string_view text :
       {R"("")", R"("\"")", R"("\\")", R"("\\\"{")", R"("}")", R"("]")", R"("\u0022")", R"("seven b")",
        R"("eight by")", R"("fifteen bytes \\")", R"("\"\"\"\"\"\"\"\"")"}) {
    const std::string head =
        "[" + std::string(text) + ",{" + std::string(text) + ":" + std::string(text) + ",";
    EXPECT_EQ(error(head + members(4095) + "}]"), "") << text;
    EXPECT_EQ(error(head + members(4096) + "}]"), too_many_at(text.size() + 2)) << text;
  }
}

// The text is read in pieces of 64 KiB.
TEST(JsonMembers, AnEscapeBetweenTwoPiecesIsRead) {
  for (size_t size = (64 << 10) - 12; size < (64 << 10) + 4; ++size) {
    const std::string head = "[\"" + std::string(size, 'x') + R"(\\\"{",)";
    EXPECT_EQ(error(head + object(4096) + "]"), "") << size;
    EXPECT_EQ(error(head + object(4097) + "]"), too_many_at(head.size())) << size;
  }
}

TEST(JsonMembers, WhatNoParserReadsIsNotChecked) {
  const std::string large = object(4097);
  for (const std::string_view before :
       {"1,", "]", "}", "[}", "{]", ":", "{}", "[] ", "{\"a\":1:", "[\"a\":1,", "\"a\":"}) {
    const std::string text = std::string(before) + large;
    EXPECT_EQ(error(text), "") << before;
    EXPECT_FALSE(parse_json_text(text, "x", kTextDepth).ok()) << before;
  }
  EXPECT_EQ(error(""), "");
  EXPECT_EQ(error("\"an unfinished string " + large), "")
      << "the object is in the string up to its first quote";
  EXPECT_EQ(error("\"ends with a backslash\\"), "");
}

TEST(JsonMembers, TheLastLevelThatIsAllowedIsStillChecked) {
  const std::string brackets(kTextDepth - 1, '[');
  EXPECT_EQ(error(brackets + object(4097)), too_many_at(kTextDepth - 1));
  EXPECT_EQ(error(brackets + "[" + object(4097)), "") << "a parser refuses its depth";
  EXPECT_EQ(error("{" + members(4097) + ",\"deep\":" + std::string(100'000, '[')), too_many_at(0));
}

TEST(JsonMembers, ACancelledCheckEnds) {
  const std::atomic<bool> flag = true;
  const CancelScope scope(flag);
  EXPECT_THROW(error("{}"), CancelledError);
}

TEST(JsonMembers, AFieldsJsonHasTheSameLimit) {
  EXPECT_TRUE(parse_json_text(object(4096), "json_schema", kTextDepth).ok());
  const auto parsed = parse_json_text(object(4097), "json_schema", kTextDepth);
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(
      parsed.status().message,
      "json_schema: its JSON has an object of more than 4096 members, at byte 0; at most 4096 are allowed");
}

}  // namespace
}  // namespace hadal
