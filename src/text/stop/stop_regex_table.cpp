// Makes the table of an expression's program.
#include <algorithm>
#include <map>

#include "text/stop/stop_regex_bits.h"
#include "text/stop/stop_regex_detector.h"

namespace hadal {

using Op = StopRegexInstruction::Op;

namespace {

using Words = std::vector<uint64_t>;

bool is_member(const StopRegexInstruction& instruction) {
  return instruction.op != Op::kSplit && instruction.op != Op::kJump;
}

// StopRegexWays finds what comes after the members of one group: those that read, or the assertions of one
// kind. An assertion that holds lets threads pass all others of its kind at the same place.
class StopRegexWays {
 public:
  struct Place {
    std::vector<uint32_t> previous;  // the members of the group that continue here
    Words follows;                   // the members that a thread reaches from here without reading
    Words settles;                   // the members of the group that continue here or further on that way
  };

  StopRegexWays(const std::vector<StopRegexInstruction>& code, const std::vector<uint32_t>& numbers,
                std::optional<uint32_t> assertion)
      : code_(code), numbers_(numbers), assertion_(assertion), places_(code.size()) {
    for (size_t pc = 0; pc < code.size(); ++pc) {
      if (assertion ? !passes(pc) : !code[pc].reads()) continue;
      uint32_t next = code[pc].next;
      while (code[next].op == Op::kJump) next = code[next].next;
      places_[next].previous.push_back(numbers[pc]);
    }
  }

  const std::vector<uint32_t>& previous(uint32_t pc) const { return places_[pc].previous; }

  // No way through branches, jumps and assertions leads back to where it began (StopRegexEmitter::repeat).
  const Place& place(uint32_t pc) {
    Place& place = places_[pc];
    if (!place.follows.empty()) return place;
    const size_t num_words = (numbers_.back() + 64) / 64;
    place.follows.resize(num_words);
    place.settles.resize(num_words);
    const StopRegexInstruction& instruction = code_[pc];
    if (is_member(instruction)) set_stop_bit(place.follows, numbers_[pc]);
    for (const uint32_t member : place.previous) set_stop_bit(place.settles, member);
    if (!is_member(instruction) || passes(pc)) include(place, instruction.next);
    if (instruction.op == Op::kSplit) include(place, instruction.other);
    return place;
  }

 private:
  bool passes(size_t pc) const { return code_[pc].op == Op::kAssertion && code_[pc].value == assertion_; }

  void include(Place& place, uint32_t pc) {
    const Place& next = this->place(pc);
    for (size_t i = 0; i < place.follows.size(); ++i) {
      place.follows[i] |= next.follows[i];
      place.settles[i] |= next.settles[i];
    }
  }

  const std::vector<StopRegexInstruction>& code_;
  const std::vector<uint32_t>& numbers_;
  const std::optional<uint32_t> assertion_;
  std::vector<Place> places_;
};

}  // namespace

StopRegexTable::StopRegexTable(const StopRegex& regex) : regex_(&regex) {
  const std::vector<StopRegexInstruction>& code = regex.code_;
  std::vector<uint32_t> numbers;  // of the member at, or before which, an instruction stands
  uint32_t num_members = 0;
  std::array<bool, kNumAssertions> occurs{};
  for (const StopRegexInstruction& instruction : code) {
    numbers.push_back(num_members);
    num_members += is_member(instruction) ? 1 : 0;
    if (instruction.op == Op::kAssertion) occurs[instruction.value] = true;
  }
  num_words_ = (num_members + 63) / 64;
  match_ = num_members - 1;
  ascii_.resize(128 * num_words_);
  any_other_.resize(num_words_);
  sets_.resize(regex.sets_.size() * num_words_);
  has_row_.resize(num_words_);
  row_of_.resize(num_members);
  steps_.resize(kNumSteps * num_words_);
  if (std::count(occurs.begin(), occurs.end(), true) > 0) assertions_.resize(kNumAssertions * num_words_);
  for (size_t pc = 0; pc < code.size(); ++pc) {
    if (is_member(code[pc])) add_member(code[pc], numbers[pc]);
  }
  std::sort(others_.begin(), others_.end());

  StopRegexWays readers(code, numbers, {});
  start_ = readers.place(0).follows;
  clear_stop_bit(start_, match_);
  add_rows(readers, true);
  for (uint32_t kind = 0; kind < kNumAssertions; ++kind) {
    if (!occurs[kind]) continue;
    StopRegexWays ways(code, numbers, kind);
    add_rows(ways, false);
  }
}

template <typename Ways>
void StopRegexTable::add_rows(Ways& ways, bool has_steps) {
  struct NewRow {
    size_t number = 0;
    Words settles, members;
  };
  std::map<Words, NewRow> rows;
  const size_t num_before = rows_.size();
  for (uint32_t pc = 0; pc < regex_->code_.size(); ++pc) {
    for (const uint32_t member : ways.previous(pc)) {
      const auto& [previous, follows, settles] = ways.place(pc);
      Words rest = follows;
      for (size_t step = 0; has_steps && step < kNumSteps && member + step <= match_; ++step) {
        if (!has_stop_bit(rest, member + step)) continue;
        clear_stop_bit(rest, member + step);
        set_stop_bit({steps_.data() + step * num_words_, num_words_}, member);
      }
      if (std::all_of(rest.begin(), rest.end(), [](Word word) { return word == 0; })) continue;
      set_stop_bit(has_row_, member);
      NewRow& row = rows.try_emplace(std::move(rest), num_before + rows.size(), settles, Words(num_words_))
                        .first->second;
      row_of_[member] = static_cast<uint32_t>(row.number);
      set_stop_bit(row.members, member);
      for (size_t i = 0; i < num_words_; ++i) row.settles[i] &= settles[i];
    }
  }
  rows_.resize(num_before + rows.size());
  for (auto& [follows, row] : rows) {
    for (size_t i = 0; i < num_words_; ++i) row.settles[i] |= row.members[i];
    rows_[row.number] = {.follows = add_parts(follows), .settles = add_parts(row.settles)};
  }
}

void StopRegexTable::add_member(const StopRegexInstruction& instruction, size_t member) {
  const uint32_t value = instruction.value;
  const auto add_ascii = [&](auto reads) {
    for (uint32_t c = 0; c < 128; ++c) {
      if (reads(c)) set_stop_bit({ascii_.data() + c * num_words_, num_words_}, member);
    }
  };
  switch (instruction.op) {
    case Op::kChar:
      add_ascii([&](uint32_t c) { return c == value; });
      if (value >= 128) others_.emplace_back(value, static_cast<uint32_t>(member));
      break;
    case Op::kNotNewline:
    case Op::kAny:
      add_ascii([&](uint32_t c) { return c != '\n' || instruction.op == Op::kAny; });
      set_stop_bit(any_other_, member);
      break;
    case Op::kSet:
      add_ascii([&](uint32_t c) { return regex_->sets_[value].contains_ascii(c); });
      set_stop_bit({sets_.data() + value * num_words_, num_words_}, member);
      break;
    case Op::kAssertion:
      set_stop_bit({assertions_.data() + value * num_words_, num_words_}, member);
      break;
    default:
      break;
  }
}

StopRegexTable::Parts StopRegexTable::add_parts(const std::vector<Word>& set) {
  const auto begin = static_cast<uint32_t>(parts_.size());
  for (uint32_t i = 0; i < num_words_; ++i) {
    if (set[i] != 0) parts_.push_back({.word = i, .bits = set[i]});
  }
  return {.begin = begin, .end = static_cast<uint32_t>(parts_.size())};
}

size_t StopRegexTable::bytes() const {
  size_t words = 0;
  for (const auto* list : {&start_, &ascii_, &any_other_, &sets_, &assertions_, &steps_, &has_row_})
    words += list->capacity();
  return words * sizeof(Word) + parts_.capacity() * sizeof(Part) + others_.capacity() * sizeof(others_[0]) +
         row_of_.capacity() * sizeof(row_of_[0]) + rows_.capacity() * sizeof(Row);
}

size_t StopRegexTable::detector_bytes() const {
  return 6 * num_words_ * sizeof(Word) + StopRegexMembers::bytes(*regex_);
}

}  // namespace hadal
