// Makes the program of a pattern's tree.
#include <utility>

#include "text/stop/stop_regex.h"
#include "text/utf8.h"

namespace hadal {

using Kind = StopRegexNode::Kind;
using Op = StopRegexInstruction::Op;

// The emitter writes each node as `size` consecutive instructions, which end by falling through to the next
// node.
class StopRegexEmitter {
 public:
  StopRegexEmitter(const StopRegexTree& tree, StopRegex& regex)
      : tree_(tree), regex_(regex), code_(regex.code_) {}

  void emit(uint32_t number) {
    const StopRegexNode& node = tree_.nodes[number];
    const uint32_t end = here() + node.size;
    switch (node.kind) {
      case Kind::kEmpty:
        break;
      case Kind::kChar:
        return add(Op::kChar, node.value);
      case Kind::kNotNewline:
        return add(Op::kNotNewline);
      case Kind::kAny:
        return add(Op::kAny);
      case Kind::kSet:
        return add(Op::kSet, node.value);
      case Kind::kAssertion:
        if (node.value == static_cast<uint32_t>(StopRegexAssertion::kTextEndOrNewline)) {
          regex_.sees_last_newline_ = true;
        }
        return add(Op::kAssertion, node.value);
      case Kind::kSequence:
        for (const uint32_t child : node.children) emit(child);
        break;
      case Kind::kChoice:
        for (size_t i = 0; i + 1 < node.children.size(); ++i) {
          const uint32_t branch_end = here() + 1 + tree_.nodes[node.children[i]].size;
          split(false, here() + 1, branch_end + 1);
          emit(node.children[i]);
          jump(end);
        }
        emit(node.children.back());
        break;
      case Kind::kRepeat:
        repeat(node, end);
        break;
    }
    HADAL_CHECK(here() == end, "a stop expression's program has another size than was computed");
  }

  void add(Op op, uint32_t value = 0) { code_.push_back({.op = op, .value = value, .next = here() + 1}); }

 private:
  uint32_t here() const { return static_cast<uint32_t>(code_.size()); }
  void jump(uint32_t to) { code_.push_back({.op = Op::kJump, .next = to}); }
  // Emits a branch to `body` or `exit`; a lazy repeat prefers `exit`.
  void split(bool is_lazy, uint32_t body, uint32_t exit) {
    code_.push_back({.op = Op::kSplit, .next = is_lazy ? exit : body, .other = is_lazy ? body : exit});
  }

  void repeat(const StopRegexNode& node, uint32_t end) {
    const uint32_t body = node.children[0];
    if (node.max != StopRegexNode::kUnlimited) {
      for (uint32_t i = 0; i < node.max; ++i) {
        if (i >= node.min) split(node.is_lazy, here() + 1, end);
        emit(body);
      }
      return;
    }
    for (uint32_t i = 1; i < node.min; ++i) emit(body);
    if (node.min == 0) split(node.is_lazy, here() + 1, end);
    const uint32_t begin = here();
    emit(body);
    if (tree_.nodes[body].matches_empty) {
      // A repetition that reads nothing ends the loop, as in PCRE2. Therefore the body exists twice. A
      // repetition begins in the first copy, which leaves the loop at its end. Reading a character there
      // continues in the second copy, which repeats at its end.
      jump(end);
      const uint32_t distance = here() - begin;
      for (uint32_t i = begin; i < here(); ++i) {
        if (code_[i].reads()) code_[i].next += distance;
      }
      emit(body);
    }
    split(node.is_lazy, begin, end);
  }

  const StopRegexTree& tree_;
  StopRegex& regex_;
  std::vector<StopRegexInstruction>& code_;
};

Result<StopRegex> StopRegex::compile(std::string_view pattern, uint32_t max_states) {
  if (pattern.size() > kMaxStopRegexBytes) {
    return invalid_argument("has {} bytes; at most {} are allowed", pattern.size(), kMaxStopRegexBytes);
  }
  if (!is_valid_utf8(pattern)) return invalid_argument("is not UTF-8");
  HADAL_ASSIGN_OR_RETURN(const StopRegexTree tree, parse_stop_regex(pattern, max_states));
  StopRegex regex;
  regex.num_states_ = tree.num_states;
  for (const StopRegexSetText& text : tree.sets) {
    HADAL_ASSIGN_OR_RETURN(StopRegexSet set, StopRegexSet::compile(text));
    regex.sets_.push_back(std::move(set));
  }
  regex.code_.reserve(tree.nodes[tree.root].size + 1);
  StopRegexEmitter emitter(tree, regex);
  emitter.emit(tree.root);
  emitter.add(Op::kMatch);
  for (const StopRegexInstruction& instruction : regex.code_) {
    const auto assertion = static_cast<StopRegexAssertion>(instruction.value);
    if (instruction.op != Op::kAssertion || regex.words_ || assertion < StopRegexAssertion::kWordBoundary)
      continue;
    HADAL_ASSIGN_OR_RETURN(StopRegexSet set, StopRegexSet::compile({.text = "\\w"}));
    regex.words_ = static_cast<uint32_t>(regex.sets_.size());
    regex.sets_.push_back(std::move(set));
  }
  regex.find_beginnings();
  return regex;
}

void StopRegex::find_beginnings() {
  std::vector<bool> seen(code_.size(), false);
  std::vector<uint32_t> stack = {0};
  while (!stack.empty()) {
    const uint32_t pc = stack.back();
    stack.pop_back();
    if (seen[pc]) continue;
    seen[pc] = true;
    const StopRegexInstruction& instruction = code_[pc];
    std::string text;
    switch (instruction.op) {
      case Op::kChar:
        append_utf8(text, instruction.value);
        can_begin_[static_cast<uint8_t>(text[0])] = true;
        break;
      case Op::kNotNewline:
      case Op::kAny:
        for (uint32_t byte = 0; byte < 256; ++byte) {
          const bool begins_char = byte < 0x80 || byte >= 0xC2;
          if (begins_char && (byte != '\n' || instruction.op == Op::kAny)) can_begin_[byte] = true;
        }
        break;
      case Op::kSet:
        for (uint32_t byte = 0; byte < 256; ++byte) {
          const StopRegexSet& set = sets_[instruction.value];
          const bool begins =
              byte < 0x80 ? set.contains_ascii(byte) : set.can_begin_with(static_cast<uint8_t>(byte));
          if (begins) can_begin_[byte] = true;
        }
        break;
      case Op::kSplit:
        stack.push_back(instruction.other);
        [[fallthrough]];
      case Op::kAssertion:
      case Op::kJump:
        stack.push_back(instruction.next);
        break;
      case Op::kMatch:
        break;
    }
  }
}

}  // namespace hadal
