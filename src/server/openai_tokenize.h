// Serves /v1/tokenize and /v1/detokenize, also without /v1: {"prompt", "add_special_tokens"} → {"tokens",
// "count", "max_model_len"} and {"tokens", "skip_special_tokens"} → {"text"}; a list of texts (or of lists)
// returns lists. It runs on I/O threads.
#pragma once

#include "server/http.h"
#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

// Answers the request; it is pure except for the tokenizer and for `memory`, in which the work is counted
// while it lasts (null: nowhere). If `tokenizer` is null, the answer is an error.
HttpResponse tokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t max_model_len,
                               const std::shared_ptr<RequestMemory>& memory = nullptr);
HttpResponse detokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t vocab_size,
                                 const std::shared_ptr<RequestMemory>& memory = nullptr);

void add_openai_tokenize_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
