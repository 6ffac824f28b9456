#include "server/openai/openai_json.h"

#include <chrono>
#include <set>
#include <utility>

#include "server/json/json_writer.h"
#include "server/request_log.h"
#include "text/utf8.h"

namespace hadal::server {
namespace {

void append_number_field(std::string& out, std::string_view name, int64_t value) {
  out += '"';
  out += name;
  out += "\":";
  append_json_number(out, value);
}

std::string token_text(const Tokenizer& tokenizer, int32_t id) {
  return replace_invalid_utf8(tokenizer.token_bytes(id));
}

void append_token(std::string& out, const Tokenizer& tokenizer, int32_t id, float logprob) {
  out += "{\"token\":";
  append_json_string(out, token_text(tokenizer, id));
  out += ",\"logprob\":";
  append_json_number(out, logprob);
  out += ",\"bytes\":[";
  const std::string_view bytes = tokenizer.token_bytes(id);
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i > 0) out += ',';
    append_json_number(out, int64_t{static_cast<unsigned char>(bytes[i])});
  }
  out += ']';
}

// Counts the characters that begin in `bytes`.
int64_t num_characters(std::string_view bytes) {
  int64_t count = 0;
  for (const char c : bytes) count += (static_cast<unsigned char>(c) & 0xC0U) != 0x80U ? 1 : 0;
  return count;
}

// Returns a token's name in completions: its text, or its bytes if they are not valid UTF-8 by themselves.
std::string completion_token(const Tokenizer* tokenizer, int32_t id) {
  if (tokenizer == nullptr) return {};
  const std::string_view bytes = tokenizer->token_bytes(id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out += "\\x";
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

}  // namespace

std::string openai_head(std::string_view id, std::string_view object, std::string_view model) {
  std::string out = "{\"id\":";
  append_json_string(out, id);
  out += ",\"object\":\"";
  out += object;
  out += "\",\"created\":";
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  append_json_number(out, int64_t{std::chrono::duration_cast<std::chrono::seconds>(now).count()});
  out += ",\"model\":";
  append_json_string(out, model);
  out += ",\"choices\":[";
  return out;
}

void append_finish(std::string& out, const GenerationDelta& delta, std::string_view reason) {
  if (delta.finish_reason == FinishReason::kNone) {
    out += ",\"finish_reason\":null,\"matched_stop\":null";
    return;
  }
  out += ",\"finish_reason\":\"";
  out += reason.empty() ? std::string_view(finish_name(delta.finish_reason)) : reason;
  out += "\",\"matched_stop\":";
  switch (delta.finish_reason) {
    case FinishReason::kStopToken:
      append_json_number(out, int64_t{delta.matched_token});
      break;
    case FinishReason::kStopCondition:
      append_json_string(out, delta.matched);
      break;
    default:
      out += "null";
  }
}

OpenAiUsage::OpenAiUsage(std::vector<size_t> prompt_of, bool cache_report, bool reasoning)
    : prompt_of_(std::move(prompt_of)),
      counts_(prompt_of_.size()),
      cache_report_(cache_report),
      reasoning_(reasoning) {}

void OpenAiUsage::update(size_t choice, const GenerationDelta& delta) {
  Counts& counts = counts_[choice];
  counts.prompt = delta.prompt_tokens;
  counts.completion = delta.completion_tokens;
  counts.cached = delta.cached_tokens;
}

void OpenAiUsage::append(std::string& out, const Counts& counts) const {
  out += ",\"usage\":{";
  append_number_field(out, "prompt_tokens", counts.prompt);
  out += ',';
  append_number_field(out, "completion_tokens", counts.completion);
  out += ',';
  append_number_field(out, "total_tokens", counts.prompt + counts.completion);
  out += ",\"prompt_tokens_details\":";
  if (cache_report_) {
    out += '{';
    append_number_field(out, "cached_tokens", counts.cached);
    out += '}';
  } else {
    out += "null";
  }
  if (reasoning_) {
    out += ",\"completion_tokens_details\":{";
    append_number_field(out, "reasoning_tokens", counts.reasoning);
    out += '}';
  }
  out += ',';
  append_number_field(out, "reasoning_tokens", counts.reasoning);
  // These are DeepSeek's names.
  out += ',';
  append_number_field(out, "prompt_cache_hit_tokens", counts.cached);
  out += ',';
  append_number_field(out, "prompt_cache_miss_tokens", counts.prompt - counts.cached);
  out += '}';
}

void OpenAiUsage::append_total(std::string& out) const {
  Counts total;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const bool first = i == 0 || prompt_of_[i] != prompt_of_[i - 1];
    if (first) total.prompt += counts_[i].prompt;
    if (first) total.cached += counts_[i].cached;
    total.completion += counts_[i].completion;
    total.reasoning += counts_[i].reasoning;
  }
  append(out, total);
}

void OpenAiUsage::append_choice(std::string& out, size_t choice) const {
  append(out, counts_[choice]);
}

std::string openai_tail(std::string begun, const OpenAiUsage& usage, std::string_view more) {
  begun += ']';
  usage.append_total(begun);
  begun += more;
  begun += '}';
  return begun;
}

void append_chat_logprobs(std::string& out, const Tokenizer& tokenizer,
                          const std::vector<TokenLogprob>& entries) {
  for (const TokenLogprob& entry : entries) {
    append_comma(out);
    append_token(out, tokenizer, entry.token_id, entry.logprob);
    out += ",\"top_logprobs\":[";
    for (size_t i = 0; i < entry.top.size(); ++i) {
      if (i > 0) out += ',';
      append_token(out, tokenizer, entry.top[i].first, entry.top[i].second);
      out += '}';
    }
    out += "]}";
  }
}

void CompletionLogprobs::append_key(std::string& out, int32_t token_id) const {
  append_json_string(out, completion_token(tokenizer_, token_id));
}

void CompletionLogprobs::add_token(int32_t token_id) {
  append_comma(offsets_);
  append_json_number(offsets_, offset_);
  append_comma(tokens_);
  append_key(tokens_, token_id);
  append_comma(values_);
  append_comma(tops_);
  if (tokenizer_ == nullptr || (skip_special_tokens_ && tokenizer_->is_special(token_id))) return;
  offset_ += num_characters(tokenizer_->token_bytes(token_id));
}

void CompletionLogprobs::add_unpredicted(int32_t token_id) {
  add_token(token_id);
  values_ += "null";
  tops_ += "null";
}

void CompletionLogprobs::add(const std::vector<TokenLogprob>& entries) {
  for (const TokenLogprob& entry : entries) {
    add_token(entry.token_id);
    append_json_number(values_, entry.logprob);
    tops_ += '{';
    // Two tokens may have the same text (a special token and its letters); the more probable one counts.
    std::set<std::string> seen;
    const auto add_top = [&](int32_t id, float logprob) {
      std::string key = completion_token(tokenizer_, id);
      if (seen.count(key) != 0) return;
      if (!seen.empty()) tops_ += ',';
      append_json_string(tops_, key);
      tops_ += ':';
      append_json_number(tops_, logprob);
      seen.insert(std::move(key));
    };
    for (const auto& [id, logprob] : entry.top) add_top(id, logprob);
    add_top(entry.token_id, entry.logprob);
    tops_ += '}';
  }
}

void CompletionLogprobs::append_json(std::string& out) {
  const auto append_list = [&](const char* name, std::string& list) {
    out += name;
    out += list;
    out += ']';
    list.clear();
  };
  append_list("{\"text_offset\":[", offsets_);
  append_list(",\"token_logprobs\":[", values_);
  append_list(",\"tokens\":[", tokens_);
  append_list(",\"top_logprobs\":[", tops_);
  out += '}';
}

}  // namespace hadal::server
