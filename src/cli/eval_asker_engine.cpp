#include <algorithm>

#include "base/log.h"
#include "cli/cache_size.h"
#include "cli/chat/chat_prompt.h"
#include "cli/drain.h"
#include "cli/open_asker.h"
#include "cli/session.h"
#include "server/generation/stop_condition.h"
#include "server/generation/text_stream.h"

namespace hadal::cli {
namespace {

class EngineAsker : public client::EvalAsker {
 public:
  EngineAsker(const ParsedFlags& flags, std::unique_ptr<Session> session)
      : flags_(flags), session_(std::move(session)) {}

  Result<std::vector<client::EvalReply>> ask(std::span<const client::EvalAsk> asks, const OnReply& on_reply,
                                             const std::function<bool()>& stop) override;

 private:
  struct Prompt {
    std::vector<int32_t> ids;
    bool starts_in_reasoning = false;
  };

  Result<Prompt> encode(const client::EvalAsk& ask);
  Result<void> make_engine(std::span<const client::EvalAsk> asks, const std::vector<Prompt>& prompts);
  Result<RequestId> submit(const client::EvalAsk& ask, const Prompt& prompt,
                           const std::shared_ptr<const StopPatterns>& stops);

  const ParsedFlags& flags_;  // outlives the command
  std::unique_ptr<Session> session_;
  std::optional<ChatFormat> format_;
  std::unique_ptr<Engine> engine_;  // destroyed before the session's model, which it uses
};

Result<EngineAsker::Prompt> EngineAsker::encode(const client::EvalAsk& ask) {
  const Tokenizer& tokenizer = *session_->tokenizer();
  if (ask.messages.empty()) return Prompt{tokenizer.encode(ask.prompt, true), false};
  if (!format_) {
    HADAL_ASSIGN_OR_RETURN(format_, session_->chat_format(flags_));
  }
  const ChatOptions chat{.thinking = ask.thinking};
  HADAL_ASSIGN_OR_RETURN(ChatPrompt prompt,
                         make_chat_prompt(tokenizer, *format_, ask.messages, chat, content_is_text(flags_)));
  return Prompt{std::move(prompt.ids), generation_starts_in_reasoning(*format_, chat)};
}

Result<void> EngineAsker::make_engine(std::span<const client::EvalAsk> asks,
                                      const std::vector<Prompt>& prompts) {
  HADAL_RETURN_IF_ERROR(session_->load_model());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session_->kv_layout());
  EngineOptions options = resolve_engine_options(flags_, session_->options());
  // On a GPU the cache uses the memory that is left.
  if (options.max_total_tokens == 0 && session_->options().device == DeviceType::kCpu) {
    int64_t longest = 0;
    for (size_t i = 0; i < asks.size(); ++i) {
      longest = std::max(longest, static_cast<int64_t>(prompts[i].ids.size()) + asks[i].max_new_tokens);
    }
    options.max_total_tokens =
        fitted_cache_tokens(longest, static_cast<int64_t>(asks.size()), options, session_->config(), layout);
  }
  HADAL_ASSIGN_OR_RETURN(engine_, session_->make_engine(options));
  return {};
}

Result<RequestId> EngineAsker::submit(const client::EvalAsk& ask, const Prompt& prompt,
                                      const std::shared_ptr<const StopPatterns>& stops) {
  GenerateRequest request;
  request.input_ids = prompt.ids;
  request.sampling.max_new_tokens = ask.max_new_tokens;
  const int64_t room = engine_->context_length() - static_cast<int64_t>(prompt.ids.size());
  if (ask.fits_context) {
    request.sampling.max_new_tokens = std::clamp<int64_t>(room, 1, ask.max_new_tokens);
  }
  request.sampling.temperature = static_cast<float>(ask.temperature);
  request.sampling.top_p = static_cast<float>(ask.top_p);
  request.sampling.seed = ask.seed;
  if (stops != nullptr) request.stop = server::make_stop_condition(*session_->tokenizer(), stops, false);
  return engine_->submit(std::move(request));
}

Result<std::vector<client::EvalReply>> EngineAsker::ask(std::span<const client::EvalAsk> asks,
                                                        const OnReply& on_reply,
                                                        const std::function<bool()>& stop) {
  std::vector<Prompt> prompts;
  for (const client::EvalAsk& ask : asks) {
    HADAL_ASSIGN_OR_RETURN(prompts.emplace_back(), encode(ask));
    SamplingOptions sampling{.max_new_tokens_is_set = !ask.fits_context};
    sampling.params.max_new_tokens = ask.max_new_tokens;
    HADAL_RETURN_IF_ERROR(check_answer_fits(sampling, std::ssize(prompts.back().ids),
                                            context_length_of(flags_, session_->config()), "the context"));
  }
  if (engine_ == nullptr) HADAL_RETURN_IF_ERROR(make_engine(asks, prompts));
  std::vector<RequestId> ids;
  std::vector<std::shared_ptr<const StopPatterns>> stops;
  for (size_t i = 0; i < asks.size(); ++i) {
    HADAL_ASSIGN_OR_RETURN(stops.emplace_back(), server::compile_stops(asks[i].stop));
    HADAL_ASSIGN_OR_RETURN(ids.emplace_back(), submit(asks[i], prompts[i], stops[i]));
  }
  const SpeculationCounts before = engine_->stats().speculation;
  std::vector<client::EvalReply> replies(asks.size());
  for (size_t i = 0; i < asks.size(); ++i) {
    client::EvalReply& reply = replies[i];
    server::TextStream stream(session_->tokenizer(), stops[i], {.skip_special_tokens = false});
    const TokenChunk last =
        drain(*engine_, ids[i], stop, [&](const TokenChunk& chunk) { reply.text += stream.append(chunk); });
    if (stop()) return make_status(StatusCode::kCancelled, "interrupted after {} answers", i);
    if (last.finish_reason == FinishReason::kAbort) {
      return make_status(StatusCode::kInternal, "question {} was aborted: {}", i + 1, last.abort_text);
    }
    reply.starts_in_reasoning = prompts[i].starts_in_reasoning;
    reply.completion_tokens = last.completion_tokens;
    reply.accepted = {.verifications = last.speculation.verifications, .tokens = last.speculation.tokens};
    on_reply(i, reply);
  }
  if (const SpeculationCounts counts = engine_->stats().speculation - before; counts.verifications > 0) {
    log_info("speculation questions={} accept_length={:.2f} accept_rate={:.3f}", asks.size(),
             counts.accept_length(), counts.accept_rate());
  }
  return replies;
}

}  // namespace

Result<std::unique_ptr<client::EvalAsker>> open_engine_asker(const ParsedFlags& flags,
                                                             const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(auto session, Session::open(flags, environment, TokenizerUse::kRequired));
  return std::unique_ptr<client::EvalAsker>(std::make_unique<EngineAsker>(flags, std::move(session)));
}

}  // namespace hadal::cli
