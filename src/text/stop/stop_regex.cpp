#include "text/stop/stop_regex.h"

#include <algorithm>

#include "base/check.h"
#include "text/utf8.h"

namespace hadal {

using Op = StopRegexInstruction::Op;

StopRegexMembers::StopRegexMembers(const StopRegex& regex) : regex_(&regex), answers_(regex.sets_.size()) {
  if (regex.sets_.empty()) return;
  match_data_.reset(pcre2_match_data_create(1, nullptr));
  HADAL_CHECK(match_data_ != nullptr, "out of memory for match data");
}

bool StopRegexMembers::contains(uint32_t set, uint32_t c) {
  if (c < 128) return regex_->sets_[set].contains_ascii(c);
  Answer& answer = answers_[set];
  if (answer.code_point != c) answer = {c, regex_->sets_[set].contains_other(c, match_data_.get())};
  return answer.is_member;
}

size_t StopRegexMembers::bytes(const StopRegex& regex) {
  constexpr size_t kMatchDataBytes = 256;
  return regex.sets_.size() * sizeof(Answer) + (regex.sets_.empty() ? 0 : kMatchDataBytes);
}

bool StopRegexPlace::holds(StopRegexAssertion assertion) const {
  switch (assertion) {
    case StopRegexAssertion::kTextBegin:
      return is_begin;
    case StopRegexAssertion::kLineBegin:
      return is_begin || (after_newline && !is_end);
    case StopRegexAssertion::kTextEnd:
      return is_end;
    case StopRegexAssertion::kTextEndOrNewline:
      return is_end || (before_newline && is_last);
    case StopRegexAssertion::kLineEnd:
      return is_end || before_newline;
    case StopRegexAssertion::kWordBoundary:
      return after_word != before_word;
    case StopRegexAssertion::kNoWordBoundary:
      return after_word == before_word;
  }
  return false;
}

StopRegexSearch::StopRegexSearch(const StopRegex& regex)
    : regex_(&regex), members_(regex), seen_(regex.code_.size(), 0) {}

size_t StopRegex::bytes() const {
  size_t out = code_.capacity() * sizeof(StopRegexInstruction) + sets_.capacity() * sizeof(StopRegexSet);
  for (const StopRegexSet& set : sets_) out += set.bytes();
  return out;
}

size_t StopRegex::search_bytes() const {
  // The lists of threads and the stack double their capacity when they grow.
  constexpr size_t kInstructionBytes =
      sizeof(uint64_t) + 3 * 2 * sizeof(StopRegexSearch::Thread) + 2 * sizeof(uint32_t);
  return code_.size() * kInstructionBytes + StopRegexMembers::bytes(*this);
}

const std::optional<StopRegexSearch::Match>& StopRegexSearch::append(std::string_view piece) {
  const char* at = piece.data();
  const char* const end = at + piece.size();
  bool ends_in_newline = false;
  while (at < end) {
    if (state_.threads.empty()) {
      if (state_.match) return state_.match;
      at = skip(at, end);
      if (at == end) break;
    }
    const DecodedChar c = decode_valid_utf8(at);
    at += c.num_bytes;
    next_char_ = c.code_point;
    next_is_word_ = members_.is_word(c.code_point);
    if (c.code_point == '\n' && at == end && regex_->sees_last_newline_) {
      ended_ = state_;
      ends_in_newline = true;
      read(ended_, true);
    }
    read(state_, false);
    position_ += c.num_bytes;
    previous_char_ = next_char_;
    previous_is_word_ = next_is_word_;
  }
  next_char_ = kNone;
  next_is_word_ = false;
  if (ends_in_newline) {
    finish_piece(ended_);
    if (ended_.match) {
      state_.match = ended_.match;
      return state_.match;
    }
  }
  finish_piece(state_);
  return state_.match;
}

// Skips bytes with which no match can begin.
const char* StopRegexSearch::skip(const char* at, const char* end) {
  const char* const begin = at;
  while (at < end && !regex_->can_begin_[static_cast<uint8_t>(*at)]) ++at;
  if (at == begin) return at;
  position_ += static_cast<uint64_t>(at - begin);
  previous_char_ = decode_valid_utf8(previous_valid_utf8(at)).code_point;
  previous_is_word_ = members_.is_word(previous_char_);
  return at;
}

// Moves the threads over next_char_. With `is_last` the text ends after it.
void StopRegexSearch::read(State& state, bool is_last) {
  ++stamp_;
  next_.clear();
  bool is_cut = state.match.has_value();  // a match begins further left than the threads that would be added
  for (const Thread& thread : state.threads) {
    if (!follow(thread, is_last)) continue;
    state.match = Match{thread.begin, position_};
    is_cut = true;
    break;
  }
  if (!is_cut) follow({position_, 0}, is_last);
  state.threads.swap(next_);
}

// Looks for a match that ends at the present end of the text, and for the first place where a later match may
// begin.
void StopRegexSearch::finish_piece(State& state) {
  ++stamp_;
  hold_ = position_;
  for (const Thread& thread : state.threads) {
    if (!follow(thread, true)) continue;
    state.match = Match{thread.begin, position_};
    return;
  }
}

// Visits the instructions that the thread reaches without reading a character. Returns true at a match;
// otherwise next_ gets the threads that continue after next_char_. At the text's end, where there is no
// next_char_, hold_ is moved to the beginning of a thread that may continue.
bool StopRegexSearch::follow(const Thread& thread, bool is_last) {
  stack_.assign(1, thread.pc);
  while (!stack_.empty()) {
    uint32_t pc = stack_.back();
    stack_.pop_back();
    while (seen_[pc] != stamp_) {
      seen_[pc] = stamp_;
      ++steps_;
      const StopRegexInstruction& instruction = regex_->code_[pc];
      bool goes_on = false;
      switch (instruction.op) {
        case Op::kChar:
          goes_on = instruction.value == next_char_;
          break;
        case Op::kNotNewline:
          goes_on = next_char_ != '\n';
          break;
        case Op::kAny:
          goes_on = true;
          break;
        case Op::kSet:
          goes_on = next_char_ != kNone && members_.contains(instruction.value, next_char_);
          break;
        case Op::kAssertion: {
          const auto assertion = static_cast<StopRegexAssertion>(instruction.value);
          const bool is_past = assertion == StopRegexAssertion::kTextBegin ||
                               (assertion == StopRegexAssertion::kLineBegin && previous_char_ != '\n');
          if (next_char_ == kNone && !is_past) hold_ = std::min(hold_, thread.begin);
          if (!holds(assertion, is_last)) break;
          pc = instruction.next;
          continue;
        }
        case Op::kSplit:
          stack_.push_back(instruction.other);
          [[fallthrough]];
        case Op::kJump:
          pc = instruction.next;
          continue;
        case Op::kMatch:
          if (thread.begin < position_) return true;
          break;
      }
      if (!instruction.reads()) break;
      if (next_char_ == kNone) {
        hold_ = std::min(hold_, thread.begin);
      } else if (goes_on) {
        next_.push_back({thread.begin, instruction.next});
      }
      break;
    }
  }
  return false;
}

bool StopRegexSearch::holds(StopRegexAssertion assertion, bool is_last) const {
  const StopRegexPlace place{.is_begin = position_ == 0,
                             .is_end = next_char_ == kNone,
                             .is_last = is_last,
                             .after_newline = previous_char_ == '\n',
                             .before_newline = next_char_ == '\n',
                             .after_word = previous_is_word_,
                             .before_word = next_is_word_};
  return place.holds(assertion);
}

}  // namespace hadal
