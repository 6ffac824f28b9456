#include "client/bench_text.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace hadal::client {
namespace {

constexpr std::string_view kWords[] = {
    "the",     "a",        "of",      "and",     "to",      "in",      "that",     "was",
    "with",    "for",      "river",   "stone",   "engine",  "light",   "garden",   "winter",
    "letter",  "market",   "window",  "bridge",  "sailor",  "morning", "paper",    "number",
    "city",    "question", "answer",  "machine", "forest",  "table",   "walked",   "carried",
    "opened",  "wrote",    "counted", "found",   "turned",  "built",   "measured", "kept",
    "slowly",  "often",    "never",   "again",   "perhaps", "under",   "across",   "between",
    "before",  "after",    "small",   "green",   "heavy",   "quiet",   "distant",  "seven",
    "hundred", "first",    "other",   "every",   "music",   "water",   "village",  "captain",
};

}  // namespace

int64_t draw_between(std::mt19937_64& random, int64_t low, int64_t high) {
  const uint64_t width = static_cast<uint64_t>(high - low) + 1;
  // The remainder makes small values more likely, by a factor below 1 + 2^-40 for every width that is used
  // here.
  return width == 0 ? static_cast<int64_t>(random()) : low + static_cast<int64_t>(random() % width);
}

TextMaker::TextMaker(const Tokenizer& tokenizer, uint64_t seed) : tokenizer_(tokenizer), random_(seed) {
  num_added_ = static_cast<int64_t>(tokenizer.encode("a", true).size() - tokenizer.encode("a", false).size());
}

int64_t TextMaker::draw(int64_t low, int64_t high) {
  return draw_between(random_, low, high);
}

int64_t TextMaker::count(const std::string& text) const {
  return static_cast<int64_t>(tokenizer_.encode(text, true).size());
}

void TextMaker::append_words(std::string& text, int64_t num_words) {
  for (int64_t i = 0; i < num_words; ++i) {
    const int64_t mark = text.empty() ? 9 : draw(0, 15);
    if (mark == 0) text += '.';
    if (mark == 1) text += ',';
    if (!text.empty()) text += ' ';
    text += kWords[draw(0, std::size(kWords) - 1)];
  }
}

std::string TextMaker::make(int64_t num_tokens, int64_t* actual) {
  const int64_t wanted = std::max<int64_t>(num_tokens - num_added_, 1);
  std::string text;
  append_words(text, wanted);  // each word is at least one token
  return fit(std::move(text), wanted, actual);
}

std::string TextMaker::cut(const std::string& source, int64_t num_tokens, int64_t* actual) {
  const int64_t wanted = std::max<int64_t>(num_tokens - num_added_, 1);
  std::vector<int32_t> ids = tokenizer_.encode(source, false);
  const size_t once = ids.size();
  while (once > 0 && static_cast<int64_t>(ids.size()) < wanted) ids.push_back(ids[ids.size() - once]);
  ids.resize(std::min(ids.size(), static_cast<size_t>(wanted)));
  return fit(tokenizer_.decode(ids, false), wanted, actual);
}

// Cuts off the tokens that are too many, or appends words for those that are missing. A text that was cut
// between two tokens may be encoded differently afterwards, so several rounds can be necessary.
std::string TextMaker::fit(std::string text, int64_t wanted, int64_t* actual) {
  constexpr int kRounds = 16;
  std::string best;
  int64_t best_count = -1;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<int32_t> ids = tokenizer_.encode(text, false);
    const auto have = static_cast<int64_t>(ids.size());
    if (best_count < 0 || std::abs(have - wanted) < std::abs(best_count - wanted)) {
      best = text;
      best_count = have;
    }
    if (have == wanted) break;
    if (have > wanted) {
      ids.resize(static_cast<size_t>(std::max<int64_t>(wanted - round / 4, 1)));
      text = tokenizer_.decode(ids, false);
    } else {
      append_words(text, round < 4 ? wanted - have : 1);
    }
  }
  if (actual != nullptr) *actual = best_count + num_added_;
  return best;
}

}  // namespace hadal::client
