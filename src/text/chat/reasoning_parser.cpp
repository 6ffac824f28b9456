#include "text/chat/reasoning_parser.h"

#include <algorithm>

#include "text/chat/chat_markers.h"

namespace hadal {

namespace {

// These markers can precede or follow a turn. The assistant's open turn is the text after the last of them.
constexpr std::string_view kTurnMarkers[] = {kUser, kAssistant, kOutputEnd, kOutputsEnd, kEos};

struct ReasoningFormatName {
  std::string_view name;
  ReasoningFormat format;
};
constexpr ReasoningFormatName kReasoningFormatNames[] = {{"none", ReasoningFormat::kNone},
                                                         {"deepseek-r1", ReasoningFormat::kDeepSeekR1},
                                                         {"deepseek-v3", ReasoningFormat::kDeepSeekV3}};

ReasoningFormat reasoning_format_of(ChatFormat chat_format) {
  switch (chat_format) {
    case ChatFormat::kV2:
      return ReasoningFormat::kNone;
    case ChatFormat::kR1:
      return ReasoningFormat::kDeepSeekR1;
    case ChatFormat::kV25:
    case ChatFormat::kV31:
    case ChatFormat::kV32:
      return ReasoningFormat::kDeepSeekV3;
  }
  return ReasoningFormat::kNone;
}

// Returns the length of the longest proper prefix of `tag` with which `text` ends.
size_t held_suffix(std::string_view text, std::string_view tag) {
  size_t keep = std::min(text.size(), tag.size() - 1);
  while (keep > 0 && !text.ends_with(tag.substr(0, keep))) --keep;
  return keep;
}

}  // namespace

Result<ReasoningFormat> resolve_reasoning_format(std::string_view name, ChatFormat chat_format) {
  if (name == "auto") return reasoning_format_of(chat_format);
  for (const ReasoningFormatName& row : kReasoningFormatNames)
    if (row.name == name && row.format != ReasoningFormat::kNone) return row.format;
  return invalid_argument("unknown reasoning parser \"{}\"; allowed are auto, deepseek-r1, deepseek-v3",
                          name);
}

const char* to_string(ReasoningFormat format) {
  for (const ReasoningFormatName& row : kReasoningFormatNames)
    if (row.format == format) return row.name.data();
  return "unknown";
}

bool starts_in_reasoning(ReasoningFormat format, std::string_view prompt) {
  if (format == ReasoningFormat::kNone) return false;
  size_t turn = 0;
  for (const std::string_view marker : kTurnMarkers) {
    const size_t at = prompt.rfind(marker);
    if (at != prompt.npos) turn = std::max(turn, at + marker.size());
  }
  const std::string_view open = prompt.substr(turn);
  const size_t begin = open.rfind(kThink);
  const size_t end = open.rfind(kEndThink);
  if (begin == open.npos && end == open.npos) return format == ReasoningFormat::kDeepSeekR1;
  return end == open.npos || (begin != open.npos && begin > end);
}

ReasoningParser::ReasoningParser(Options options)
    : options_(options),
      at_start_(options.format != ReasoningFormat::kNone),
      in_reasoning_(at_start_ && options.starts_in_reasoning) {}

ReasoningParser::Piece ReasoningParser::append(std::string_view text) {
  Piece piece;
  if (!at_start_ && !in_reasoning_) {
    piece.content = text;
    return piece;
  }
  held_ += text;
  size_t num_skipped = 0;  // bytes of tags at the start
  while (at_start_) {
    const std::string_view rest = std::string_view(held_).substr(num_skipped);
    if (rest.starts_with(kThink)) {
      num_skipped += kThink.size();
      in_reasoning_ = true;
    } else if (kThink.starts_with(rest)) {
      held_.erase(0, num_skipped);
      return piece;  // nothing yet, or a beginning of the tag
    } else {
      at_start_ = false;
    }
  }
  held_.erase(0, num_skipped);
  if (!in_reasoning_) {
    piece.content.swap(held_);
    return piece;
  }
  if (const size_t end = held_.find(kEndThink); end != held_.npos) {
    take_reasoning(std::string_view(held_).substr(0, end), piece);
    piece.content = held_.substr(end + kEndThink.size());
    in_reasoning_ = false;
    held_.clear();
    if (!options_.stream_reasoning) piece.reasoning.swap(collected_);
    return piece;
  }
  const size_t ready = held_.size() - held_suffix(held_, kEndThink);
  take_reasoning(std::string_view(held_).substr(0, ready), piece);
  held_.erase(0, ready);
  return piece;
}

ReasoningParser::Piece ReasoningParser::finish() {
  Piece piece;
  if (in_reasoning_) {
    take_reasoning(held_, piece);
    if (!options_.stream_reasoning) piece.reasoning.swap(collected_);
  } else {
    piece.content = held_;
  }
  held_.clear();
  return piece;
}

void ReasoningParser::take_reasoning(std::string_view text, Piece& piece) {
  (options_.stream_reasoning ? piece.reasoning : collected_) += text;
}

}  // namespace hadal
