// Fuzzes a tokenizer file and a text for it: the input up to the first zero byte is tokenizer.json, the rest
// is text. Files that load must encode any text, and decoding the ids token by token must equal decoding them
// at once.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "text/stop/stop_matcher.h"
#include "text/tokenizer/detokenizer.h"
#include "text/tokenizer/splitter.h"
#include "text/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using hadal::Detokenizer;
  using hadal::StopMatcher;
  using hadal::Tokenizer;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view file = input.substr(0, zero);
  const std::string_view text = zero == input.npos ? std::string_view() : input.substr(zero + 1);
  const auto tokenizer = Tokenizer::from_json(file, text.substr(0, text.find('\0')));
  const auto plain = Tokenizer::from_json(file);
  if (!plain.ok()) return 0;
  try {
    const auto ids = (*plain)->encode(text, true);
    for (const bool skip : {false, true}) {
      Detokenizer detokenizer(**plain, skip);
      std::string joined;
      for (const int32_t id : ids) joined += detokenizer.append(id);
      joined += detokenizer.finish();
      HADAL_CHECK(joined == (*plain)->decode(ids, skip));
    }
    StopMatcher matcher({std::string(text.substr(0, 3)), std::string(text.substr(text.size() / 2))});
    for (const int32_t id : ids) matcher.append((*plain)->token_bytes(id));
    matcher.finish();
  } catch (const hadal::PatternLimitError& error) {
    // Encoding may fail in one way only: on a pattern of the file for which PCRE2 reaches its limits.
    HADAL_CHECK(std::string_view(error.what()).find("the text cannot be tokenised") == 0, "{}", error.what());
  }
  return 0;
}
