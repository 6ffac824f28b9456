#include "server/native/native_output.h"

#include <utility>

#include "server/json/json_writer.h"

namespace hadal::server {
namespace {

// Appends `utf8` escaped, without quotes.
void append_escaped(std::string& out, std::string_view utf8) {
  const size_t begin = out.size();
  append_json_string(out, utf8);
  out.pop_back();
  out.erase(begin, 1);
}

void append_list(std::string& out, std::string_view name, const std::string& joined) {
  out += ",\"";
  out += name;
  out += "\":[";
  out += joined;
  out += ']';
}

void append_count(std::string& out, std::string_view name, int64_t value) {
  out += ",\"";
  out += name;
  out += "\":";
  append_json_number(out, value);
}

}  // namespace

NativeOutput::NativeOutput(std::string rid, std::span<const int32_t> prompt, Options options)
    : rid_(std::move(rid)), options_(std::move(options)) {
  const LogprobOptions& logprobs = options_.logprobs;
  if (!logprobs.enabled || logprobs.start < 0) return;
  // No logits predict the first requested position, so its entry has no value.
  append_entry(input_logprobs_, std::nullopt, prompt[static_cast<size_t>(logprobs.start)]);
  if (logprobs.top_num > 0) input_tops_ = "null";
}

void NativeOutput::append_entry(std::string& out, std::optional<float> logprob, int32_t id) const {
  out += '[';
  if (logprob) {
    append_json_number(out, *logprob);
  } else {
    out += "null";
  }
  out += ',';
  append_json_number(out, int64_t{id});
  out += ',';
  if (options_.text_in_logprobs && options_.tokenizer != nullptr) {
    append_json_string(out, options_.tokenizer->decode(std::span(&id, 1), false));
  } else {
    out += "null";
  }
  out += ']';
}

void NativeOutput::append_logprobs(std::vector<TokenLogprob>& entries, std::string& list,
                                   std::string& tops) const {
  for (const TokenLogprob& entry : entries) {
    append_comma(list);
    append_entry(list, entry.logprob, entry.token_id);
    if (options_.logprobs.top_num <= 0) continue;
    append_comma(tops);
    tops += '[';
    for (size_t i = 0; i < entry.top.size(); ++i) {
      if (i > 0) tops += ',';
      append_entry(tops, entry.top[i].second, entry.top[i].first);
    }
    tops += ']';
  }
}

void NativeOutput::add(GenerationDelta delta) {
  const bool continues = std::exchange(in_pieces_, delta.has_more);
  if (options_.form == Form::kIncremental && !continues) {
    text_.clear();
    ids_.clear();
    output_logprobs_.clear();
    output_tops_.clear();
    if (has_sent_) {  // the first event has reported the prompt's log-probabilities
      input_logprobs_.clear();
      input_tops_.clear();
    }
  }
  append_logprobs(delta.prompt_logprobs, input_logprobs_, input_tops_);
  append_logprobs(delta.logprobs, output_logprobs_, output_tops_);
  if (delta.has_more) return;
  append_escaped(text_, delta.text);
  for (const int32_t id : delta.token_ids) {
    append_comma(ids_);
    append_json_number(ids_, int64_t{id});
  }
  last_ = std::move(delta);
  last_.text.clear();
  last_.token_ids.clear();
  last_.logprobs.clear();
  last_.prompt_logprobs.clear();
}

// There is no verification in a request of one token, nor without speculation.
void NativeOutput::append_speculation(std::string& out) const {
  const SpeculationCounts& counts = last_.speculation;
  append_count(out, "spec_verify_ct", counts.verifications);
  out += ",\"spec_accept_length\":";
  if (counts.verifications == 0) {
    out += "null";
    return;
  }
  append_json_number(
      out, static_cast<double>(last_.completion_tokens) / static_cast<double>(counts.verifications));
  out += ",\"spec_accept_rate\":";
  append_json_number(out, counts.accept_rate());
  append_count(out, "spec_accept_token_num", counts.accepted);
  append_count(out, "spec_draft_token_num", counts.drafts);
}

void NativeOutput::append_finish_reason(std::string& out) const {
  switch (last_.finish_reason) {
    case FinishReason::kNone:
      out += "null";
      return;
    case FinishReason::kStopToken:
      out += "{\"type\":\"stop\",\"matched\":";
      append_json_number(out, int64_t{last_.matched_token});
      break;
    case FinishReason::kStopCondition:
      out += "{\"type\":\"stop\",\"matched\":";
      append_json_string(out, last_.matched);
      break;
    case FinishReason::kLength:
      out += "{\"type\":\"length\",\"length\":";
      append_json_number(out, last_.completion_tokens);
      break;
    case FinishReason::kAbort:
      out += "{\"type\":\"abort\",\"message\":";
      append_json_string(out, last_.matched);
      break;
  }
  out += '}';
}

bool NativeOutput::is_due() const {
  if (options_.form != Form::kCumulative || !has_sent_ || finished()) return true;
  const size_t repeated = text_.size() + ids_.size() + output_logprobs_.size() + output_tops_.size();
  return static_cast<int64_t>(repeated) <= kEventBytesPerToken * (last_.completion_tokens - sent_tokens_);
}

size_t NativeOutput::json_bytes() const {
  constexpr size_t kFieldBytes = 1024;  // names, counts and times
  return kFieldBytes + rid_.size() + text_.size() + ids_.size() + input_logprobs_.size() +
         input_tops_.size() + output_logprobs_.size() + output_tops_.size();
}

void NativeOutput::append_json(std::string& out) {
  static const std::string kNone;
  const bool with_input = options_.form != Form::kCumulative || !has_sent_ || finished();
  has_sent_ = true;
  sent_tokens_ = last_.completion_tokens;
  out += '{';
  if (options_.tokenizer != nullptr) {
    out += "\"text\":\"";
    out += text_;
    out += "\",";
  }
  out += "\"output_ids\":[";
  out += ids_;
  out += "],\"meta_info\":{\"id\":";
  append_json_string(out, rid_);
  out += ",\"finish_reason\":";
  append_finish_reason(out);
  append_count(out, "prompt_tokens", last_.prompt_tokens);
  out += ",\"weight_version\":\"default\"";
  if (options_.logprobs.enabled) {
    append_list(out, "input_token_logprobs", with_input ? input_logprobs_ : kNone);
    append_list(out, "output_token_logprobs", output_logprobs_);
    if (options_.logprobs.top_num > 0) {
      append_list(out, "input_top_logprobs", with_input ? input_tops_ : kNone);
      append_list(out, "output_top_logprobs", output_tops_);
    }
  }
  append_count(out, "completion_tokens", last_.completion_tokens);
  append_count(out, "cached_tokens", last_.cached_tokens);
  if (finished()) {
    out += ",\"e2e_latency\":";
    append_json_number(out, last_.e2e_s);
    out += ",\"queue_time\":";
    append_json_number(out, last_.timings.queue_s);
    append_speculation(out);
  }
  out += '}';
  if (options_.index) append_count(out, "index", *options_.index);
  out += '}';
}

}  // namespace hadal::server
