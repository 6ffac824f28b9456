// Separates a model's output into content and tool calls, in the formats of the DeepSeek family.
//
// This is the contract:
// - The result depends on the text alone: the joined pieces and deltas are the same however the text was cut.
// - A call begins when its name is complete, with a delta that has index, id and name. Its arguments follow
//   as they are generated, in deltas of the same index whose id and name are empty. They are the text of the
//   object as generated, without the white space around it; V3.2's parameters become one object, spelled as
//   the model's own decoder does. Text that cannot begin a call is returned at once, except white space,
//   which is held until more text follows.
// - A call that breaks before its name is complete becomes content exactly as generated, including markers. A
//   call can also break later: at arguments that stop being the beginning of a JSON object, at text where the
//   call should end, or at the end of the text. It then ends with the arguments that were returned, and the
//   rest is content; calls_are_whole() is then false unless the object was whole. Calls after a broken call
//   still count. A marker inside a string of the arguments is part of the string. If the text ends after a
//   whole object, the call is complete.
// - A parameter of V3.2 with string="true" is returned exactly and as it is generated. One with
//   string="false" must be JSON, and is held until it is whole. A call breaks at the second of two parameters
//   with the same name.
// - <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜> (V3.2: the tags of function_calls) around calls are
//   removed with them. A call without them counts as well, because a grammar may force the calls without
//   these markers.
// - White space (" \t\n\v\f\r") directly before, between and after the calls is dropped; leading white space
//   of the content is kept. SGLang strips both ends of the text before the calls, but only when it does not
//   stream. It drops the text after the calls, which is content here.
// - A call of a function that was not offered is dropped from its name on, and the name is recorded, as
//   SGLang does by default when it does not stream. With forward_unknown it is returned
//   (SGLANG_FORWARD_UNKNOWN_TOOLS). If a dropped call breaks, the rest is content as well.
// - With parallel = false only the first call counts; calls after it are dropped from their names on.
//
// Markers are special tokens: with tools enabled, detokenise with skip_special_tokens = false. A
// ReasoningParser removes reasoning first; this parser receives the content.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat/chat_template.h"

namespace hadal {

// The names are those of SGLang's --tool-call-parser.
enum class ToolCallFormat {
  kNone,         // everything is content
  kDeepSeekV3,   // "deepseekv3": V2.5, V3, R1; arguments in a ```json fence
  kDeepSeekV31,  // "deepseekv31": V3.1; arguments right after the separator
  kDeepSeekV32,  // "deepseekv32": V3.2; a DSML tag for each parameter
};

// `name` is the value of --tool-call-parser: "deepseekv3", "deepseekv31", "deepseekv32", or "auto", which
// selects by the chat format: none for v2, deepseekv3 for v2.5 and r1, deepseekv31 for v3.1, deepseekv32 for
// v3.2. Any other name is kInvalidArgument, with a message that lists these.
Result<ToolCallFormat> resolve_tool_call_format(std::string_view name, ChatFormat chat_format);
// Returns "none", "deepseekv3", "deepseekv31" or "deepseekv32".
const char* to_string(ToolCallFormat format);

// Returns "call_" and 24 random hexadecimal digits. Any thread may call it.
std::string make_tool_call_id();

// The first delta of a call has its id and name; later ones have neither. The joined arguments of all its
// deltas are a JSON object, or the beginning of one if the call broke.
struct ToolCallDelta {
  int index = 0;  // 0, 1, … in the order in which calls are returned
  std::string id;
  std::string name;
  std::string arguments;  // text to append
};

// Adds `delta` to `deltas`, joined with the last element if that belongs to the same call.
void join_delta(std::vector<ToolCallDelta>& deltas, ToolCallDelta delta);

// A ToolCallParser reads one stream and is used by one thread at a time. Its work is linear in the text.
class ToolCallParser {
 public:
  struct Options {
    ToolCallFormat format = ToolCallFormat::kNone;
    std::vector<std::string> tool_names;  // the functions that may be called
    bool parallel = true;                 // parallel_tool_calls
    bool forward_unknown = false;
    std::function<std::string()> make_id = make_tool_call_id;  // called once per returned call
  };
  struct Piece {
    std::string content;
    std::vector<ToolCallDelta> calls;  // at most one delta for each call
  };
  explicit ToolCallParser(Options options);
  ~ToolCallParser();
  ToolCallParser(ToolCallParser&&) noexcept;
  ToolCallParser& operator=(ToolCallParser&&) noexcept;

  // Adds a piece of text and returns the content and calls that are decided now. Throws CancelledError
  // (base/cancel.h); the parser must not be used after that.
  Piece append(std::string_view text);
  // Ends the text, whose undecided rest is content. Nothing may be appended afterwards.
  Piece finish();

  int num_calls() const;  // begun so far
  // Returns false once a returned call has ended without a whole object of arguments.
  bool calls_are_whole() const;
  // Returns the names of dropped calls to functions that were not offered, for the log.
  const std::vector<std::string>& unknown_names() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal
