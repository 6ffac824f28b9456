// Parses texts in pieces and joins the result as clients do, for the tests of the tool call parser.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include <boost/json/parse.hpp>

#include "text/chat/tool_call_parser.h"

namespace hadal::tool_calls {

struct Call {
  int index;
  std::string id;
  std::string name;
  std::string arguments;
  bool operator==(const Call&) const = default;
};
inline void PrintTo(const Call& call, std::ostream* out) {
  *out << call.index << " " << call.id << " " << call.name << " " << call.arguments;
}

struct Parsed {
  std::string content;
  std::vector<Call> calls;
  std::vector<std::string> unknown;
  bool is_whole = true;  // every call has a whole object of arguments
  bool operator==(const Parsed&) const = default;
};
inline void PrintTo(const Parsed& parsed, std::ostream* out) {
  *out << "content \"" << parsed.content << "\"" << (parsed.is_whole ? "" : ", broken");
  for (const Call& call : parsed.calls) PrintTo(call, &(*out << "\n  "));
}

inline bool are_objects(const std::vector<Call>& calls) {
  return std::all_of(calls.begin(), calls.end(), [](const Call& call) {
    boost::json::parse_options deep;
    deep.max_depth = 128;
    boost::system::error_code error;
    return boost::json::parse(call.arguments, error, {}, deep).is_object() && !error;
  });
}

// Parses `text` in pieces that end at `cuts`, which ascend; deltas are joined as a client joins them.
inline Parsed parse(ToolCallParser::Options options, std::string_view text, const std::vector<size_t>& cuts) {
  int minted = 0;
  options.make_id = [&] { return "call_" + std::to_string(minted++); };
  ToolCallParser parser(options);
  Parsed out;
  const auto take = [&](const ToolCallParser::Piece& piece) {
    out.content += piece.content;
    for (const ToolCallDelta& delta : piece.calls) {
      const bool is_first = static_cast<size_t>(delta.index) == out.calls.size();
      EXPECT_EQ(delta.name.empty(), !is_first) << "only a call's first delta has its name";
      EXPECT_EQ(delta.id.empty(), !is_first) << "only a call's first delta has its id";
      EXPECT_TRUE(is_first || !delta.arguments.empty()) << "no delta is empty";
      if (is_first) out.calls.push_back({.index = delta.index});
      Call& call = out.calls.at(static_cast<size_t>(delta.index));
      call.id += delta.id;
      call.name += delta.name;
      call.arguments += delta.arguments;
    }
  };
  size_t at = 0;
  for (const size_t cut : cuts) {
    take(parser.append(text.substr(at, cut - at)));
    at = cut;
  }
  take(parser.append(text.substr(at)));
  take(parser.finish());
  out.unknown = parser.unknown_names();
  out.is_whole = parser.calls_are_whole();
  EXPECT_EQ(out.is_whole, are_objects(out.calls));
  EXPECT_EQ(parser.num_calls(), static_cast<int>(out.calls.size()));
  EXPECT_EQ(parser.num_calls(), minted);
  return out;
}

}  // namespace hadal::tool_calls
