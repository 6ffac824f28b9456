// Reads one tool call as its text arrives. It is internal to the tool call parser.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include <boost/json/stream_parser.hpp>

#include "text/tool_call_parser.h"

namespace hadal::tool_call {

inline constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kSep = "<｜tool▁sep｜>";
inline constexpr std::string_view kFence = "```";
inline constexpr std::string_view kJsonFence = "```json";

inline constexpr std::string_view kSpaces = " \t\n\v\f\r";
inline bool is_space(char c) {
  return kSpaces.find(c) != std::string_view::npos;
}

// Says how the front of `text` compares with `marker`: completely equal, equal as far as the text goes, or
// different.
enum class Match { kWhole, kPart, kNone };
inline Match match(std::string_view text, std::string_view marker) {
  if (text.starts_with(marker)) return Match::kWhole;
  return marker.starts_with(text) ? Match::kPart : Match::kNone;
}

enum class Verdict { kMore, kCall, kMalformed };

// CallScan reads the text after kCallBegin. V3 writes type sep NAME ```json {…} ``` end; V3.1 writes NAME sep
// {…} end; white space may surround the name and the object. The verdict does not depend on how the text was
// cut into pieces.
class CallScan {
 public:
  explicit CallScan(ToolCallFormat format);

  // `window` is all the text since kCallBegin: that of earlier calls, and more. It must not be called after
  // kCall or kMalformed.
  Verdict advance(std::string_view window);

  // After kCall these return parts of the same window, and the length of the call including kCallEnd.
  std::string_view name(std::string_view window) const { return window.substr(name_begin_, name_size_); }
  std::string_view arguments(std::string_view window) const {
    return window.substr(arguments_begin_, arguments_end_ - arguments_begin_);
  }
  size_t size() const { return at_; }

 private:
  enum class Stage { kType, kName, kOpen, kObject, kFenceEnd, kEnd };

  Verdict head(std::string_view window, std::string_view terminator, Stage next);
  Verdict literal(std::string_view window, std::string_view text, Stage next);
  Verdict object(std::string_view window);
  bool skip_spaces(std::string_view window);

  bool fenced_;
  Stage stage_;
  size_t at_ = 0;          // how much has been read
  size_t head_begin_ = 0;  // where the type or name that is being read begins
  size_t name_begin_ = 0;
  size_t name_size_ = 0;
  size_t arguments_begin_ = 0;
  size_t arguments_end_ = 0;
  std::optional<boost::json::stream_parser> json_;
};

}  // namespace hadal::tool_call
