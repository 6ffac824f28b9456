// Tests how clients' JSON is read, with types and bounds, and how JSON is written.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <boost/json.hpp>

#include "base/printable.h"
#include "server/json/json_fields.h"
#include "server/json/json_writer.h"

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

TEST(FieldReader, UnknownNamesAreErrorsWithTheirValueThatSuggestTheNearest) {
  const auto error = [](const std::string& text) {
    const json::value value = json::parse(text);
    FieldReader reader(value.as_object(), "sampling_params.");
    reader.only({"temperature", "top_p"});
    EXPECT_FALSE(reader.ok());
    return reader.status().message;
  };
  EXPECT_EQ(error(R"({"temprature": 0.5})"),
            "sampling_params.temprature is 0.5; there is no such field; the nearest one is temperature");
  EXPECT_EQ(error(R"({"top_p": 1, "best_of": [1, "a"]})"),
            R"(sampling_params.best_of is [1,"a"]; there is no such field; allowed are temperature, top_p)");
  const std::string cut(kShownChars, 'x');
  const std::string text(1000, 'x');
  EXPECT_EQ(error("{\"" + text + "\": \"" + text + "\"}"),
            "sampling_params." + cut + "… is \"" + cut +
                "…\"; there is no such field; allowed are temperature, top_p");
}

TEST(FieldReader, NumbersMustBeInRangeAsFloat32Too) {
  const json::value value = json::parse(
      R"({"huge": 1e308, "none": 1e400, "least": -1e400, "tiny": 1e-45, "bound": 1e30, "over": 2e30})");
  const auto read = [&](const char* name, double min, double max, float& out) {
    FieldReader reader(value.as_object());
    reader.number(name, out, min, max);
    return reader.ok() ? std::string() : reader.status().message;
  };
  float out = 5.0F;
  EXPECT_EQ(read("huge", 0, 1e30, out), "huge is 1e+308; must be a number in [0, 1e+30]");
  EXPECT_EQ(read("none", 0, 1e30, out), "none is a number above 1.8e308; must be a number in [0, 1e+30]");
  EXPECT_EQ(read("least", 0, 1, out), "least is a number below -1.8e308; must be a number in [0, 1]");
  EXPECT_EQ(read("tiny", 1e-30, 2, out), "tiny is 1e-45; must be a number in [1e-30, 2]");
  EXPECT_EQ(read("over", 0, 1e30, out), "over is 2e+30; must be a number in [0, 1e+30]");
  EXPECT_EQ(out, 5.0F);
  EXPECT_EQ(read("bound", 0, 1e30, out), "");
  EXPECT_EQ(out, 1e30F);
}

TEST(FieldReader, ChoicesAreListedAndTheNearestIsNamed) {
  const json::value value =
      json::parse(R"({"near": "txt", "far": "quite another", "number": 5, "good": "json"})");
  const auto read = [&](const char* name) {
    FieldReader reader(value.as_object());
    std::string out;
    reader.choice(name, out, {"", "text", "json"});
    return reader.ok() ? out : reader.status().message;
  };
  EXPECT_EQ(read("near"), R"(near is "txt"; must be text or json; the nearest one is text)");
  EXPECT_EQ(read("far"), R"(far is "quite another"; must be text or json)");
  EXPECT_EQ(read("number"), "number is 5; must be text or json");
  EXPECT_EQ(read("good"), "json");
}

TEST(FieldReader, TextsNameTheEntryThatIsWrong) {
  const json::value value =
      json::parse(R"({"a": 5, "b": ["x", 7], "c": ["x", "longer"], "d": ["x", "y", "z"]})");
  const auto read = [&](const char* name) {
    FieldReader reader(value.as_object());
    std::vector<std::string> out;
    reader.texts(name, out, 2, 4);
    return reader.ok() ? std::string() : reader.status().message;
  };
  EXPECT_EQ(read("a"), "a is 5; must be a string of at most 4 bytes, or a list of at most 2 such strings");
  EXPECT_EQ(read("b"), "b[1] is 7; must be a string of at most 4 bytes");
  EXPECT_EQ(read("c"), "c[1]: has 6 bytes; must be a string of at most 4 bytes");
  EXPECT_EQ(
      read("d"),
      R"(d is ["x","y","z"]; must be a string of at most 4 bytes, or a list of at most 2 such strings)");
}

TEST(ParseJsonObject, TellsInvalidUtf8FromBadSyntax) {
  const auto error = [](const std::string& body) {
    const auto parsed = parse_json_object(body);
    return parsed.ok() ? std::string() : parsed.status().message;
  };
  EXPECT_EQ(error("{\"text\":\"a\xff\"}"),
            "the body is invalid UTF-8 at byte 10 (0xff); must be a JSON object in UTF-8");
  EXPECT_EQ(error("{\"\xc3(\":1}"),
            "the body is invalid UTF-8 at byte 2 (0xc3); must be a JSON object in UTF-8");
  EXPECT_TRUE(error("\xff\xfe{").starts_with("the body is invalid UTF-8 at byte 0"));
  EXPECT_TRUE(error("{\"a\":\"\xed\xa0\x80\"}").starts_with("the body is invalid UTF-8 at byte 6 (0xed)"));
  EXPECT_TRUE(error("{\"ä\":1,}").starts_with("the body is not JSON: ")) << "its UTF-8 is right";
  EXPECT_TRUE(error("{,\"\xff\"}").starts_with("the body is not JSON: ")) << "the syntax is wrong before";
  EXPECT_EQ(error("{\"ä\":\"漢\"}"), "");
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

TEST(ParseJsonObject, AcceptsObjectsOf4096MembersAndNotMore) {
  std::string body = "{\"text\":\"a\"";
  for (int i = 1; i < 4096; ++i) body += ",\"k" + std::to_string(i) + "\":1";
  const auto most = parse_json_object(body + "}");
  ASSERT_TRUE(most.ok()) << most.status().message;
  EXPECT_EQ(most->size(), 4096U);
  const auto more = parse_json_object(body + ",\"k\":1}");
  ASSERT_FALSE(more.ok());
  EXPECT_EQ(more.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(more.status().message,
            "the body has an object of more than 4096 members, at byte 0; at most 4096 are allowed");
}

}  // namespace
}  // namespace hadal::server
