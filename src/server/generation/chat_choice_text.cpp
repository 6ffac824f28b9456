#include "server/generation/chat_choice_text.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "text/chat/chat_markers.h"

namespace hadal::server {
namespace {

// The undecided rest of a call that the end of the answer cuts off becomes content. Special tokens in it are
// not meant for readers, so this removes them.
std::string without_markers(std::string_view text) {
  constexpr std::string_view kMarkers[] = {kCallsBegin, kCallsEnd, kCallBegin, kCallEnd, kSep, dsml::kToken};
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const auto* const marker = std::find_if(std::begin(kMarkers), std::end(kMarkers),
                                            [&](std::string_view m) { return text.starts_with(m); });
    if (marker != std::end(kMarkers)) {
      text.remove_prefix(marker->size());
    } else {
      out += text.front();
      text.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace

ChatChoiceText::ChatChoiceText(const ChatParsing& parsing) {
  if (parsing.reasoning != ReasoningFormat::kNone) {
    reasoning_.emplace(ReasoningParser::Options{.format = parsing.reasoning,
                                                .starts_in_reasoning = parsing.starts_in_reasoning,
                                                .stream_reasoning = parsing.stream_reasoning});
  }
  if (parsing.tool_calls != ToolCallFormat::kNone) {
    ToolCallParser::Options options;
    options.format = parsing.tool_calls;
    options.tool_names = parsing.tool_names;
    options.parallel = parsing.parallel_tool_calls;
    tools_.emplace(std::move(options));
  }
}

void ChatChoiceText::add_content(std::string_view text, Piece& out) {
  if (!reasoning_) {
    out.content += text;
    return;
  }
  held_ += text;
  size_t begin = 0;  // of the text that is not in the content yet
  for (size_t at = held_.find('<'); at != held_.npos; at = held_.find('<', at)) {
    const std::string_view rest = std::string_view(held_).substr(at);
    if (rest.starts_with(kEndThink)) {
      out.content.append(held_, begin, at - begin);
      begin = at += kEndThink.size();
    } else if (kEndThink.starts_with(rest)) {
      out.content.append(held_, begin, at - begin);
      held_.erase(0, at);
      return;
    } else {
      ++at;
    }
  }
  out.content.append(held_, begin, held_.npos);
  held_.clear();
}

void ChatChoiceText::take(ReasoningParser::Piece part, Piece& out) {
  out.reasoning += part.reasoning;
  if (!tools_) {
    add_content(part.content, out);
  } else if (!part.content.empty()) {
    ToolCallParser::Piece piece = tools_->append(part.content);
    add_content(piece.content, out);
    for (ToolCallDelta& call : piece.calls) join_delta(out.calls, std::move(call));
  }
}

ChatChoiceText::Piece ChatChoiceText::append(std::string text, bool last) {
  Piece out;
  if (reasoning_) {
    take(reasoning_->append(text), out);
    if (last) take(reasoning_->finish(), out);
  } else {
    ReasoningParser::Piece all;
    all.content = std::move(text);
    take(std::move(all), out);
  }
  if (last && tools_) {
    ToolCallParser::Piece rest = tools_->finish();
    add_content(without_markers(rest.content), out);
    for (ToolCallDelta& call : rest.calls) join_delta(out.calls, std::move(call));
    // A model may write any number of names, so an answer has one line.
    if (const auto& names = tools_->unknown_names(); !names.empty()) {
      log_info("tool call dropped function={} names={} reason=\"not among the tools of the request\"",
               shown_text(names.front()), names.size());
    }
  }
  if (last) out.content += std::exchange(held_, {});
  return out;
}

}  // namespace hadal::server
