// What a model wrote -> content and tool calls, in the formats of the DeepSeek family.
//
// Contract
// - The result depends on the text alone: pieces and deltas, joined, are the same however the text was cut.
// - A call is held back until it is complete and its arguments are a whole JSON object; then it is handed out
//   in one delta with index, id, name and arguments (the object's text as generated, without the white space
//   around it). What cannot begin a call streams at once, but for white space, which waits for what follows.
// - Whatever does not become a call is content exactly as generated, markers included: a call that is cut
//   off, nameless, or whose arguments are no JSON object (empty ones too). Calls after it still count.
//   A marker inside a string of the arguments is part of the string.
// - <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜> around calls are consumed with them. A call without them
//   counts as well, since a grammar may force calls alone.
// - White space directly before the calls, between and after them is dropped (" \t\n\v\f\r"); leading white
//   space of the content stays. SGLang strips both ends of what precedes the calls, but only where it does
//   not stream, and drops what follows them, which is content here.
// - A well-formed call of a function that was not offered is dropped and its name noted, as SGLang does
//   by default where it does not stream; forward_unknown hands it out (SGLANG_FORWARD_UNKNOWN_TOOLS).
// - With parallel = false the first call counts; well-formed calls after it are dropped.
//
// Markers are special tokens: with tools in force, detokenise with skip_special_tokens = false. Reasoning is
// cut off first (ReasoningParser); what it calls content comes here.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"

namespace hadal {

// Named as SGLang's --tool-call-parser.
enum class ToolCallFormat {
  kNone,         // everything is content
  kDeepSeekV3,   // "deepseekv3": V2.5, V3, R1; arguments in a ```json fence
  kDeepSeekV31,  // "deepseekv31": V3.1; arguments right after the separator
};

// `name` as given to --tool-call-parser: "deepseekv3", "deepseekv31", or "auto", which takes what goes with
// the chat format: v2 none, v2.5 and r1 deepseekv3, v3.1 deepseekv31. kInvalidArgument: any other name; the
// message lists these.
Result<ToolCallFormat> resolve_tool_call_format(std::string_view name, ChatFormat chat_format);
// "none" | "deepseekv3" | "deepseekv31".
const char* to_string(ToolCallFormat format);

// "call_" and 24 hexadecimal digits, random. Any thread.
std::string make_tool_call_id();

struct ToolCallDelta {
  int index = 0;  // 0, 1, … in the order of the calls handed out
  std::string id;
  std::string name;
  std::string arguments;  // JSON object
};

// One stream; used by one thread at a time. Work is linear in the text.
class ToolCallParser {
 public:
  struct Options {
    ToolCallFormat format = ToolCallFormat::kNone;
    std::vector<std::string> tool_names;  // the functions that may be called
    bool parallel = true;                 // parallel_tool_calls
    bool forward_unknown = false;
    std::function<std::string()> make_id = make_tool_call_id;  // called once per call handed out
  };
  struct Piece {
    std::string content;
    std::vector<ToolCallDelta> calls;
  };
  explicit ToolCallParser(Options options);
  ~ToolCallParser();
  ToolCallParser(ToolCallParser&&) noexcept;
  ToolCallParser& operator=(ToolCallParser&&) noexcept;

  // Takes the next piece of text and returns what is decided now.
  Piece append(std::string_view text);
  // The text ended: the rest of it is content. Nothing may be appended afterwards.
  Piece finish();

  int num_calls() const;  // handed out so far
  // Names of dropped calls of functions that were not offered, for the log.
  const std::vector<std::string>& unknown_names() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal
