#include "text/json_spelling.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace hadal {
namespace {

// The right side is what Python 3.12 prints for json.dumps(json.loads(text), ensure_ascii=False).
TEST(JsonSpelling, IsThatOfPython) {
  const std::pair<std::string, std::string> cases[] = {
      {"1", "1"},
      {"-0", "0"},
      {"-0.0", "-0.0"},
      {"1.0", "1.0"},
      {"2.50", "2.5"},
      {"1E5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345678.5", "1.2345678901234568e+17"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.5e-7", "1.5e-07"},
      {"5e-324", "5e-324"},
      {"1.7976931348623157e308", "1.7976931348623157e+308"},
      {"0.1", "0.1"},
      {"-9223372036854775809", "-9223372036854775809"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {"  [ ]", "[]"},
      {"{ }", "{}"},
      {"[1,[2,{\"a\" :null}],true,false]", "[1, [2, {\"a\": null}], true, false]"},
      {R"({"b":1,"a":2,"b":{"c":[]}})", R"({"b": {"c": []}, "a": 2})"},
      {R"("\u00e9\ud83c\udf0a\/\u2028\u007f")", "\"é🌊/\u2028\x7f\""},
      {R"("\u0000\b\f\n\r\t\u001f\"\\")", R"("\u0000\b\f\n\r\t\u001f\"\\")"},
  };
  for (const auto& [text, expected] : cases) {
    const auto spelled = spell_json(text, "x");
    ASSERT_TRUE(spelled.ok()) << text;
    EXPECT_EQ(*spelled, expected);
  }
}

TEST(JsonSpelling, MembersOfAnObjectKeepStringsAsTheyAre) {
  const auto members = read_json_members(R"({"a":"x\n","b":[1,"y"],"a":3,"":"","c":{"d":"e"}})", "x");
  ASSERT_TRUE(members.ok());
  ASSERT_EQ(members->size(), 4U);
  const JsonMember expected[] = {
      {"a", "3", false}, {"b", "[1, \"y\"]", false}, {"", "", true}, {"c", "{\"d\": \"e\"}", false}};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ((*members)[i].key, expected[i].key);
    EXPECT_EQ((*members)[i].text, expected[i].text);
    EXPECT_EQ((*members)[i].is_string, expected[i].is_string);
  }
}

TEST(JsonSpelling, EqualKeysInNestedObjectsKeepTheFirstPlaceAndTheLastValue) {
  const std::string inner = R"({"x":[1],"y":"a","x":{"z":1,"z":2}})";
  EXPECT_EQ(spell_json("[" + inner + "," + inner + "]", "x").value(),
            R"([{"x": {"z": 2}, "y": "a"}, {"x": {"z": 2}, "y": "a"}])");
  const auto members = read_json_members(R"({"k":1,"m":)" + inner + R"(,"k":"v\\"})", "x");
  ASSERT_TRUE(members.ok());
  ASSERT_EQ(members->size(), 2U);
  EXPECT_EQ((*members)[0].text, "v\\");
  EXPECT_TRUE((*members)[0].is_string);
  EXPECT_EQ((*members)[1].text, R"({"x": {"z": 2}, "y": "a"})");
}

TEST(JsonSpelling, TextsThatAreTooLongEndOrAreRefused) {
  std::string zeros = "[0";
  for (int i = 0; i < 400'000; ++i) zeros += ",0";
  zeros += "]";
  const std::string cut = spell_json(zeros, "x", 1000).value();
  EXPECT_GT(cut.size(), 1000U);
  EXPECT_LT(cut.size(), 1100U);
  EXPECT_EQ(spell_json(zeros, "x").value().size(), 3U * 400'001);
  const std::string long_member =
      R"({"a":)" + zeros + R"(,"b":")" + std::string(kMaxMembersBytes, 'c') + "\"}";
  EXPECT_EQ(read_json_members(long_member, "messages[0]").status().message,
            "messages[0] has " + std::to_string(long_member.size()) + " bytes; at most 1048576 are allowed");
}

TEST(JsonSpelling, ErrorsNameTheText) {
  for (const std::string text : {"", "{", "[1,]", "NaN", "1e999", "\"\xff\"", R"("\ud800")", "1 2"}) {
    const auto spelled = spell_json(text, "tools[1].function");
    ASSERT_FALSE(spelled.ok()) << text;
    EXPECT_EQ(spelled.status().message, "tools[1].function is not valid JSON");
  }
  for (const char* text : {"1", "[{}]", "\"a\"", "null"})
    EXPECT_EQ(read_json_members(text, "x").status().message, "x is not a JSON object");
  const std::string deepest = std::string(128, '[') + std::string(128, ']');
  EXPECT_EQ(spell_json(deepest, "x").value(), deepest);
  EXPECT_EQ(spell_json("[" + deepest + "]", "x").status().message,
            "x is nested 129 levels deep; at most 128 are allowed");
}

}  // namespace
}  // namespace hadal
