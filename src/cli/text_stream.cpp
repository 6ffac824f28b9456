#include "cli/text_stream.h"

namespace hadal::cli {

std::optional<std::string> StopStrings::on_token(int32_t token_id) {
  matcher_.append(detokenizer_.append(token_id));
  if (!matcher_.stopped()) return std::nullopt;
  return std::string(matcher_.matched());
}

TextStream::TextStream(const Tokenizer* tokenizer, const std::vector<std::string>& stops, Options options)
    : matcher_(stops, options.no_stop_trim), options_(options) {
  if (tokenizer != nullptr) detokenizer_.emplace(*tokenizer, options.skip_special_tokens);
}

std::string TextStream::append(const TokenChunk& chunk) {
  std::string text;
  if (!detokenizer_) return text;
  const bool trims_last = chunk.finish_reason == FinishReason::kStopToken && !options_.no_stop_trim;
  const size_t count = chunk.token_ids.size() - (trims_last && !chunk.token_ids.empty() ? 1 : 0);
  for (size_t i = 0; i < count; ++i) text += matcher_.append(detokenizer_->append(chunk.token_ids[i]));
  if (chunk.finish_reason != FinishReason::kNone && !matcher_.stopped()) {
    text += matcher_.append(detokenizer_->finish());
    if (!matcher_.stopped()) text += matcher_.finish();
  }
  return text;
}

}  // namespace hadal::cli
