// Checks what the parser of tool calls makes of a text, for its fuzzers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <boost/json/parse.hpp>

#include "base/check.h"
#include "cut_text.h"
#include "text/chat/tool_call_parser.h"

namespace hadal::fuzz {

struct Parsed {
  std::string content;
  std::vector<ToolCallDelta> calls;
  std::vector<std::string> unknown;
  bool is_whole = true;
};

inline Parsed parse(ToolCallParser::Options options, const Pieces& pieces) {
  int minted = 0;
  options.make_id = [&] { return std::to_string(minted++); };
  ToolCallParser parser(options);
  Parsed out;
  const auto take = [&](const ToolCallParser::Piece& piece) {
    out.content += piece.content;
    for (const ToolCallDelta& delta : piece.calls) {
      const bool is_first = delta.index == std::ssize(out.calls);
      HADAL_CHECK(is_first != delta.name.empty() && is_first != delta.id.empty());
      if (is_first)
        out.calls.push_back(delta);
      else
        out.calls.at(static_cast<size_t>(delta.index)).arguments += delta.arguments;
    }
  };
  for (const std::string_view piece : pieces) take(parser.append(piece));
  take(parser.finish());
  out.unknown = parser.unknown_names();
  out.is_whole = parser.calls_are_whole();
  HADAL_CHECK(parser.num_calls() == minted);
  return out;
}

inline bool same(const Parsed& a, const Parsed& b) {
  if (a.content != b.content || a.unknown != b.unknown || a.is_whole != b.is_whole ||
      a.calls.size() != b.calls.size())
    return false;
  for (size_t i = 0; i < a.calls.size(); ++i) {
    const ToolCallDelta& x = a.calls[i];
    const ToolCallDelta& y = b.calls[i];
    if (x.index != y.index || x.id != y.id || x.name != y.name || x.arguments != y.arguments) return false;
  }
  return true;
}

// However the text is cut, the result is the same; arguments are JSON objects unless a call broke, and a text
// without a call's name is unchanged content. The options offer the functions f and get_weather.
inline void check_tool_calls(const ToolCallParser::Options& options, const CutText& input) {
  const Parsed whole = parse(options, {input.text()});
  HADAL_CHECK(same(parse(options, input.pieces()), whole));
  HADAL_CHECK(same(parse(options, input.bytes()), whole));

  if (whole.calls.empty() && whole.unknown.empty()) HADAL_CHECK(whole.content == input.text());
  HADAL_CHECK(options.parallel || whole.calls.size() <= 1);
  int index = 0;
  bool are_objects = true;
  for (const ToolCallDelta& call : whole.calls) {
    HADAL_CHECK(call.index == index++);
    const bool known = call.name == "f" || call.name == "get_weather";
    HADAL_CHECK(!call.name.empty() && (known || options.forward_unknown));
    boost::json::parse_options deep;
    deep.max_depth = 128;
    boost::system::error_code error;
    const boost::json::value value = boost::json::parse(call.arguments, error, {}, deep);
    are_objects = are_objects && !error && value.is_object();
  }
  HADAL_CHECK(are_objects == whole.is_whole);
}

}  // namespace hadal::fuzz
