#include "text/chat/tool_call_parser_dsml.h"

#include <algorithm>

#include "text/chat/chat_markers.h"
#include "text/json_spelling.h"
#include "text/utf8.h"

namespace hadal::tool_call {

namespace {

// Limits a parameter's name in bytes: holding back more text than this would be useless.
constexpr size_t kMaxKey = 1024;

}  // namespace

Verdict DsmlScan::advance(std::string_view window) {
  while (!is_whole_) {
    Verdict verdict = Verdict::kBroken;
    switch (stage_) {
      case Stage::kHead:
        verdict = head(window);
        break;
      case Stage::kName:
        verdict = name_end(window);
        break;
      case Stage::kTag:
        verdict = tag(window);
        break;
      case Stage::kKeyHead:
      case Stage::kKey:
        verdict = key(window);
        break;
      case Stage::kText:
        verdict = text(window);
        break;
      case Stage::kJson:
        verdict = json(window);
        break;
      case Stage::kJsonEnd:
        verdict = json_end(window);
        break;
    }
    if (verdict != Verdict::kCall) return verdict;
  }
  return Verdict::kCall;
}

Verdict DsmlScan::head(std::string_view window) {
  const std::string_view opening = dsml::kName.substr(1);  // the model's own decoder needs no space either
  if (!skip_spaces(window, at_)) return Verdict::kMore;
  const Match matched = match(window.substr(at_), opening);
  if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kBroken;
  at_ += opening.size();
  name_begin_ = at_;
  stage_ = Stage::kName;
  return Verdict::kCall;
}

Verdict DsmlScan::name_end(std::string_view window) {
  const std::string_view view = window.substr(name_begin_, kMaxHead + dsml::kNameEnd.size());
  const size_t end = view.find(dsml::kNameEnd);
  if (end == 0 || view.find(dsml::kToken) < end) return Verdict::kBroken;
  if (end == view.npos)
    return view.size() < kMaxHead + dsml::kNameEnd.size() ? Verdict::kMore : Verdict::kBroken;
  if (!is_valid_utf8(view.substr(0, end))) return Verdict::kBroken;
  name_size_ = end;
  at_ = taken_ = name_begin_ + end + dsml::kNameEnd.size();
  stage_ = Stage::kTag;
  return Verdict::kCall;
}

Verdict DsmlScan::tag(std::string_view window) {
  if (!skip_spaces(window, at_)) return Verdict::kMore;
  const std::string_view rest = window.substr(at_);
  const Match parameter = match(rest, dsml::kParameter);
  const Match end = match(rest, dsml::kInvokeEnd);
  if (parameter == Match::kWhole) {
    at_ += dsml::kParameter.size();
    stage_ = Stage::kKeyHead;
    return Verdict::kCall;
  }
  if (end != Match::kWhole)
    return parameter == Match::kPart || end == Match::kPart ? Verdict::kMore : Verdict::kBroken;
  at_ = taken_ = at_ + dsml::kInvokeEnd.size();
  made_ += keys_.empty() ? "{}" : "}";
  is_whole_ = true;
  return Verdict::kCall;
}

Verdict DsmlScan::key(std::string_view window) {
  if (stage_ == Stage::kKeyHead) {
    const Match matched = match(window.substr(at_), dsml::kName);
    if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kBroken;
    at_ += dsml::kName.size();
    stage_ = Stage::kKey;
  }
  // The name ends where the attribute "string" with one of its values begins, so it may contain quotes, but
  // no tags.
  const size_t most = kMaxKey + dsml::kIsJson.size();
  const std::string_view view = window.substr(at_, most);
  const size_t other_tag = view.find(dsml::kToken);
  for (size_t end = view.find('"'); end < other_tag; end = view.find('"', end + 1)) {
    const Match text = match(view.substr(end), dsml::kIsString);
    const Match json = match(view.substr(end), dsml::kIsJson);
    if (text != Match::kWhole && json != Match::kWhole) {
      if ((text == Match::kPart || json == Match::kPart) && view.size() < most) return Verdict::kMore;
      continue;
    }
    key_ = view.substr(0, end);
    if (!is_valid_utf8(key_) || !keys_.insert(key_).second) return Verdict::kBroken;
    const bool is_string = text == Match::kWhole;
    at_ += end + (is_string ? dsml::kIsString : dsml::kIsJson).size();
    if (is_string) {
      make_key();
      made_ += '"';
      taken_ = at_;
      stage_ = Stage::kText;
    } else {
      value_begin_ = resume_ = at_;
      json_.emplace(kMaxDepth - 1);
      stage_ = Stage::kJson;
    }
    return Verdict::kCall;
  }
  return view.size() < most && other_tag == view.npos ? Verdict::kMore : Verdict::kBroken;
}

Verdict DsmlScan::text(std::string_view window) {
  const size_t tag = window.find(dsml::kParameterEnd, at_);
  // If the tag is not there, its beginning may be in the last bytes, which are held back.
  size_t end = std::min(tag, window.size());
  if (tag == window.npos) {
    const size_t most = std::min(window.size() - at_, dsml::kParameterEnd.size() - 1);
    for (size_t part = most; part > 0 && end == window.size(); --part)
      if (dsml::kParameterEnd.starts_with(window.substr(window.size() - part))) end -= part;
  }
  const size_t size = valid_utf8_bytes(window.substr(at_, end - at_));
  const std::string quoted = quote_json(window.substr(at_, size));
  made_.append(quoted, 1, quoted.size() - 2);
  at_ = taken_ = at_ + size;
  if (at_ < end && classify_utf8_prefix(window.substr(at_)).kind == Utf8Prefix::kInvalid)
    return Verdict::kBroken;
  if (tag == window.npos) return Verdict::kMore;
  made_ += '"';
  end_parameter(tag);
  return Verdict::kCall;
}

Verdict DsmlScan::json(std::string_view window) {
  at_ += json_->read(window.substr(at_));
  if (json_->is_broken()) return Verdict::kBroken;
  if (!json_->is_whole()) return Verdict::kMore;
  json_.reset();
  stage_ = Stage::kJsonEnd;
  return Verdict::kCall;
}

Verdict DsmlScan::json_end(std::string_view window) {
  if (!skip_spaces(window, at_)) return Verdict::kMore;
  const Match matched = match(window.substr(at_), dsml::kParameterEnd);
  if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kBroken;
  make_key();
  made_ += window.substr(value_begin_, at_ - value_begin_);
  end_parameter(at_);
  return Verdict::kCall;
}

// Writes the part of the object that precedes the parameter's value.
void DsmlScan::make_key() {
  made_ += keys_.size() == 1 ? "{" : ", ";
  made_ += quote_json(key_) + ": ";
}

void DsmlScan::end_parameter(size_t value_end) {
  at_ = taken_ = value_end + dsml::kParameterEnd.size();
  stage_ = Stage::kTag;
}

}  // namespace hadal::tool_call
