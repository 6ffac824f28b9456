// Reads one tool call as its text arrives. It is internal to the tool call parser.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "text/chat/chat_markers.h"
#include "text/chat/tool_call_parser.h"
#include "text/json_scan.h"

namespace hadal::tool_call {

inline constexpr std::string_view kFence = "```";
inline constexpr std::string_view kJsonFence = "```json";

inline constexpr std::string_view kSpaces = " \t\n\v\f\r";
inline bool is_space(char c) {
  return kSpaces.find(c) != std::string_view::npos;
}

// Says how the beginning of `text` compares with `marker`: it equals the whole marker, it equals the marker
// up to the end of `text`, or it differs.
enum class Match { kWhole, kPart, kNone };
inline Match match(std::string_view text, std::string_view marker) {
  if (text.starts_with(marker)) return Match::kWhole;
  return marker.starts_with(text) ? Match::kPart : Match::kNone;
}

enum class Verdict { kMore, kCall, kBroken };

// Limits a type or name in bytes: function names have at most 64 characters, so holding back more than this
// is never needed.
inline constexpr size_t kMaxHead = 256;
inline constexpr size_t kMaxDepth = 128;  // of arguments

// Moves `at` past white space; returns false if it reaches the end of the window.
bool skip_spaces(std::string_view window, size_t& at);

// These texts surround calls. Only call_begin is required; a CallScan reads the text after it.
struct CallMarkers {
  std::string_view calls_begin;
  std::string_view calls_end;
  std::string_view call_begin;
};
CallMarkers call_markers(ToolCallFormat format);

// CallScan reads the text after a format's call_begin. Its results do not depend on how the text was cut into
// pieces.
class CallScan {
 public:
  virtual ~CallScan() = default;

  // Reads on. `window` is all the text since call_begin, including the text that earlier calls of this
  // function received. The function must not be called after it has returned kCall or kBroken.
  virtual Verdict advance(std::string_view window) = 0;

  // Returns the function's name in the same window; it is empty until it is complete.
  std::string_view name(std::string_view window) const { return window.substr(name_begin_, name_size_); }
  // Returns the text of the arguments that was added since the last call of this function.
  std::string take_arguments() { return std::exchange(made_, {}); }
  // Tells whether the arguments so far are a whole JSON object.
  bool is_whole() const { return is_whole_; }
  // Returns how many bytes of the window belong to the call: its markers, its name, and the arguments so far.
  size_t size() const { return taken_; }
  // Returns where reading continues after kBroken, or at the end of a text with an incomplete call. The text
  // between size() and this place is content and is not read again.
  size_t resume() const { return std::max(resume_, taken_); }

 protected:
  size_t at_ = 0;      // bytes that have been read
  size_t taken_ = 0;   // how many of these bytes certainly belong to the call
  size_t resume_ = 0;  // where reading continues if the call breaks here
  size_t name_begin_ = 0;
  size_t name_size_ = 0;
  std::string made_;  // arguments that were not taken yet
  bool is_whole_ = false;
};

// `format` is not kNone.
std::unique_ptr<CallScan> make_call_scan(ToolCallFormat format);

// Reads the older formats. V3 writes type sep NAME ```json {…} ``` end; V3.1 writes NAME sep {…} end; white
// space may surround the name and the object.
class JsonCallScan final : public CallScan {
 public:
  explicit JsonCallScan(bool fenced);

  Verdict advance(std::string_view window) override;

 private:
  enum class Stage { kType, kName, kOpen, kObject, kFenceEnd, kEnd };

  Verdict head(std::string_view window, std::string_view terminator, Stage next);
  Verdict literal(std::string_view window, std::string_view text, Stage next);
  Verdict object(std::string_view window);

  bool fenced_;
  Stage stage_;
  size_t head_begin_ = 0;  // where the type or name that is being read begins
  std::optional<JsonScan> json_;
};

}  // namespace hadal::tool_call
