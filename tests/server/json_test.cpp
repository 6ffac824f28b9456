// Tests how clients' JSON is read, with types and bounds, and how JSON is written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include <boost/json.hpp>

#include "server/json_fields.h"
#include "server/json_writer.h"

namespace hadal::server {
namespace {

namespace json = boost::json;

TEST(JsonWriter, StringsReadBackTheSame) {
  std::string all;
  for (int c = 0; c < 128; ++c) all += static_cast<char>(c);
  all += "äöü 漢字 🙂";
  std::string out;
  append_json_string(out, all);
  EXPECT_EQ(json::parse(out).as_string(), all);
  out.clear();
  append_json_string(out, "");
  EXPECT_EQ(out, "\"\"");
}

TEST(JsonWriter, NumbersReadBackTheSameAndNeverBreakJson) {
  for (const float value : {0.0F, -0.1F, 1e-30F, 3.4e38F, 5.0F, 1.0F / 3.0F}) {
    std::string out;
    append_json_number(out, value);
    EXPECT_EQ(static_cast<float>(json::parse(out).to_number<double>()), value) << out;
    EXPECT_TRUE(json::parse(out).is_double()) << out;
  }
  for (const double value : {std::nan(""), std::numeric_limits<double>::infinity(), -HUGE_VAL}) {
    std::string out;
    append_json_number(out, value);
    EXPECT_EQ(out, "null");
  }
  std::string out;
  append_json_number(out, std::numeric_limits<int64_t>::min());
  EXPECT_EQ(out, "-9223372036854775808");
}

TEST(FieldReader, KeepsTheFirstErrorAndLeavesTargetsAlone) {
  const json::value value = json::parse(R"({"a": 5, "b": "x", "c": null, "d": 16.0, "e": 99})");
  FieldReader reader(value.as_object(), "body.");
  int64_t a = 0;
  int64_t c = 7;
  int64_t d = 0;
  reader.integer("a", a, 0, 10);
  reader.integer("c", c, 0, 10);
  reader.integer("d", d, 0, 16);
  EXPECT_TRUE(reader.ok());
  EXPECT_EQ(a, 5);
  EXPECT_EQ(c, 7);  // null is absent
  EXPECT_EQ(d, 16);
  reader.integer("e", a, 0, 10);
  reader.integer("b", a, 0, 10);
  EXPECT_EQ(a, 5);
  EXPECT_EQ(reader.failed_field(), "body.e");
  EXPECT_EQ(reader.status().message, "body.e is 99; must be an integer in [0, 10]");
}

TEST(FieldReader, UnknownNamesAreErrorsThatSuggestTheNearest) {
  const json::value value = json::parse(R"({"temprature": 5})");
  FieldReader reader(value.as_object());
  reader.only({"temperature", "top_p"});
  EXPECT_EQ(reader.status().message, "temprature: unknown field; the nearest one is temperature");
}

TEST(ParseJsonObject, ShortensLongValuesInErrors) {
  const auto parsed = parse_json_object("\"" + std::string(5000, 'x') + "\"");
  ASSERT_FALSE(parsed.ok());
  EXPECT_LT(parsed.status().message.size(), 200U);
}

TEST(ParseJsonObject, AcceptsAHundredLevelsAndNotMore) {
  const auto nested = [](int depth) {
    return "{\"a\":" + std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']') + "}";
  };
  EXPECT_TRUE(parse_json_object(nested(99)).ok());
  EXPECT_FALSE(parse_json_object(nested(101)).ok());
  EXPECT_FALSE(parse_json_object(nested(100000)).ok());
}

}  // namespace
}  // namespace hadal::server
