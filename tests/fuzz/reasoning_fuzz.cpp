// Fuzzes the separation of reasoning. An input has a byte of options, the number of cuts (one byte), two
// bytes for each cut, and the text, in which a few control characters represent the tags. However the text is
// cut, the result is the same, and its parts together are the text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "cut_text.h"
#include "text/chat/reasoning_parser.h"

namespace {

using hadal::ReasoningParser;

ReasoningParser::Piece parse(const ReasoningParser::Options& options, const hadal::fuzz::Pieces& pieces) {
  ReasoningParser parser(options);
  ReasoningParser::Piece out;
  int times = 0;
  const auto take = [&](const ReasoningParser::Piece& piece) {
    out.reasoning += piece.reasoning;
    out.content += piece.content;
    times += piece.reasoning.empty() ? 0 : 1;
  };
  for (const std::string_view piece : pieces) take(parser.append(piece));
  take(parser.finish());
  HADAL_CHECK(options.stream_reasoning || times <= 1, "reasoning was returned in {} pieces", times);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hadal;
  const fuzz::CutText input(data, size, {"<think>", "</think>", "</thin", "<｜"});
  const ReasoningFormat formats[] = {ReasoningFormat::kNone, ReasoningFormat::kDeepSeekR1,
                                     ReasoningFormat::kDeepSeekV3};
  const ReasoningParser::Options options{.format = formats[input.options() % 3],
                                         .starts_in_reasoning = (input.options() & 0x40) != 0,
                                         .stream_reasoning = (input.options() & 0x80) != 0};
  const auto whole = parse(options, {input.text()});
  for (const fuzz::Pieces& pieces : {input.pieces(), input.bytes()}) {
    const auto cut = parse(options, pieces);
    HADAL_CHECK(cut.reasoning == whole.reasoning && cut.content == whole.content);
  }

  std::string_view rest = input.text();
  bool reasons = false;
  if (options.format != ReasoningFormat::kNone) {
    reasons = options.starts_in_reasoning || rest.starts_with("<think>");
    while (rest.starts_with("<think>")) rest.remove_prefix(7);
  }
  const bool ends = reasons && rest.find("</think>") != rest.npos;
  HADAL_CHECK(whole.reasoning + (ends ? "</think>" : "") + whole.content == rest);
  HADAL_CHECK(reasons ? ends || whole.content.empty() : whole.reasoning.empty());
  return 0;
}
