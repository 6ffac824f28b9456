// Fuzzes the parser of V3.2's tool calls. An input has a byte of options, the number of cuts (one byte), two
// bytes for each cut, and the text, in which a few control characters represent parts of tags.
#include "cut_text.h"
#include "text/chat/tool_call_parser.h"
#include "tool_call_check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hadal;
  const fuzz::CutText input(
      data, size,
      {"<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>", "<｜DSML｜invoke name=\"f\">\n",
       "\n</｜DSML｜invoke>", "<｜DSML｜parameter name=\"a", "\" string=\"true\">", "\" string=\"false\">",
       "</｜DSML｜parameter>"});
  const ToolCallParser::Options options{.format = ToolCallFormat::kDeepSeekV32,
                                        .tool_names = {"f", "get_weather"},
                                        .parallel = (input.options() & 0x40) == 0,
                                        .forward_unknown = (input.options() & 0x80) != 0};
  fuzz::check_tool_calls(options, input);
  return 0;
}
