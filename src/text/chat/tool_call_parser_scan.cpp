#include "text/chat/tool_call_parser_scan.h"

#include <algorithm>

#include "text/chat/chat_markers.h"
#include "text/chat/tool_call_parser_dsml.h"

namespace hadal::tool_call {

bool skip_spaces(std::string_view window, size_t& at) {
  while (at < window.size() && is_space(window[at])) ++at;
  return at < window.size();
}

CallMarkers call_markers(ToolCallFormat format) {
  if (format == ToolCallFormat::kDeepSeekV32) return {dsml::kCallsBegin, dsml::kCallsEnd, dsml::kInvoke};
  return {kCallsBegin, kCallsEnd, kCallBegin};
}

std::unique_ptr<CallScan> make_call_scan(ToolCallFormat format) {
  if (format == ToolCallFormat::kDeepSeekV32) return std::make_unique<DsmlScan>();
  return std::make_unique<JsonCallScan>(format == ToolCallFormat::kDeepSeekV3);
}

JsonCallScan::JsonCallScan(bool fenced) : fenced_(fenced), stage_(fenced ? Stage::kType : Stage::kName) {}

Verdict JsonCallScan::advance(std::string_view window) {
  // Each stage ends the loop if it needs more text, or moves on to the next stage.
  while (true) {
    const Stage stage = stage_;
    Verdict verdict = Verdict::kBroken;
    switch (stage) {
      case Stage::kType:
        verdict = head(window, kSep, Stage::kName);
        break;
      case Stage::kName:
        verdict = head(window, fenced_ ? kJsonFence : kSep, Stage::kOpen);
        break;
      case Stage::kOpen:
        if (!skip_spaces(window, at_)) return Verdict::kMore;
        if (window[at_] != '{') return Verdict::kBroken;
        json_.emplace(kMaxDepth);
        stage_ = Stage::kObject;
        continue;
      case Stage::kObject:
        verdict = object(window);
        break;
      case Stage::kFenceEnd:
        verdict = literal(window, kFence, Stage::kEnd);
        break;
      case Stage::kEnd:
        return literal(window, kCallEnd, Stage::kEnd);
    }
    if (verdict != Verdict::kCall) return verdict;
  }
}

// Reads text without '<' (and '`', if a fence ends it) up to `terminator`; kCall means that it was found.
Verdict JsonCallScan::head(std::string_view window, std::string_view terminator, Stage next) {
  const size_t end = window.find_first_of(terminator[0] == '`' ? "<`" : "<", at_);
  at_ = std::min(end, window.size());
  if (at_ - head_begin_ > kMaxHead) return Verdict::kBroken;
  if (end == window.npos) return Verdict::kMore;
  const Match matched = match(window.substr(end), terminator);
  if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kBroken;
  if (stage_ == Stage::kName) {
    const std::string_view text = window.substr(head_begin_, end - head_begin_);
    const size_t first = text.find_first_not_of(kSpaces);
    if (first == text.npos) return Verdict::kBroken;
    const std::string_view name = text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
    if (name.find_first_of(kSpaces) != name.npos) return Verdict::kBroken;
    name_begin_ = head_begin_ + first;
    name_size_ = name.size();
    taken_ = end + terminator.size();
  }
  at_ = head_begin_ = end + terminator.size();
  stage_ = next;
  return Verdict::kCall;
}

// Reads white space, then `text`; kCall means that both were found.
Verdict JsonCallScan::literal(std::string_view window, std::string_view text, Stage next) {
  if (!skip_spaces(window, at_)) return Verdict::kMore;
  const Match matched = match(window.substr(at_), text);
  if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kBroken;
  taken_ = at_ += text.size();
  stage_ = next;
  return Verdict::kCall;
}

// Reads the arguments, which end with the object, or before the first byte that cannot continue it.
Verdict JsonCallScan::object(std::string_view window) {
  const std::string_view made = window.substr(at_, json_->read(window.substr(at_)));
  made_ += made;
  taken_ = at_ += made.size();
  if (json_->is_broken()) return Verdict::kBroken;
  if (!json_->is_whole()) return Verdict::kMore;
  json_.reset();
  is_whole_ = true;
  stage_ = fenced_ ? Stage::kFenceEnd : Stage::kEnd;
  return Verdict::kCall;
}

}  // namespace hadal::tool_call
