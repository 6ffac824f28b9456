#include "text/stop/stop_regex_set.h"

#include <string>

#include "base/check.h"
#include "text/utf8.h"

namespace hadal {
namespace {

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

pcre2::MatchData new_match_data() {
  pcre2::MatchData match(pcre2_match_data_create(1, nullptr));
  HADAL_CHECK(match != nullptr, "out of memory for match data");
  return match;
}

// pcre2_match would keep 20 KiB for each match data; pcre2_dfa_match, which is used here, has its workspace
// on the stack.
int find(const pcre2_code* code, std::string_view text, size_t from, uint32_t options,
         pcre2_match_data* match) {
  std::array<int, 64> workspace;
  return pcre2_dfa_match(code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK | options, match, nullptr,
                         workspace.data(), workspace.size());
}

}  // namespace

Result<StopRegexSet> StopRegexSet::compile(const StopRegexSetText& text) {
  StopRegexSet set;
  const auto add = [&](uint32_t c) { set.ascii_[c >> 6] |= uint64_t{1} << (c & 63); };
  if (text.text.size() == 1) {  // a small letter: K is also U+212A, and S is also U+017F
    const auto letter = static_cast<unsigned char>(text.text[0]);
    add(letter);
    add(letter ^ 0x20U);
    set.other_ = letter == 'k' ? 0x212A : letter == 's' ? 0x17F : 0;
    return set;
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::string run = text.text + "+";
  const uint32_t options =
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | (text.is_caseless ? PCRE2_CASELESS : 0);
  set.code_.reset(pcre2_compile(units(run), run.size(), options, &error, &offset, nullptr));
  if (set.code_ == nullptr) {
    char message[160] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return invalid_argument("{} at byte {}", message, text.at + std::min(offset, text.text.size()));
  }
  std::string ascii(128, '\0');
  for (uint32_t c = 0; c < 128; ++c) ascii[c] = static_cast<char>(c);
  const pcre2::MatchData match = new_match_data();
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
  for (size_t from = 0; from < 128 && find(set.code_.get(), ascii, from, 0, match.get()) >= 0;
       from = bounds[1]) {
    for (size_t c = bounds[0]; c < bounds[1]; ++c) add(static_cast<uint32_t>(c));
  }
  return set;
}

bool StopRegexSet::contains_other(uint32_t code_point, pcre2_match_data* match) const {
  if (code_ == nullptr) return code_point == other_;
  std::string text;  // four bytes need no allocation
  append_utf8(text, code_point);
  return find(code_.get(), text, 0, PCRE2_ANCHORED, match) >= 0;
}

bool StopRegexSet::can_begin_with(uint8_t byte) const {
  if (code_ != nullptr) return byte >= 0xC2;
  std::string text;
  if (other_ != 0) append_utf8(text, other_);
  return !text.empty() && static_cast<uint8_t>(text[0]) == byte;
}

size_t StopRegexSet::bytes() const {
  size_t out = 0;
  if (code_ != nullptr) pcre2_pattern_info(code_.get(), PCRE2_INFO_SIZE, &out);
  return out;
}

}  // namespace hadal
