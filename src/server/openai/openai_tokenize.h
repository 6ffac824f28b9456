// Serves /v1/tokenize and /v1/detokenize, also without /v1: {"prompt", "add_special_tokens"} → {"tokens",
// "count", "max_model_len"} and {"tokens", "skip_special_tokens"} → {"text"}; a list of texts (or of lists)
// returns lists. With {"messages"} instead of a prompt, the tokens are the prompt that
// /v1/chat/completions makes of the same body (tools, add_generation_prompt, …). It runs on I/O threads.
#pragma once

#include "server/http/http.h"
#include "server/openai/openai_request.h"
#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

// Answers the request. It is pure except for the tokenizer and the memory of `limits`, in which the work is
// counted while it lasts. The context of `limits` is reported as max_model_len, but does not limit the text.
// Without a tokenizer the answer is an error.
HttpResponse tokenize_response(std::string_view body, const OpenAiLimits& limits);
HttpResponse detokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t vocab_size,
                                 const std::shared_ptr<RequestMemory>& memory = nullptr);

void add_openai_tokenize_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
