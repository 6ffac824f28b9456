#include "server/admission/request_tally.h"

#include <exception>
#include <utility>

#include "base/log.h"
#include "server/json/json_writer.h"
#include "server/json/utc_time.h"
#include "server/request_log.h"

namespace hadal::server {
namespace {

void append_text_or_null(std::string& out, std::string_view name, std::string_view value) {
  out += fmt::format(",\"{}\":", name);
  if (value.empty()) {
    out += "null";
  } else {
    append_json_string(out, value);
  }
}

}  // namespace

std::string to_json(const AuditEntry& entry) {
  std::string out = fmt::format("{{\"time\":\"{}\"", utc_time(entry.when));
  append_text_or_null(out, "key", entry.key);
  append_text_or_null(out, "peer", entry.peer);
  append_text_or_null(out, "method", entry.method);
  append_text_or_null(out, "endpoint", entry.endpoint);
  append_text_or_null(out, "request_id", entry.id);
  out += fmt::format(",\"status\":{},\"prompt_tokens\":{},\"cached_tokens\":{},\"completion_tokens\":{}",
                     entry.status, entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens);
  out += ",\"finish_reasons\":{";
  // Both reasons to stop have the same name in JSON.
  std::array<int64_t, 5> counts = entry.num_finished;
  counts[static_cast<size_t>(FinishReason::kStopToken)] +=
      std::exchange(counts[static_cast<size_t>(FinishReason::kStopCondition)], 0);
  const char* comma = "";
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    out += fmt::format("{}\"{}\":{}", std::exchange(comma, ","), finish_name(static_cast<FinishReason>(i)),
                       counts[i]);
  }
  return out + fmt::format("}},\"seconds\":{:.4f}}}", entry.seconds);
}

RequestTally::RequestTally(AuditEntry entry, std::string client, std::shared_ptr<RateLimiter> limiter,
                           std::shared_ptr<AuditLog> audit)
    : entry_(std::move(entry)),
      client_(std::move(client)),
      limiter_(std::move(limiter)),
      audit_(std::move(audit)) {}

RequestTally::~RequestTally() {
  if (!audit_) return;
  try {
    audit_->write(to_json(entry_));
  } catch (const std::exception& error) {
    log_error("audit line lost error=\"{}\"", error.what());
  }
}

void RequestTally::take(int64_t tokens) {
  if (limiter_) limiter_->take_tokens(client_, tokens, RateLimiter::Clock::now());
}

void RequestTally::add_prompt(int64_t tokens) {
  entry_.prompt_tokens += tokens;
  take(tokens);
}

void RequestTally::add_answer(int64_t tokens) {
  entry_.completion_tokens += tokens;
  take(tokens);
}

void RequestTally::add_end(FinishReason reason, int64_t cached_tokens) {
  ++entry_.num_finished.at(static_cast<size_t>(reason));
  entry_.cached_tokens += cached_tokens;
}

void RequestTally::set_answered(int status, double seconds, std::string_view id, std::string_view peer) {
  entry_.status = status;
  entry_.seconds = seconds;
  entry_.id = id;
  entry_.peer = peer;
}

void GenerationTally::start(std::shared_ptr<RequestTally> tally, int64_t prompt_tokens) {
  tally_ = std::move(tally);
  if (!tally_) return;
  has_prompt_ = prompt_tokens > 0;
  tally_->add_prompt(prompt_tokens);
}

void GenerationTally::count(const TokenChunk& chunk) {
  if (!tally_) return;
  tally_->add_answer(chunk.completion_tokens - std::exchange(completion_tokens_, chunk.completion_tokens));
  if (chunk.finish_reason == FinishReason::kNone) return;
  const auto tally = std::exchange(tally_, nullptr);
  tally->add_end(chunk.finish_reason, has_prompt_ ? chunk.cached_tokens : 0);
}

}  // namespace hadal::server
