// Makes synthetic prose of an exact number of tokens; the same seed gives the same prose. One thread uses an
// object.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace hadal::client {

class TextMaker {
 public:
  // `tokenizer` must outlive the object.
  TextMaker(const Tokenizer& tokenizer, uint64_t seed);

  // Returns text that encodes to `num_tokens` tokens, including those that the tokenizer adds around a
  // prompt; the text has at least one token of its own. In rare cases no cut gives exactly that number, and
  // the text with the nearest number is used. `actual` (may be null) receives the number of tokens.
  std::string make(int64_t num_tokens, int64_t* actual);

  // Does the same with text cut out of `source`, which is repeated if it is too short.
  std::string cut(const std::string& source, int64_t num_tokens, int64_t* actual);

  // Draws evenly from [low, high].
  int64_t draw(int64_t low, int64_t high);

  // Returns the number of tokens that the tokenizer adds around a prompt.
  int64_t num_added() const { return num_added_; }
  int64_t count(const std::string& text) const;

 private:
  void append_words(std::string& text, int64_t num_words);
  std::string fit(std::string text, int64_t wanted, int64_t* actual);

  const Tokenizer& tokenizer_;
  std::mt19937_64 random_;
  int64_t num_added_ = 0;
};

// Draws evenly from [low, high], with the same result on every platform.
int64_t draw_between(std::mt19937_64& random, int64_t low, int64_t high);

// Shuffles by the method of Fisher and Yates, with the same result on every platform.
template <typename T>
void shuffle_by(std::mt19937_64& random, std::vector<T>& items) {
  for (size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[static_cast<size_t>(draw_between(random, 0, static_cast<int64_t>(i) - 1))]);
  }
}

}  // namespace hadal::client
