// Checks what the parser of tool calls makes of a text, for its fuzzers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <boost/json/parse.hpp>

#include "base/check.h"
#include "cut_text.h"
#include "text/tool_call_parser.h"

namespace hadal::fuzz {

struct Parsed {
  std::string content;
  std::vector<ToolCallDelta> calls;
  std::vector<std::string> unknown;
};

inline Parsed parse(ToolCallParser::Options options, const Pieces& pieces) {
  int minted = 0;
  options.make_id = [&] { return std::to_string(minted++); };
  ToolCallParser parser(options);
  Parsed out;
  const auto take = [&](const ToolCallParser::Piece& piece) {
    out.content += piece.content;
    out.calls.insert(out.calls.end(), piece.calls.begin(), piece.calls.end());
  };
  for (const std::string_view piece : pieces) take(parser.append(piece));
  take(parser.finish());
  out.unknown = parser.unknown_names();
  HADAL_CHECK(parser.num_calls() == minted);
  return out;
}

inline bool same(const Parsed& a, const Parsed& b) {
  if (a.content != b.content || a.unknown != b.unknown || a.calls.size() != b.calls.size()) return false;
  for (size_t i = 0; i < a.calls.size(); ++i) {
    const ToolCallDelta& x = a.calls[i];
    const ToolCallDelta& y = b.calls[i];
    if (x.index != y.index || x.id != y.id || x.name != y.name || x.arguments != y.arguments) return false;
  }
  return true;
}

// However the text is cut, the result is the same; arguments are JSON objects, and a text without a
// well-formed call is unchanged content. The options offer the functions f and get_weather.
inline void check_tool_calls(const ToolCallParser::Options& options, const CutText& input) {
  const Parsed whole = parse(options, {input.text()});
  HADAL_CHECK(same(parse(options, input.pieces()), whole));
  HADAL_CHECK(same(parse(options, input.bytes()), whole));

  if (whole.calls.empty() && whole.unknown.empty()) HADAL_CHECK(whole.content == input.text());
  HADAL_CHECK(options.parallel || whole.calls.size() <= 1);
  int index = 0;
  for (const ToolCallDelta& call : whole.calls) {
    HADAL_CHECK(call.index == index++);
    const bool known = call.name == "f" || call.name == "get_weather";
    HADAL_CHECK(!call.name.empty() && (known || options.forward_unknown));
    boost::json::parse_options deep;
    deep.max_depth = 128;
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(call.arguments, error, {}, deep);
    HADAL_CHECK(!error && value.is_object(), "{}", call.arguments);
  }
}

}  // namespace hadal::fuzz
