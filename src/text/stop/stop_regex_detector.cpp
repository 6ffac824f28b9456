#include "text/stop/stop_regex_detector.h"

#include <algorithm>
#include <bit>

#include "text/stop/stop_regex_bits.h"
#include "text/utf8.h"

namespace hadal {

StopRegexDetector::StopRegexDetector(const StopRegexTable& table)
    : table_(&table),
      members_(*table.regex_),
      bits_(table.num_words_),
      ended_(table.num_words_),
      next_(table.num_words_),
      from_(table.num_words_),
      holds_(table.num_words_),
      settled_(table.num_words_) {}

bool StopRegexDetector::append(std::string_view piece) {
  const StopRegex& regex = *table_->regex_;
  const char* at = piece.data();
  const char* const end = at + piece.size();
  bool ends_in_newline = false;
  while (at < end) {
    if (!is_waiting_) {
      at = skip(at, end);
      if (at == end) break;
    }
    const DecodedChar c = decode_valid_utf8(at);
    at += c.num_bytes;
    const bool is_last_newline = c.code_point == '\n' && at == end && regex.sees_last_newline_;
    if (repeats_ && c.code_point == previous_char_ && !is_last_newline) continue;
    set_place(c.code_point, false);
    if (is_last_newline) {
      ended_ = bits_;
      ends_in_newline = true;
      if (read(ended_, c.code_point, true)) return true;
    }
    if (read(bits_, c.code_point, false)) return true;
    previous_char_ = c.code_point;
    place_.is_begin = false;
    place_.after_newline = c.code_point == '\n';
    place_.after_word = place_.before_word;
  }
  set_place(StopRegexMembers::kNone, false);
  return (ends_in_newline && matches_at_end(ended_)) || matches_at_end(bits_);
}

// Skips bytes with which no match can begin.
const char* StopRegexDetector::skip(const char* at, const char* end) {
  const char* const begin = at;
  while (at < end && !table_->regex_->can_begin_[static_cast<uint8_t>(*at)]) ++at;
  if (at == begin) return at;
  repeats_ = false;
  previous_char_ = decode_valid_utf8(previous_valid_utf8(at)).code_point;
  place_.is_begin = false;
  place_.after_newline = previous_char_ == '\n';
  place_.after_word = members_.is_word(previous_char_);
  return at;
}

void StopRegexDetector::set_place(uint32_t next, bool is_last) {
  place_.is_end = next == StopRegexMembers::kNone;
  place_.before_newline = next == '\n';
  place_.before_word = !place_.is_end && members_.is_word(next);
  place_.is_last = is_last;
}

// Moves the bits over a character. Returns true if there is a match before it. With `is_last` the text ends
// after it.
bool StopRegexDetector::read(Bits& bits, uint32_t c, bool is_last) {
  const size_t num_words = table_->num_words_;
  place_.is_last = is_last;
  std::fill(settled_.begin(), settled_.end(), 0);
  from_ = bits;
  expand(from_);
  if (has_match(from_)) return true;
  for (size_t i = 0; i < num_words; ++i) from_[i] |= table_->start_[i];
  expand(from_);
  keep_readers(from_, c);

  std::fill(settled_.begin(), settled_.end(), 0);
  std::fill(next_.begin(), next_.end(), 0);
  for (size_t step = 0; step < StopRegexTable::kNumSteps; ++step) {
    const Word* const steps = table_->steps_.data() + step * num_words;
    Word carry = 0;
    for (size_t i = 0; i < num_words; ++i) {
      const Word stepping = from_[i] & steps[i];
      next_[i] |= stepping << step | carry;
      carry = step == 0 ? 0 : stepping >> (64 - step);
    }
  }
  for (size_t i = 0; i < num_words; ++i) {
    for (Word rest = from_[i] & table_->has_row_[i] & ~settled_[i]; rest != 0; rest &= ~settled_[i])
      follow(i * 64 + static_cast<size_t>(std::countr_zero(rest)), next_);
  }
  // If a character has no effect at a place between two of its kind, further ones have none either.
  repeats_ = c == previous_char_ && next_ == bits;
  bits.swap(next_);
  if (&bits == &bits_) {
    is_waiting_ = std::any_of(bits.begin(), bits.end(), [](Word word) { return word != 0; });
  }
  return false;
}

bool StopRegexDetector::matches_at_end(const Bits& bits) {
  if (table_->assertions_.empty()) return has_match(bits);
  from_ = bits;
  std::fill(settled_.begin(), settled_.end(), 0);
  expand(from_);
  return has_match(from_);
}

bool StopRegexDetector::has_match(const Bits& bits) const {
  return has_stop_bit(bits, table_->match_);
}

// Adds what follows the assertions among `bits` that hold here.
void StopRegexDetector::expand(Bits& bits) {
  if (table_->assertions_.empty()) return;
  const size_t num_words = table_->num_words_;
  std::fill(holds_.begin(), holds_.end(), 0);
  for (size_t kind = 0; kind < StopRegexTable::kNumAssertions; ++kind) {
    if (!place_.holds(static_cast<StopRegexAssertion>(kind))) continue;
    for (size_t i = 0; i < num_words; ++i) holds_[i] |= table_->assertions_[kind * num_words + i];
  }
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (size_t i = 0; i < num_words; ++i) {
      while (const Word more = bits[i] & holds_[i] & ~settled_[i]) {
        follow(i * 64 + static_cast<size_t>(std::countr_zero(more)), bits);
        has_changed = true;
      }
    }
  }
}

// Removes all bits except those that read `c`.
void StopRegexDetector::keep_readers(Bits& bits, uint32_t c) {
  const size_t num_words = table_->num_words_;
  if (c < 128) {
    for (size_t i = 0; i < num_words; ++i) bits[i] &= table_->ascii_[c * num_words + i];
    return;
  }
  std::copy(table_->any_other_.begin(), table_->any_other_.end(), next_.begin());
  const auto& others = table_->others_;
  for (auto at = std::lower_bound(others.begin(), others.end(), std::pair(c, 0U));
       at != others.end() && at->first == c; ++at)
    set_stop_bit(next_, at->second);
  for (size_t set = 0; set * num_words < table_->sets_.size(); ++set) {
    const Word* const readers = table_->sets_.data() + set * num_words;
    Word waiting = 0;
    for (size_t i = 0; i < num_words; ++i) waiting |= bits[i] & readers[i];
    if (waiting == 0 || !members_.contains(static_cast<uint32_t>(set), c)) continue;
    for (size_t i = 0; i < num_words; ++i) next_[i] |= readers[i];
  }
  for (size_t i = 0; i < num_words; ++i) bits[i] &= next_[i];
}

// Adds what follows a member.
void StopRegexDetector::follow(size_t member, Bits& to) {
  const auto add = [&](const StopRegexTable::Parts& from, Word* words) {
    for (uint32_t i = from.begin; i < from.end; ++i) {
      const StopRegexTable::Part& part = table_->parts_[i];
      words[part.word] |= part.bits;
    }
  };
  ++num_rows_;
  const StopRegexTable::Row& row = table_->rows_[table_->row_of_[member]];
  add(row.follows, to.data());
  add(row.settles, settled_.data());
}

}  // namespace hadal
