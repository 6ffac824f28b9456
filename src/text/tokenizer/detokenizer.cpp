#include "text/tokenizer/detokenizer.h"

#include "text/utf8.h"

namespace hadal {

std::string_view Detokenizer::append(int32_t id) {
  out_.clear();
  if (skip_special_tokens_ && tokenizer_.is_special(id)) return out_;
  pending_.append(tokenizer_.token_bytes(id));
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const auto prefix = classify_utf8_prefix(rest);
    if (prefix.kind == Utf8Prefix::kIncomplete) break;
    out_.append(prefix.kind == Utf8Prefix::kCharacter ? rest.substr(0, prefix.num_bytes)
                                                      : kReplacementCharacter);
    rest.remove_prefix(prefix.num_bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out_;
}

std::string_view Detokenizer::finish() {
  out_.clear();
  if (!pending_.empty()) out_ = kReplacementCharacter;
  pending_.clear();
  return out_;
}

}  // namespace hadal
