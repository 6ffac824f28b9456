#include "text/grammar/grammar_schema_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include <boost/json.hpp>

#include "text/json_error.h"

namespace hadal {

namespace {

namespace json = boost::json;

struct Bound {
  std::string_view keyword;
  bool is_exclusive;
};

constexpr std::array<Bound, 2> kLeast = {{{"minimum", false}, {"exclusiveMinimum", true}}};
constexpr std::array<Bound, 2> kMost = {{{"maximum", false}, {"exclusiveMaximum", true}}};

bool may_be(const json::object& schema, std::string_view type) {
  const json::value* types = schema.if_contains("type");
  if (types == nullptr) return false;
  const auto is_it = [&](const json::value& value) { return value.get_string() == type; };
  return types->is_string() ? is_it(*types)
                            : std::any_of(types->get_array().begin(), types->get_array().end(), is_it);
}

bool is_whole(double number) {
  return number == std::floor(number);
}

// Finds a lower bound above an upper bound, because such bounds allow no value.
std::optional<NumberFault> crossed(const json::object& schema, bool is_integer) {
  for (const Bound& least : kLeast) {
    for (const Bound& most : kMost) {
      const json::value* low = schema.if_contains(least.keyword);
      const json::value* high = schema.if_contains(most.keyword);
      if (low == nullptr || high == nullptr) continue;
      const double room = high->to_number<double>() - low->to_number<double>();
      const int num_exclusive = int{least.is_exclusive} + int{most.is_exclusive};
      const bool is_empty = is_integer ? room < num_exclusive : room < 0 || (num_exclusive > 0 && room == 0);
      if (is_empty) {
        return NumberFault{least.keyword,
                           fmt::format("no {} lies between it and \"{}\", which is {}",
                                       is_integer ? "integer" : "number", most.keyword, shown(*high))};
      }
    }
  }
  return std::nullopt;
}

std::optional<NumberFault> fractional(const json::object& schema) {
  for (const auto& bounds : {kLeast, kMost}) {
    for (const Bound& bound : bounds) {
      const json::value* value = schema.if_contains(bound.keyword);
      if (value != nullptr && !is_whole(value->to_number<double>()))
        return NumberFault{bound.keyword, "it must be an integer beside the type \"integer\""};
    }
  }
  return std::nullopt;
}

// Returns the narrowest of `bounds` as the integer that is itself still allowed; nothing if there is no
// bound.
template <typename Narrower>
std::optional<int64_t> integer_bound(const json::object& schema, const std::array<Bound, 2>& bounds, int step,
                                     Narrower narrower) {
  std::optional<int64_t> out;
  for (const Bound& bound : bounds) {
    const json::value* value = schema.if_contains(bound.keyword);
    if (value == nullptr) continue;
    const int64_t number = static_cast<int64_t>(value->to_number<double>()) + (bound.is_exclusive ? step : 0);
    out = out ? narrower(*out, number) : number;
  }
  return out;
}

std::optional<NumberFault> multiple_fault(const json::object& schema) {
  const json::value* multiple = schema.if_contains("multipleOf");
  if (multiple == nullptr) return std::nullopt;
  const auto fault = [](std::string why) { return NumberFault{"multipleOf", std::move(why)}; };
  if (may_be(schema, "number"))
    return fault("it is enforced for the type \"integer\" only, not for \"number\"");
  const auto number = multiple->to_number<double>();
  if (!is_whole(number) || number < 1 || number > kMaxMultipleOf)
    return fault(fmt::format("it must be an integer of 1 to {}", kMaxMultipleOf));
  const auto low = integer_bound(schema, kLeast, 1, [](int64_t a, int64_t b) { return std::max(a, b); });
  const auto high = integer_bound(schema, kMost, -1, [](int64_t a, int64_t b) { return std::min(a, b); });
  if (!low && !high) return std::nullopt;
  if (!low || !high) return fault("beside it there must be both a least and a largest value, or neither");
  if (*high - *low >= kMaxIntegersOfMultiple) {
    return fault(fmt::format("it is enforced for at most {} integers, and from {} to {} there are {}",
                             kMaxIntegersOfMultiple, *low, *high, *high - *low + 1));
  }
  const auto step = static_cast<int64_t>(number);
  const int64_t remainder = (*low % step + step) % step;
  const int64_t first = *low + (remainder == 0 ? 0 : step - remainder);
  if (first > *high) return fault(fmt::format("it has no multiple from {} to {}", *low, *high));
  return std::nullopt;
}

}  // namespace

std::optional<NumberFault> number_fault(const json::object& schema) {
  const bool is_integer = may_be(schema, "integer");
  if (is_integer) {
    if (auto fault = fractional(schema)) return fault;
  }
  if (auto fault = crossed(schema, is_integer && !may_be(schema, "number"))) return fault;
  return multiple_fault(schema);
}

}  // namespace hadal
