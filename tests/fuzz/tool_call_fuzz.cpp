// Fuzzes the parser of tool calls in the formats of V3 and V3.1. An input has a byte of options, the number
// of cuts (one byte), two bytes for each cut, and the text, in which a few control characters represent the
// markers.
#include "cut_text.h"
#include "text/chat/tool_call_parser.h"
#include "tool_call_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hadal;
  const fuzz::CutText input(
      data, size,
      {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
       "<｜tool▁sep｜>", "\n```json\n", "\n```", "<｜tool▁call"});
  const ToolCallFormat formats[] = {ToolCallFormat::kDeepSeekV3, ToolCallFormat::kDeepSeekV31,
                                    ToolCallFormat::kNone};
  const ToolCallParser::Options options{.format = formats[input.options() % 3],
                                        .tool_names = {"f", "get_weather"},
                                        .parallel = (input.options() & 0x40) == 0,
                                        .forward_unknown = (input.options() & 0x80) != 0};
  fuzz::check_tool_calls(options, input);
  return 0;
}
