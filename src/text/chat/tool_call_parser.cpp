#include "text/chat/tool_call_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>

#include "base/cancel.h"
#include "text/chat/tool_call_parser_scan.h"

namespace hadal {

using namespace tool_call;  // NOLINT(google-build-using-namespace): the markers

namespace {

struct ToolCallFormatName {
  std::string_view name;
  ToolCallFormat format;
};
constexpr size_t kMostUnknownNames = 16;  // for the log, because a model may write any number of them

constexpr ToolCallFormatName kToolCallFormatNames[] = {{"none", ToolCallFormat::kNone},
                                                       {"deepseekv3", ToolCallFormat::kDeepSeekV3},
                                                       {"deepseekv31", ToolCallFormat::kDeepSeekV31},
                                                       {"deepseekv32", ToolCallFormat::kDeepSeekV32}};

ToolCallFormat tool_call_format_of(ChatFormat chat_format) {
  switch (chat_format) {
    case ChatFormat::kV2:
      return ToolCallFormat::kNone;
    case ChatFormat::kV25:
    case ChatFormat::kR1:
      return ToolCallFormat::kDeepSeekV3;
    case ChatFormat::kV31:
      return ToolCallFormat::kDeepSeekV31;
    case ChatFormat::kV32:
      return ToolCallFormat::kDeepSeekV32;
  }
  return ToolCallFormat::kNone;
}

}  // namespace

Result<ToolCallFormat> resolve_tool_call_format(std::string_view name, ChatFormat chat_format) {
  if (name == "auto") return tool_call_format_of(chat_format);
  for (const ToolCallFormatName& row : kToolCallFormatNames)
    if (row.name == name && row.format != ToolCallFormat::kNone) return row.format;
  return invalid_argument(
      "unknown tool call parser \"{}\"; allowed are auto, deepseekv3, deepseekv31, deepseekv32", name);
}

const char* to_string(ToolCallFormat format) {
  for (const ToolCallFormatName& row : kToolCallFormatNames)
    if (row.format == format) return row.name.data();
  return "unknown";
}

void join_delta(std::vector<ToolCallDelta>& deltas, ToolCallDelta delta) {
  if (deltas.empty() || deltas.back().index != delta.index) return deltas.push_back(std::move(delta));
  deltas.back().arguments += delta.arguments;
}

std::string make_tool_call_id() {
  std::random_device device;
  std::string id = "call_";
  for (int i = 0; i < 3; ++i) id += fmt::format("{:08x}", static_cast<uint32_t>(device()));
  return id;
}

// The undecided text is buffer_[begin_, size), which looks like this:
//
//   | white space | calls_begin white space | call_begin … |
//   begin_        |                         point_          what has arrived of a call, read by scan_
//                 space_: the white space that ends at point_
//
// [begin_, point_) becomes content unless a call follows. All white space and markers there are optional.
//
// Text that a call has consumed is not read again. After a call that breaks before its name, the text after
// its call_begin is read again; no name contains '<', so this text contains no other call. Text that DsmlScan
// holds is read again too; its header says why the work stays linear.
class ToolCallParser::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)), markers_(call_markers(options_.format)) {}

  Piece append(std::string_view text, bool at_end) {
    Piece piece;
    if (options_.format == ToolCallFormat::kNone) {
      piece.content = text;
      return piece;
    }
    buffer_ += text;
    while (point_ < buffer_.size() && step(at_end, piece)) check_cancelled();
    if (at_end) release_to(buffer_.size(), piece);
    buffer_.erase(0, begin_);
    point_ -= begin_;
    space_ -= begin_;
    begin_ = 0;
    return piece;
  }

  int num_calls() const { return num_calls_; }
  bool calls_are_whole() const { return calls_are_whole_; }
  const std::vector<std::string>& unknown_names() const { return unknown_names_; }

 private:
  // Decides about the text at point_, which is not the end; returns false if the decision needs more text.
  bool step(bool at_end, Piece& piece) {
    if (scan_) return step_call(at_end, piece);
    if (is_space(buffer_[point_])) {
      ++point_;
      if (after_call_ && !has_calls_begin_) begin_ = space_ = point_;
      return true;
    }
    const std::string_view rest = std::string_view(buffer_).substr(point_);
    bool partial = false;
    for (const std::string_view marker : {markers_.calls_begin, markers_.call_begin, markers_.calls_end}) {
      const Match matched = match(rest, marker);
      partial = partial || matched == Match::kPart;
      if (matched != Match::kWhole) continue;
      take_marker(marker, piece);
      return true;
    }
    if (partial && !at_end) return false;
    take_text(rest, piece);
    return true;
  }

  void take_marker(std::string_view marker, Piece& piece) {
    if (marker == markers_.call_begin) {
      scan_ = make_call_scan(options_.format);
      has_name_ = is_returned_ = false;
      return;
    }
    if (marker == markers_.calls_begin && has_calls_begin_)
      release_to(space_, piece);  // the previous one has no call
    point_ += marker.size();
    if (marker == markers_.calls_begin) {
      has_calls_begin_ = true;
      space_ = point_;
    } else if (has_calls_ && !has_calls_begin_) {
      drop_to(point_);
      has_calls_ = false;
    } else {
      release_to(point_, piece);
    }
  }

  // Accepts text up to the next place where a marker could begin; white space at the end of this text is held
  // back.
  void take_text(std::string_view rest, Piece& piece) {
    const std::string_view text = rest.substr(0, rest.find('<', 1));
    const size_t size = text.find_last_not_of(kSpaces) + 1;
    release_to(point_ + size, piece);
    point_ += text.size() - size;
  }

  bool step_call(bool at_end, Piece& piece) {
    const size_t begin = point_ + markers_.call_begin.size();
    const std::string_view window = std::string_view(buffer_).substr(begin);
    const Verdict verdict = scan_->advance(window);
    if (!has_name_ && !scan_->name(window).empty()) begin_call(scan_->name(window), piece);
    std::string arguments = scan_->take_arguments();
    if (is_returned_ && !arguments.empty())
      join_delta(piece.calls,
                 {.index = num_calls_ - 1, .id = {}, .name = {}, .arguments = std::move(arguments)});
    if (verdict == Verdict::kMore && !at_end) return false;
    // If the text ends after whole arguments, the rest can only be the beginning of the call's own end
    // marker.
    if (verdict == Verdict::kCall || (verdict == Verdict::kMore && scan_->is_whole())) {
      drop_to(verdict == Verdict::kCall ? begin + scan_->size() : buffer_.size());
      has_calls_ = true;
    } else {
      if (has_name_) {
        drop_to(begin + scan_->size());
        after_call_ = false;
        has_calls_ = true;
      }
      if (is_returned_ && !scan_->is_whole()) calls_are_whole_ = false;
      release_to(begin + scan_->resume(), piece);  // the text after this is read again
    }
    scan_.reset();
    return true;
  }

  void begin_call(std::string_view name, Piece& piece) {
    has_name_ = true;
    const auto& names = options_.tool_names;
    const bool known = std::find(names.begin(), names.end(), name) != names.end();
    if (!known && unknown_names_.size() < kMostUnknownNames) unknown_names_.emplace_back(name);
    is_returned_ = (known || options_.forward_unknown) && (options_.parallel || num_calls_ == 0);
    if (!is_returned_) return;
    piece.calls.push_back(
        {.index = num_calls_++, .id = options_.make_id(), .name = std::string(name), .arguments = {}});
  }

  // Returns all undecided text before `end` as content, and moves point_ to `end`.
  void release_to(size_t end, Piece& piece) {
    if (end > begin_) after_call_ = false;
    piece.content.append(buffer_, begin_, end - begin_);
    begin_ = space_ = end;
    point_ = std::max(point_, end);
    has_calls_begin_ = false;
  }

  // Drops all undecided text before `end`, which belonged to calls.
  void drop_to(size_t end) {
    begin_ = space_ = point_ = end;
    after_call_ = true;
    has_calls_begin_ = false;
  }

  Options options_;
  CallMarkers markers_;
  std::string buffer_;
  size_t begin_ = 0;
  size_t space_ = 0;
  size_t point_ = 0;
  bool has_calls_begin_ = false;  // [begin_, point_) contains the marker
  bool after_call_ = false;       // there was no content since the last call
  bool has_calls_ = false;        // there was a call since the last calls_end
  int num_calls_ = 0;
  bool calls_are_whole_ = true;
  std::vector<std::string> unknown_names_;
  std::unique_ptr<CallScan> scan_;
  bool has_name_ = false;     // of the call that scan_ reads
  bool is_returned_ = false;  // false: the call is dropped
};

ToolCallParser::ToolCallParser(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
ToolCallParser::~ToolCallParser() = default;
ToolCallParser::ToolCallParser(ToolCallParser&&) noexcept = default;
ToolCallParser& ToolCallParser::operator=(ToolCallParser&&) noexcept = default;

ToolCallParser::Piece ToolCallParser::append(std::string_view text) {
  return impl_->append(text, false);
}
ToolCallParser::Piece ToolCallParser::finish() {
  return impl_->append({}, true);
}
int ToolCallParser::num_calls() const {
  return impl_->num_calls();
}
bool ToolCallParser::calls_are_whole() const {
  return impl_->calls_are_whole();
}
const std::vector<std::string>& ToolCallParser::unknown_names() const {
  return impl_->unknown_names();
}

}  // namespace hadal
