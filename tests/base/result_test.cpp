#include "base/result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace hadal {
namespace {

using ::testing::HasSubstr;

Result<int> parse_digit(char c) {
  if (c < '0' || c > '9') return invalid_argument("digit: '{}'; allowed are 0 to 9", c);
  return c - '0';
}

Result<int> sum_of_digits(const std::string& text) {
  int sum = 0;
  for (const char c : text) {
    HADAL_ASSIGN_OR_RETURN(const int digit, parse_digit(c));
    sum += digit;
  }
  return sum;
}

Result<void> require_digit(char c) {
  HADAL_RETURN_IF_ERROR([&]() -> Result<void> {
    const auto parsed = parse_digit(c);
    if (!parsed.ok()) return parsed.status();
    return {};
  }());
  return {};
}

TEST(Result, HoldsAValueOrAStatus) {
  const auto good = parse_digit('7');
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(static_cast<bool>(good));
  EXPECT_EQ(*good, 7);
  const auto bad = parse_digit('x');
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code, StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.status().message, "digit: 'x'; allowed are 0 to 9");
}

TEST(Result, AssignOrReturnPassesTheFirstErrorOn) {
  EXPECT_EQ(*sum_of_digits("1234"), 10);
  const auto bad = sum_of_digits("12?4!");
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.status().message, HasSubstr("'?'"));
}

TEST(Result, ReturnIfErrorPassesTheErrorOn) {
  EXPECT_TRUE(require_digit('3').ok());
  const auto bad = require_digit('-');
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().code, StatusCode::kInvalidArgument);
}

TEST(Result, ValueOfAFailureThrowsWithItsMessage) {
  auto bad = parse_digit('x');
  try {
    (void)bad.value();
    FAIL() << "value() of a failed Result returned";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("digit: 'x'"));
  }
}

TEST(Result, CarriesMoveOnlyValues) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  const std::unique_ptr<int> taken = std::move(made).value();
  EXPECT_EQ(*taken, 5);
}

TEST(StatusCode, EveryCodeHasAName) {
  for (const auto code : {StatusCode::kInvalidArgument, StatusCode::kNotFound, StatusCode::kUnsupported,
                          StatusCode::kResourceExhausted, StatusCode::kDataLoss, StatusCode::kCancelled,
                          StatusCode::kInternal}) {
    EXPECT_STRNE(to_string(code), "unknown");
  }
}

TEST(Check, PassesAndEvaluatesItsOperandsOnce) {
  int calls = 0;
  HADAL_CHECK_EQ(++calls, 1);
  HADAL_CHECK(++calls == 2, "calls = {}", calls);
  HADAL_CHECK_LE(calls, 2);
  EXPECT_EQ(calls, 2);
}

TEST(Check, FailureCarriesExpressionValuesAndLocation) {
  const int rows = 3;
  try {
    HADAL_CHECK_EQ(rows, 4);
    FAIL() << "a failed check returned";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rows == 4"));
    EXPECT_THAT(error.what(), HasSubstr("3 vs 4"));
    EXPECT_THAT(error.what(), HasSubstr("result_test.cpp:"));
  }
  EXPECT_THROW(HADAL_CHECK_NE(rows, 3), Error);
  EXPECT_THROW(HADAL_CHECK_LT(rows, 3), Error);
  EXPECT_THROW(HADAL_CHECK_LE(rows, 2), Error);
  EXPECT_THROW(HADAL_CHECK_GT(rows, 3), Error);
  EXPECT_THROW(HADAL_CHECK_GE(rows, 4), Error);
}

TEST(Check, FailureCarriesTheFormattedMessage) {
  try {
    HADAL_CHECK(false, "layer {} of {}", 3, 4);
    FAIL() << "a failed check returned";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer 3 of 4"));
  }
  EXPECT_THROW(HADAL_CHECK(false), Error);
}

}  // namespace
}  // namespace hadal
