#include "server/generation/text_stream.h"

#include <string_view>
#include <utility>

namespace hadal::server {

TextStream::TextStream(const Tokenizer* tokenizer, std::shared_ptr<const StopPatterns> stops, Options options)
    : no_stop_trim_(options.no_stop_trim) {
  if (tokenizer == nullptr) return;
  detokenizer_.emplace(*tokenizer, options.skip_special_tokens);
  if (stops != nullptr) search_.emplace(std::move(stops), options.no_stop_trim);
}

std::string TextStream::append(const TokenChunk& chunk) {
  std::string text;
  if (!detokenizer_) return text;
  const auto show = [&](std::string_view piece) { text += search_ ? search_->append(piece) : piece; };
  size_t count = chunk.token_ids.size();
  if (chunk.finish_reason == FinishReason::kStopToken && !no_stop_trim_ && count > 0) --count;
  for (size_t i = 0; i < count; ++i) show(detokenizer_->append(chunk.token_ids[i]));
  if (chunk.finish_reason != FinishReason::kNone && !(search_ && search_->stopped())) {
    show(detokenizer_->finish());
    if (search_) text += search_->finish();
  }
  return text;
}

Result<std::shared_ptr<const StopPatterns>> compile_stops(std::vector<std::string> strings,
                                                          const std::vector<std::string>& regexes) {
  if (strings.empty() && regexes.empty()) return std::shared_ptr<const StopPatterns>();
  HADAL_ASSIGN_OR_RETURN(auto patterns, StopPatterns::compile(strings, regexes));
  if (patterns->empty()) patterns = nullptr;
  return patterns;
}

}  // namespace hadal::server
