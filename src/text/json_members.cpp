#include "text/json_members.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/cancel.h"

namespace hadal {
namespace {

// The bytes between two calls of check_cancelled().
constexpr size_t kPieceBytes = size_t{64} << 10;

constexpr size_t kLeastMemberBytes = 5;
static_assert(kMaxObjectMembers * kMaxObjectMembers <= kMaxMemberSquares);  // short texts pass both limits

struct Container {
  size_t begin = 0;  // its bracket in the text
  size_t num_members = 0;
  bool is_object = false;
  bool takes_key = false;  // an object after its bracket or a comma
};

// Returns the position of the first quote or backslash in [at, end) of the text, or `end`.
size_t find_special(const char* text, size_t at, size_t end) {
  constexpr uint64_t kOnes = 0x0101010101010101U;
  const auto has_zero_byte = [](uint64_t word) { return (word - kOnes) & ~word & (kOnes << 7U); };
  for (; at + sizeof(uint64_t) <= end; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text + at, sizeof(word));
    if ((has_zero_byte(word ^ (kOnes * '"')) | has_zero_byte(word ^ (kOnes * '\\'))) != 0) break;
  }
  while (at < end && text[at] != '"' && text[at] != '\\') ++at;
  return at;
}

// MemberCount follows the brackets, commas and colons of a JSON text outside of its strings.
class MemberCount {
 public:
  MemberCount(std::string_view what, size_t max_depth) : what_(what), max_depth_(max_depth) {}

  // Reads `c`, which stands at `at`. Returns false once the rest of the text need not be read.
  bool read(char c, size_t at) {
    switch (c) {
      case '{':
      case '[':
        if (open_.size() == max_depth_) return false;
        open_.push_back({.begin = at, .is_object = c == '{', .takes_key = c == '{'});
        return true;
      case '}':
      case ']':
        if (open_.empty() || open_.back().is_object != (c == '}')) return false;
        open_.pop_back();
        return !open_.empty();
      case ',':
        if (open_.empty()) return false;
        open_.back().takes_key = open_.back().is_object;
        return true;
      case ':':
        if (open_.empty() || !open_.back().takes_key) return false;
        return add_member(open_.back());
      default:
        return true;
    }
  }
  Result<void> result() const { return result_; }

 private:
  bool add_member(Container& object) {
    object.takes_key = false;
    ++object.num_members;
    squares_ += 2 * object.num_members - 1;  // n² - (n - 1)²
    if (object.num_members > kMaxObjectMembers) {
      result_ =
          invalid_argument("{} has an object of more than {} members, at byte {}; at most {} are allowed",
                           what_, kMaxObjectMembers, object.begin, kMaxObjectMembers);
    } else if (squares_ > kMaxMemberSquares) {
      result_ = invalid_argument(
          "{} has too many large objects: the squares of their numbers of members add up to more than {}, "
          "the most that is allowed",
          what_, kMaxMemberSquares);
    }
    return result_.ok();
  }

  const std::string_view what_;
  const size_t max_depth_;
  std::vector<Container> open_;
  uint64_t squares_ = 0;
  Result<void> result_;
};

}  // namespace

Result<void> check_json_members(std::string_view text, std::string_view what, size_t max_depth) {
  check_cancelled();
  // Most texts are too short for that many members, of which the shortest is "":0 and a comma.
  if (text.size() <= kLeastMemberBytes * kMaxObjectMembers) return {};
  MemberCount count(what, max_depth);
  bool is_string = false;
  size_t at = 0;
  while (at < text.size()) {
    check_cancelled();
    for (const size_t end = std::min(at + kPieceBytes, text.size()); at < end; ++at) {
      if (is_string) {
        at = find_special(text.data(), at, end);
        if (at == end) break;
        is_string = text[at] == '\\';
        if (is_string) ++at;  // the escaped byte
      } else if (text[at] == '"') {
        is_string = true;
      } else if (!count.read(text[at], at)) {
        return count.result();
      }
    }
  }
  return {};
}

}  // namespace hadal
