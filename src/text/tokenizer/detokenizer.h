// Turns token ids into text, one at a time, as a stream is generated. Text is returned as soon as its last
// byte is known and never ends inside a UTF-8 character; everything that append returns, joined, equals
// Tokenizer::decode of the same ids. An object belongs to one stream and is used by one thread at a time; the
// tokenizer may be shared and must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/tokenizer/tokenizer.h"

namespace hadal {

class Detokenizer {
 public:
  // With `skip_special_tokens`, tokens that tokenizer.json marks special give no text; other tokens always
  // do.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // Returns the text that `id` completes, possibly empty. Bytes that can no longer become UTF-8 are returned
  // as U+FFFD. The view is valid until the next call.
  std::string_view append(int32_t id);

  // Ends the stream: an incomplete character is returned as U+FFFD. The object can then be used for a new
  // stream.
  std::string_view finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  // at most 3 bytes: the beginning of a UTF-8 character
  std::string out_;
};

}  // namespace hadal
