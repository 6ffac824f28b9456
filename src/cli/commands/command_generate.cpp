// `hadal generate` prints the continuation of one prompt while it is generated.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/chat/chat_prompt.h"
#include "cli/commands/commands.h"
#include "cli/drain.h"
#include "cli/flags/defaults.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "server/generation/stop_condition.h"
#include "server/generation/text_stream.h"

namespace hadal::cli {
namespace {

using nlohmann::json;

struct Choice {
  RequestId id = 0;
  server::TextStream stream;
  std::string text;
  std::vector<int32_t> output_ids;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  TokenChunk last;  // the final chunk
};

struct Prompt {
  std::vector<int32_t> ids;
  bool starts_in_reasoning = false;  // the chat format has opened <think>, so the model does not
};

Result<Prompt> read_prompt(const ParsedFlags& flags, const Session& session) {
  Prompt out;
  if (flags.has("input-ids")) {
    for (const char* other : {"prompt", "chat", "system", "thinking", "content-special-tokens"}) {
      if (flags.has(other)) return invalid_argument("--input-ids and --{} exclude each other", other);
    }
    HADAL_ASSIGN_OR_RETURN(out.ids, read_input_ids(flags));
    return out;
  }
  if (session.tokenizer() == nullptr) {
    return not_found("{} has no tokenizer.json; pass the prompt as --input-ids",
                     session.model_dir().string());
  }
  std::string prompt;
  if (const auto text = flags.text("prompt")) {
    prompt = *text;
  } else {
    HADAL_ASSIGN_OR_RETURN(prompt, read_stdin());
  }
  if (!flags.has("chat")) {
    for (const char* other : {"system", "thinking", "chat-template", "content-special-tokens"}) {
      if (flags.has(other)) return invalid_argument("--{} needs --chat", other);
    }
    out.ids = session.tokenizer()->encode(prompt, !flags.has("no-add-special-tokens"));
    return out;
  }
  if (flags.has("no-add-special-tokens")) {
    return invalid_argument(
        "--no-add-special-tokens and --chat exclude each other, because the chat format contains bos");
  }
  HADAL_ASSIGN_OR_RETURN(const ChatFormat format, session.chat_format(flags));
  std::vector<ChatMessage> messages;
  if (const auto system = flags.text("system")) messages.push_back({.role = "system", .content = *system});
  messages.push_back({.role = "user", .content = prompt});
  const ChatOptions chat{.thinking = flags.has("thinking")};
  HADAL_ASSIGN_OR_RETURN(ChatPrompt rendered, make_chat_prompt(*session.tokenizer(), format, messages, chat,
                                                               content_is_text(flags)));
  out.ids = std::move(rendered.ids);
  out.starts_in_reasoning = generation_starts_in_reasoning(format, chat);
  return out;
}

json finish_reason_json(const Choice& choice) {
  const TokenChunk& chunk = choice.last;
  switch (chunk.finish_reason) {
    case FinishReason::kStopToken:
      return {{"type", "stop"}, {"matched", chunk.matched_token}};
    case FinishReason::kStopCondition:
      return {{"type", "stop"}, {"matched", choice.stream.matched()}};
    case FinishReason::kLength:
      return {{"type", "length"}, {"length", chunk.completion_tokens}};
    case FinishReason::kAbort:
      return {{"type", "abort"}, {"message", chunk.abort_text}};
    case FinishReason::kNone:
      break;
  }
  return nullptr;
}

json token_json(const Tokenizer* tokenizer, int32_t id, float logprob) {
  json text = nullptr;
  if (tokenizer != nullptr) text = tokenizer->decode(std::vector<int32_t>{id}, false);
  return json::array({logprob, id, text});
}

// Writes SGLang's form: [[logprob, id, text], …], and one such list per position for the alternatives.
void add_logprobs(json& out, const char* name, const char* top_name, const Tokenizer* tokenizer,
                  const std::vector<TokenLogprob>& logprobs, bool with_top) {
  json list = json::array();
  json tops = json::array();
  for (const TokenLogprob& entry : logprobs) {
    list.push_back(token_json(tokenizer, entry.token_id, entry.logprob));
    json top = json::array();
    for (const auto& [id, logprob] : entry.top) top.push_back(token_json(tokenizer, id, logprob));
    tops.push_back(std::move(top));
  }
  out[name] = std::move(list);
  if (with_top) out[top_name] = std::move(tops);
}

double tokens_per_s(const TokenChunk& last) {
  const double seconds = last.timings.decode_s;
  return last.completion_tokens > 1 && seconds > 0 ? static_cast<double>(last.completion_tokens - 1) / seconds
                                                   : 0.0;
}

json choice_json(const Choice& choice, const Tokenizer* tokenizer, const LogprobOptions& logprobs,
                 double load_s) {
  json out = {{"text", choice.text},
              {"output_ids", choice.output_ids},
              {"finish_reason", finish_reason_json(choice)},
              {"prompt_tokens", choice.last.prompt_tokens},
              {"completion_tokens", choice.last.completion_tokens},
              {"timings",
               {{"load_s", load_s},
                {"prefill_s", choice.last.timings.prefill_s},
                {"decode_s", choice.last.timings.decode_s},
                {"tokens_per_s", tokens_per_s(choice.last)}}}};
  if (logprobs.enabled) {
    add_logprobs(out, "output_token_logprobs", "output_top_logprobs", tokenizer, choice.logprobs,
                 logprobs.top_num > 0);
    if (logprobs.start >= 0) {
      add_logprobs(out, "input_token_logprobs", "input_top_logprobs", tokenizer, choice.prompt_logprobs,
                   logprobs.top_num > 0);
    }
  }
  return out;
}

// Waits for the end of one choice; with `show`, its text is printed as it arrives, or its ids as 1,2,3 where
// there is no tokenizer.
void finish_choice(Engine& engine, Choice& choice, const Tokenizer* tokenizer, bool show,
                   const InterruptGuard& guard) {
  choice.last = drain(
      engine, choice.id, [&guard] { return guard.interrupted(); },
      [&](const TokenChunk& chunk) {
        const std::string text = choice.stream.append(chunk);
        choice.text += text;
        if (show && tokenizer != nullptr) write_stdout(text);
        if (show && tokenizer == nullptr && !chunk.token_ids.empty()) {
          write_stdout(
              fmt::format("{}{}", choice.output_ids.empty() ? "" : ",", fmt::join(chunk.token_ids, ",")));
        }
        choice.output_ids.insert(choice.output_ids.end(), chunk.token_ids.begin(), chunk.token_ids.end());
        choice.logprobs.insert(choice.logprobs.end(), chunk.logprobs.begin(), chunk.logprobs.end());
        choice.prompt_logprobs.insert(choice.prompt_logprobs.end(), chunk.prompt_logprobs.begin(),
                                      chunk.prompt_logprobs.end());
      });
}

// Prints the summary to stderr. It says which limit cut an answer off; `limit` is the max_new_tokens in
// force.
void print_summary(const std::vector<Choice>& choices, double load_s, int64_t limit, bool limit_is_lowered) {
  if (log_level() > LogLevel::kInfo) return;
  const TokenChunk& first = choices[0].last;
  int64_t total = 0;
  std::string cut;
  for (const Choice& choice : choices) {
    total += choice.last.completion_tokens;
    if (choice.last.finish_reason != FinishReason::kLength) continue;
    cut = limit_is_lowered
              ? fmt::format(" | stopped after {} tokens, all that the context has room for", limit)
              : fmt::format(" | stopped at --max-new-tokens {}", limit);
  }
  const double prefill_s = first.timings.prefill_s;
  fmt::print(
      stderr,
      "load {:.2f} s | prompt {} tokens in {:.3f} s ({:.1f} tok/s) | {} tokens, {:.1f} tok/s per answer{}\n",
      load_s, first.prompt_tokens, prefill_s,
      prefill_s > 0 ? static_cast<double>(first.prompt_tokens) / prefill_s : 0.0, total, tokens_per_s(first),
      cut);
}

Result<LogprobOptions> read_logprob_options(const ParsedFlags& flags) {
  LogprobOptions logprobs;
  logprobs.top_num = flags.integer("top-logprobs").value_or(0);
  logprobs.start = flags.integer("logprob-start-len").value_or(-1);
  logprobs.enabled = flags.has("logprobs") || flags.has("top-logprobs") || flags.has("logprob-start-len");
  for (const char* name : {"logprobs", "top-logprobs", "logprob-start-len"}) {
    if (flags.has(name) && !flags.has("json")) return invalid_argument("--{} needs --json", name);
  }
  return logprobs;
}

// Submits a request for each of the choices that --n asks for.
Result<std::vector<Choice>> submit_choices(const ParsedFlags& flags, const Tokenizer* tokenizer,
                                           const std::vector<int32_t>& ids, const SamplingOptions& sampling,
                                           const LogprobOptions& logprobs, Engine& engine) {
  const bool skip_special_tokens = !flags.has("no-skip-special-tokens");
  const auto num_choices = static_cast<uint64_t>(flags.integer("n").value_or(1));
  HADAL_ASSIGN_OR_RETURN(const auto stops, server::compile_stops(sampling.stop));
  std::vector<Choice> choices;
  for (uint64_t i = 0; i < num_choices; ++i) {
    GenerateRequest request;
    request.input_ids = ids;
    request.sampling = sampling.params;
    if (request.sampling.seed) *request.sampling.seed += i;
    request.logprobs = logprobs;
    if (stops != nullptr) {
      request.stop = server::make_stop_condition(*tokenizer, stops, skip_special_tokens);
    }
    HADAL_ASSIGN_OR_RETURN(const RequestId id, engine.submit(std::move(request)));
    choices.push_back({.id = id,
                       .stream = server::TextStream(tokenizer, stops,
                                                    {.skip_special_tokens = skip_special_tokens,
                                                     .no_stop_trim = flags.has("no-stop-trim")})});
  }
  return choices;
}

void write_json(const std::vector<Choice>& choices, const Tokenizer* tokenizer,
                const LogprobOptions& logprobs, double load_s) {
  json out = choice_json(choices[0], tokenizer, logprobs, load_s);
  if (choices.size() > 1) {
    for (const Choice& choice : choices) {
      out["choices"].push_back(choice_json(choice, tokenizer, logprobs, load_s));
    }
  }
  write_stdout(out.dump(-1, ' ', false, json::error_handler_t::replace) + "\n");
}

}  // namespace

Result<std::vector<int32_t>> read_input_ids(const ParsedFlags& flags) {
  if (!flags.has("input-ids")) {
    HADAL_ASSIGN_OR_RETURN(const std::string text, read_stdin());
    return parse_ids(text, "standard input");
  }
  std::string joined;
  for (const std::string& part : flags.texts("input-ids")) joined += part + " ";
  return parse_ids(joined, "--input-ids");
}

Result<void> check_ids(const ParsedFlags& flags, std::span<const int32_t> ids, const ModelConfig& config,
                       int64_t max_tokens) {
  const char* source = flags.has("input-ids") ? "--input-ids"
                       : flags.has("prompt")  ? "--prompt"
                                              : "standard input";
  if (ids.empty()) return invalid_argument("{}: the prompt is empty; must be one token or more", source);
  for (const int32_t id : ids) {
    if (id >= config.vocab_size) {
      return invalid_argument("{}: contains the token {}; must be in [0, {}]", source, id,
                              config.vocab_size - 1);
    }
  }
  if (static_cast<int64_t>(ids.size()) > max_tokens) {
    return invalid_argument("{}: the prompt has {} tokens; must have at most {}, by the context length",
                            source, ids.size(), max_tokens);
  }
  return {};
}

Result<int> run_generate(const ParsedFlags& flags, const Environment& environment) {
  const bool as_json = flags.has("json");
  HADAL_ASSIGN_OR_RETURN(const LogprobOptions logprobs, read_logprob_options(flags));
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kIfThere));
  const Tokenizer* tokenizer = session->tokenizer();
  HADAL_ASSIGN_OR_RETURN(SamplingOptions sampling,
                         resolve_sampling(flags, session->generation_config(),
                                          flags.has("chat") ? kDefaultAnswerTokens : kDefaultMaxNewTokens));
  log_sampling_defaults(sampling);
  if (!sampling.stop.empty() && tokenizer == nullptr) {
    return invalid_argument("--stop needs a tokenizer; use --stop-token-ids");
  }
  HADAL_RETURN_IF_ERROR(check_token_flags(sampling.params, session->config().vocab_size));
  HADAL_ASSIGN_OR_RETURN(const Prompt prompt, read_prompt(flags, *session));
  const std::vector<int32_t>& ids = prompt.ids;
  const EngineOptions engine_options = resolve_engine_options(flags, session->options());
  const int64_t context_length = context_length_of(flags, session->config());
  HADAL_RETURN_IF_ERROR(check_ids(flags, ids, session->config(), context_length - 1));
  const auto prompt_tokens = static_cast<int64_t>(ids.size());
  HADAL_RETURN_IF_ERROR(check_answer_fits(sampling, prompt_tokens, context_length, "the context"));
  if (logprobs.start >= prompt_tokens) {
    return invalid_argument("--logprob-start-len {}: must be in [-1, {}], because the prompt has {} tokens",
                            logprobs.start, prompt_tokens - 1, prompt_tokens);
  }
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const auto engine, session->make_engine(engine_options));
  const int64_t asked_tokens = sampling.params.max_new_tokens;
  HADAL_RETURN_IF_ERROR(fit_to_engine(sampling, prompt_tokens, *engine));

  const InterruptGuard guard;
  HADAL_ASSIGN_OR_RETURN(std::vector<Choice> choices,
                         submit_choices(flags, tokenizer, ids, sampling, logprobs, *engine));
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!as_json && choices.size() > 1) write_stdout(fmt::format("{}[choice {}]\n", i > 0 ? "\n" : "", i));
    if (!as_json && prompt.starts_in_reasoning)
      write_stdout("<think>");  // because the model writes the end tag alone
    finish_choice(*engine, choices[i], tokenizer, !as_json, guard);
    if (!as_json) write_stdout("\n");
  }

  if (as_json) write_json(choices, tokenizer, logprobs, session->load_s());
  const int64_t limit = sampling.params.max_new_tokens;
  print_summary(choices, session->load_s(), limit, limit < asked_tokens);
  if (guard.interrupted()) return kExitInterrupted;
  for (const Choice& choice : choices) {
    if (choice.last.finish_reason == FinishReason::kAbort) {
      return make_status(StatusCode::kInternal, "the answer was aborted: {}", choice.last.abort_text);
    }
  }
  return kExitOk;
}

}  // namespace hadal::cli
