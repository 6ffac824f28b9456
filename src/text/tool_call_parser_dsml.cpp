#include "text/tool_call_parser_dsml.h"

#include <algorithm>

#include "text/chat_markers.h"
#include "text/json_spelling.h"
#include "text/utf8.h"

namespace hadal::tool_call {

namespace {

// Limits a parameter's name in bytes: holding back more text than this would be useless.
constexpr size_t kMaxKey = 1024;

}  // namespace

Verdict DsmlScan::advance(std::string_view window) {
  while (!is_complete_) {
    Verdict verdict = Verdict::kMalformed;
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
  if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kMalformed;
  at_ += opening.size();
  name_begin_ = at_;
  stage_ = Stage::kName;
  return Verdict::kCall;
}

Verdict DsmlScan::name_end(std::string_view window) {
  const std::string_view view = window.substr(name_begin_, kMaxHead + dsml::kNameEnd.size());
  const size_t end = view.find(dsml::kNameEnd);
  if (end == 0 || view.find(dsml::kToken) < end) return Verdict::kMalformed;
  if (end == view.npos)
    return view.size() < kMaxHead + dsml::kNameEnd.size() ? Verdict::kMore : Verdict::kMalformed;
  name_size_ = end;
  at_ = resume_ = name_begin_ + end + dsml::kNameEnd.size();
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
    return parameter == Match::kPart || end == Match::kPart ? Verdict::kMore : Verdict::kMalformed;
  at_ += dsml::kInvokeEnd.size();
  resume_ = at_;
  if (!is_text(window)) return Verdict::kMalformed;
  is_complete_ = true;
  return Verdict::kCall;
}

Verdict DsmlScan::key(std::string_view window) {
  if (stage_ == Stage::kKeyHead) {
    const Match matched = match(window.substr(at_), dsml::kName);
    if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kMalformed;
    at_ += dsml::kName.size();
    parameter_ = {.key_begin = at_};
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
    parameter_.key_size = end;
    parameter_.is_string = text == Match::kWhole;
    if (!keys_.emplace(view.substr(0, end)).second) return Verdict::kMalformed;
    at_ += end + (parameter_.is_string ? dsml::kIsString : dsml::kIsJson).size();
    parameter_.begin = at_;
    if (parameter_.is_string) {
      stage_ = Stage::kText;
    } else {
      resume_ = at_;
      json_.emplace(boost::json::storage_ptr(), json_options(kMaxDepth - 1));
      stage_ = Stage::kJson;
    }
    return Verdict::kCall;
  }
  return view.size() < most && other_tag == view.npos ? Verdict::kMore : Verdict::kMalformed;
}

Verdict DsmlScan::text(std::string_view window) {
  const size_t end = window.find(dsml::kParameterEnd, at_);
  if (end == window.npos) {
    // The tag may have begun in the last bytes.
    const size_t part = dsml::kParameterEnd.size() - 1;
    if (window.size() > part) at_ = std::max(at_, window.size() - part);
    return Verdict::kMore;
  }
  end_parameter(end);
  return Verdict::kCall;
}

Verdict DsmlScan::json(std::string_view window) {
  boost::system::error_code error;
  at_ += json_->write_some(window.data() + at_, window.size() - at_, error);
  if (error) return Verdict::kMalformed;
  if (!json_->done()) return Verdict::kMore;
  json_.reset();
  stage_ = Stage::kJsonEnd;
  return Verdict::kCall;
}

Verdict DsmlScan::json_end(std::string_view window) {
  if (!skip_spaces(window, at_)) return Verdict::kMore;
  const Match matched = match(window.substr(at_), dsml::kParameterEnd);
  if (matched != Match::kWhole) return matched == Match::kPart ? Verdict::kMore : Verdict::kMalformed;
  end_parameter(at_);
  return Verdict::kCall;
}

void DsmlScan::end_parameter(size_t value_end) {
  parameter_.size = value_end - parameter_.begin;
  parameters_.push_back(parameter_);
  at_ = resume_ = value_end + dsml::kParameterEnd.size();
  stage_ = Stage::kTag;
}

bool DsmlScan::is_text(std::string_view window) const {
  return is_valid_utf8(name(window)) &&
         std::all_of(parameters_.begin(), parameters_.end(), [&](const Parameter& parameter) {
           return is_valid_utf8(window.substr(parameter.key_begin, parameter.key_size)) &&
                  (!parameter.is_string || is_valid_utf8(window.substr(parameter.begin, parameter.size)));
         });
}

std::string DsmlScan::arguments(std::string_view window) const {
  std::string out = "{";
  for (const Parameter& parameter : parameters_) {
    if (out.size() > 1) out += ", ";
    out += quote_json(window.substr(parameter.key_begin, parameter.key_size)) + ": ";
    const std::string_view value = window.substr(parameter.begin, parameter.size);
    out += parameter.is_string ? quote_json(value) : std::string(value);
  }
  return out += "}";
}

}  // namespace hadal::tool_call
