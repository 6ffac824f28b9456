#include <algorithm>
#include <utility>

#include "text/stop/stop_regex_syntax.h"
#include "text/utf8.h"

namespace hadal {
namespace {

using Kind = StopRegexNode::Kind;
using Assertion = StopRegexAssertion;

struct Flags {
  bool caseless = false;
  bool multiline = false;
  bool dot_is_any = false;
  bool extended = false;
};

// If one of these begins with another, the longer one comes first.
constexpr StopRegexRefusal kRefusedGroups[] = {
    {"(*", "verbs are"},
    {"(?=", "look-ahead is"},
    {"(?!", "look-ahead is"},
    {"(?*", "look-ahead is"},
    {"(?<=", "look-behind is"},
    {"(?<!", "look-behind is"},
    {"(?<*", "look-behind is"},
    {"(?>", "atomic groups are"},
    {"(?|", "branch reset groups are"},
    {"(?(", "conditionals are"},
    {"(?C", "callouts are"},
    {"(?R", "recursion is"},
    {"(?&", "recursion is"},
    {"(?+", "recursion is"},
    {"(?P>", "recursion is"},
    {"(?P=", "back-references are"},
    {"(?^", "the flag ^ is"},
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

class Parser {
 public:
  Parser(std::string_view pattern, uint32_t max_states) : pattern_(pattern), max_states_(max_states) {}

  Result<StopRegexTree> parse() {
    Flags flags;
    HADAL_ASSIGN_OR_RETURN(tree_.root, alternatives(flags, 0));
    if (at_ < pattern_.size()) return invalid_argument("a closing parenthesis at byte {} has no group", at_);
    const uint64_t states = uint64_t{tree_.nodes[tree_.root].size} + 1 + states_of_sets();
    if (states > max_states_) return too_large();
    tree_.num_states = static_cast<uint32_t>(states);
    return std::move(tree_);
  }

 private:
  struct Item {
    uint32_t node = 0;
    bool is_repeatable = true;
  };

  bool next_is(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!next_is(text)) return false;
    at_ += text.size();
    return true;
  }
  char peek(size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool at_end() const { return at_ >= pattern_.size(); }

  uint64_t states_of_sets() const { return set_states_ + caseless_chars_ / kCaselessCharsPerState; }
  Status too_large() const {
    return invalid_argument(
        "needs more than the {} states that are left for it; repeats multiply states, and "
        "ranges under the flag i have a state for each {} characters",
        max_states_, kCaselessCharsPerState);
  }
  Result<uint32_t> add(StopRegexNode node, uint64_t size) {
    if (size > max_states_) return too_large();
    node.size = static_cast<uint32_t>(size);
    tree_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(tree_.nodes.size() - 1);
  }
  Result<uint32_t> add_one(Kind kind, uint32_t value) {
    return add({.kind = kind, .matches_empty = kind == Kind::kAssertion, .value = value}, 1);
  }
  Result<uint32_t> add_empty() { return add({}, 0); }

  // Adds a set, whose place in the pattern is `at`. Equal sets share one entry.
  Result<uint32_t> add_set(std::string text, bool is_caseless, size_t at) {
    auto& sets = tree_.sets;
    const auto same = std::find_if(sets.begin(), sets.end(), [&](const StopRegexSetText& set) {
      return set.is_caseless == is_caseless && set.text == text;
    });
    const auto number = static_cast<uint32_t>(same - sets.begin());
    if (same == sets.end()) {
      if (text.size() > 1) set_states_ += kStopRegexSetStates;
      if (is_caseless && text[0] == '[') caseless_chars_ += stop_regex_range_chars(text);
      if (states_of_sets() > max_states_) return too_large();
      sets.push_back({std::move(text), is_caseless, at});
    }
    return add_one(Kind::kSet, number);
  }

  // Skips comments, and with the flag x also white space and # comments.
  Result<void> skip_ignored(const Flags& flags) {
    while (!at_end()) {
      if (next_is("(?#")) {
        const size_t end = pattern_.find(')', at_);
        if (end == pattern_.npos) return invalid_argument("the comment at byte {} has no end", at_);
        at_ = end + 1;
      } else if (flags.extended && peek() == '#') {
        at_ = std::min(pattern_.find('\n', at_), pattern_.size());
      } else if (flags.extended && (peek() == ' ' || (peek() >= '\t' && peek() <= '\r'))) {
        ++at_;
      } else if (!flags.extended ||
                 !(take("\u0085") || take("\u200e") || take("\u200f") || take("\u2028") || take("\u2029"))) {
        break;
      }
    }
    return {};
  }

  // Parses the alternatives of a group. `flags` belong to the whole group: a flag that a branch changes stays
  // changed in the branches after it.
  Result<uint32_t> alternatives(Flags flags, uint32_t depth) {
    StopRegexNode choice{.kind = Kind::kChoice, .matches_empty = false};
    uint64_t size = 0;
    do {
      HADAL_ASSIGN_OR_RETURN(const uint32_t branch, sequence(flags, depth));
      choice.matches_empty = choice.matches_empty || tree_.nodes[branch].matches_empty;
      size += tree_.nodes[branch].size;
      choice.children.push_back(branch);
    } while (take("|"));
    if (choice.children.size() == 1) return choice.children[0];
    size += 2 * (choice.children.size() - 1);
    return add(std::move(choice), size);
  }

  Result<uint32_t> sequence(Flags& flags, uint32_t depth) {
    StopRegexNode sequence{.kind = Kind::kSequence};
    uint64_t size = 0;
    while (true) {
      HADAL_RETURN_IF_ERROR(skip_ignored(flags));
      if (at_end() || peek() == '|' || peek() == ')') break;
      HADAL_ASSIGN_OR_RETURN(Item item, atom(flags, depth));
      HADAL_RETURN_IF_ERROR(skip_ignored(flags));
      uint32_t min = 0;
      uint32_t max = 0;
      const size_t at = at_;
      HADAL_ASSIGN_OR_RETURN(const bool is_repeat, quantifier(min, max));
      if (is_repeat) {
        if (!item.is_repeatable) return nothing_to_repeat(at);
        HADAL_ASSIGN_OR_RETURN(item.node, repeat(item.node, min, max, flags, at));
      }
      const StopRegexNode& node = tree_.nodes[item.node];
      sequence.matches_empty = sequence.matches_empty && node.matches_empty;
      size += node.size;
      sequence.children.push_back(item.node);
    }
    if (sequence.children.size() == 1) return sequence.children[0];
    return add(std::move(sequence), size);
  }

  static Status nothing_to_repeat(size_t at) {
    return invalid_argument("the quantifier at byte {} follows nothing that can be repeated", at);
  }

  // Reads *, +, ?, {m}, {m,} or {m,n}; a brace that begins none of these is a literal.
  Result<bool> quantifier(uint32_t& min, uint32_t& max) {
    const size_t begin = at_;
    if (take("*")) {
      min = 0;
      max = StopRegexNode::kUnlimited;
    } else if (take("+")) {
      min = 1;
      max = StopRegexNode::kUnlimited;
    } else if (take("?")) {
      min = 0;
      max = 1;
    } else if (take("{")) {
      const auto number = [&](uint32_t& out) {
        const size_t first = at_;
        for (out = 0; is_digit(peek()); ++at_) {
          out = std::min<uint32_t>(out * 10 + static_cast<uint32_t>(peek() - '0'), kMaxStopRegexRepeat + 1);
        }
        return at_ > first;
      };
      bool is_quantifier = number(min);
      max = min;
      if (is_quantifier && take(",") && !number(max)) max = StopRegexNode::kUnlimited;
      is_quantifier = is_quantifier && take("}");
      if (!is_quantifier) {
        at_ = begin;
        return false;
      }
      const bool too_many = max != StopRegexNode::kUnlimited && max > kMaxStopRegexRepeat;
      if (too_many || min > kMaxStopRegexRepeat) {
        return invalid_argument("the quantifier at byte {} has a number above {}", begin,
                                kMaxStopRegexRepeat);
      }
      if (min > max)
        return invalid_argument(
            "the quantifier at byte {} is {{{},{}}}; its first number must not be larger than its second",
            begin, min, max);
    } else {
      return false;
    }
    return true;
  }

  Result<uint32_t> repeat(uint32_t child, uint32_t min, uint32_t max, const Flags& flags, size_t at) {
    const std::string_view construct = pattern_.substr(at, at_ - at);
    HADAL_RETURN_IF_ERROR(skip_ignored(flags));
    const bool is_lazy = take("?");
    if (!is_lazy && next_is("+")) {
      return stop_regex_refusal("possessive quantifiers are", fmt::format("{}+", construct), at);
    }
    const StopRegexNode& node = tree_.nodes[child];
    if (node.size == 0 || max == 0) return add_empty();
    uint64_t size = 0;
    if (max == StopRegexNode::kUnlimited) {
      size = (min == 0 ? 1 : uint64_t{min - 1} * node.size) + stop_regex_loop_size(node);
    } else {
      size = uint64_t{min} * node.size + uint64_t{max - min} * (uint64_t{node.size} + 1);
    }
    const bool matches_empty = min == 0 || node.matches_empty;
    return add({.kind = Kind::kRepeat,
                .is_lazy = is_lazy,
                .matches_empty = matches_empty,
                .min = min,
                .max = max,
                .children = {child}},
               size);
  }

  Result<Item> atom(Flags& flags, uint32_t depth) {
    const size_t begin = at_;
    const char c = peek();
    uint32_t min = 0;
    uint32_t max = 0;
    HADAL_ASSIGN_OR_RETURN(const bool is_quantifier, quantifier(min, max));
    if (is_quantifier) return nothing_to_repeat(begin);
    if (c == '(') return group(flags, depth);
    if (c == '[') return character_class(flags);
    if (c == '\\') return escape(flags);
    if (take("^")) return assertion(flags.multiline ? Assertion::kLineBegin : Assertion::kTextBegin);
    if (take("$")) return assertion(flags.multiline ? Assertion::kLineEnd : Assertion::kTextEndOrNewline);
    if (take(".")) return item(add_one(flags.dot_is_any ? Kind::kAny : Kind::kNotNewline, 0));
    return literal(flags);
  }

  Result<Item> assertion(Assertion kind) {
    HADAL_ASSIGN_OR_RETURN(const uint32_t node, add_one(Kind::kAssertion, static_cast<uint32_t>(kind)));
    return Item{node, false};
  }

  static Result<Item> item(const Result<uint32_t>& node) {
    if (!node.ok()) return node.status();
    return Item{*node, true};
  }

  Result<Item> literal(const Flags& flags) {
    const size_t begin = at_;
    const DecodedChar c = decode_valid_utf8(pattern_.data() + at_);
    at_ += c.num_bytes;
    if (flags.caseless && (c.num_bytes > 1 || is_ascii_letter(pattern_[begin]))) {
      std::string text(pattern_.substr(begin, c.num_bytes));
      if (text.size() == 1) text[0] = static_cast<char>(text[0] | 0x20);
      return item(add_set(std::move(text), true, begin));
    }
    return item(add_one(Kind::kChar, c.code_point));
  }

  Result<Item> group(Flags& flags, uint32_t depth) {
    const size_t begin = at_;
    for (const StopRegexRefusal& refusal : kRefusedGroups) {
      if (next_is(refusal.begins)) return stop_regex_refusal(refusal.what, refusal.begins, begin);
    }
    if (depth == kMaxStopRegexDepth) {
      return invalid_argument("the group at byte {} is nested deeper than {} groups", begin,
                              kMaxStopRegexDepth);
    }
    Flags inner = flags;
    ++at_;
    if (take("?")) {
      if (take("P<") || take("<")) {
        HADAL_RETURN_IF_ERROR(group_name('>'));
      } else if (take("'")) {
        HADAL_RETURN_IF_ERROR(group_name('\''));
      } else {
        HADAL_RETURN_IF_ERROR(read_flags(inner, begin));
        if (take(")")) {  // the flags apply to the rest of the enclosing group
          flags = inner;
          HADAL_ASSIGN_OR_RETURN(const uint32_t node, add_empty());
          return Item{node, false};
        }
        ++at_;  // the colon
      }
    }
    HADAL_ASSIGN_OR_RETURN(const uint32_t node, alternatives(inner, depth + 1));
    if (!take(")")) return invalid_argument("the group at byte {} has no closing parenthesis", begin);
    return Item{node, true};
  }

  Result<void> group_name(char end) {
    const size_t begin = at_;
    while (is_ascii_letter(peek()) || peek() == '_' || (at_ > begin && is_digit(peek()))) ++at_;
    if (at_ == begin || peek() != end || at_ - begin > 32) {
      return invalid_argument("the name of the group at byte {} is not 1 to 32 letters, digits and _", begin);
    }
    ++at_;
    return {};
  }

  // Reads flags up to the colon or the closing parenthesis.
  Result<void> read_flags(Flags& flags, size_t begin) {
    bool value = true;
    for (; !at_end() && peek() != ':' && peek() != ')'; ++at_) {
      const char c = peek();
      if (is_digit(c) || (c == '-' && is_digit(peek(1)))) {
        return stop_regex_refusal("recursion is", pattern_.substr(begin, at_ + 1 - begin), begin);
      }
      if (c == '-' && value) {
        value = false;
      } else if (c == 'i') {
        flags.caseless = value;
      } else if (c == 'm') {
        flags.multiline = value;
      } else if (c == 's') {
        flags.dot_is_any = value;
      } else if (c == 'x' && peek(1) != 'x') {
        flags.extended = value;
      } else {
        const DecodedChar flag = decode_valid_utf8(pattern_.data() + at_);
        return invalid_argument("the flag {} at byte {} is not supported; allowed are i, m, s, x",
                                pattern_.substr(at_, flag.num_bytes), at_);
      }
    }
    if (at_end()) return invalid_argument("the group at byte {} has no closing parenthesis", begin);
    return {};
  }

  Result<Item> character_class(const Flags& flags) {
    HADAL_ASSIGN_OR_RETURN(const size_t size, stop_regex_class_size(pattern_, at_));
    return set(size, flags);
  }

  // Reads a set of `size` bytes.
  Result<Item> set(size_t size, const Flags& flags) {
    const size_t begin = std::exchange(at_, at_ + size);
    return item(add_set(std::string(pattern_.substr(begin, size)), flags.caseless, begin));
  }

  Result<Item> escape(const Flags& flags) {
    const char c = peek(1);
    const bool is_last = at_ + 1 == pattern_.size();
    if (!is_last && !is_ascii_letter(c) && !is_digit(c)) {
      ++at_;
      return literal(flags);
    }
    HADAL_ASSIGN_OR_RETURN(const size_t size, stop_regex_escape_size(pattern_, at_));
    if (size > 2) return set(size, flags);
    const auto character = [&](char value) {
      at_ += size;
      return item(add_one(Kind::kChar, static_cast<unsigned char>(value)));
    };
    const auto position = [&](Assertion kind) {
      at_ += size;
      return assertion(kind);
    };
    switch (c) {
      case 'A':
        return position(Assertion::kTextBegin);
      case 'z':
        return position(Assertion::kTextEnd);
      case 'Z':
        return position(Assertion::kTextEndOrNewline);
      case 'b':
        return position(Assertion::kWordBoundary);
      case 'B':
        return position(Assertion::kNoWordBoundary);
      case 'a':
        return character('\a');
      case 'e':
        return character('\x1b');
      case 'f':
        return character('\f');
      case 'n':
        return character('\n');
      case 'r':
        return character('\r');
      case 't':
        return character('\t');
      case 'N':
        at_ += size;
        return item(add_one(Kind::kNotNewline, 0));
      default:
        return set(size, flags);
    }
  }

  std::string_view pattern_;
  uint32_t max_states_;
  size_t at_ = 0;
  uint64_t set_states_ = 0;
  uint64_t caseless_chars_ = 0;  // of ranges
  StopRegexTree tree_;
};

}  // namespace

Result<StopRegexTree> parse_stop_regex(std::string_view pattern, uint32_t max_states) {
  return Parser(pattern, max_states).parse();
}

}  // namespace hadal
