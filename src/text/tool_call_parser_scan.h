// Reads one tool call as its text arrives. It is internal to the tool call parser.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include <boost/json/stream_parser.hpp>

#include "text/chat_markers.h"
#include "text/tool_call_parser.h"

namespace hadal::tool_call {

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

// Limits a type or name in bytes: function names have at most 64 characters, so holding back more than this
// would be useless.
inline constexpr size_t kMaxHead = 256;
inline constexpr size_t kMaxDepth = 128;  // of arguments

boost::json::parse_options json_options(size_t max_depth);

// Moves `at` past white space; returns false if it reaches the end of the window.
bool skip_spaces(std::string_view window, size_t& at);

// These texts surround calls. Only call_begin must be there; a CallScan reads what follows it.
struct CallMarkers {
  std::string_view calls_begin;
  std::string_view calls_end;
  std::string_view call_begin;
};
CallMarkers call_markers(ToolCallFormat format);

// CallScan reads the text after a format's call_begin. The verdict does not depend on how the text was cut
// into pieces.
class CallScan {
 public:
  virtual ~CallScan() = default;

  // `window` is all the text since call_begin: that of earlier calls, and more. It must not be called after
  // kCall or kMalformed.
  virtual Verdict advance(std::string_view window) = 0;

  // After kCall these return what stands in the same window, and the length of the whole call.
  virtual std::string_view name(std::string_view window) const = 0;
  virtual std::string arguments(std::string_view window) const = 0;
  virtual size_t size() const = 0;

  // After kMalformed, or at the end of a text that is not a call yet, returns how much of the window is
  // content without being read again.
  virtual size_t resume(std::string_view window) const = 0;
};

// `format` is not kNone.
std::unique_ptr<CallScan> make_call_scan(ToolCallFormat format);

// Reads the older formats. V3 writes type sep NAME ```json {…} ``` end; V3.1 writes NAME sep {…} end; white
// space may surround the name and the object.
class JsonCallScan final : public CallScan {
 public:
  explicit JsonCallScan(bool fenced);

  Verdict advance(std::string_view window) override;
  std::string_view name(std::string_view window) const override {
    return window.substr(name_begin_, name_size_);
  }
  std::string arguments(std::string_view window) const override {
    return std::string(window.substr(arguments_begin_, arguments_end_ - arguments_begin_));
  }
  size_t size() const override { return at_; }
  size_t resume(std::string_view /*window*/) const override { return 0; }

 private:
  enum class Stage { kType, kName, kOpen, kObject, kFenceEnd, kEnd };

  Verdict head(std::string_view window, std::string_view terminator, Stage next);
  Verdict literal(std::string_view window, std::string_view text, Stage next);
  Verdict object(std::string_view window);

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
