// /v1/tokenize and /v1/detokenize, also without /v1: {"prompt", "add_special_tokens"} → {"tokens", "count",
// "max_model_len"} and {"tokens", "skip_special_tokens"} → {"text"}; a list of texts (or of lists) returns
// lists. I/O threads.
#pragma once

#include "server/http.h"
#include "server/router.h"
#include "server/server_context.h"

namespace hadal::server {

// Pure except for the tokenizer. If `tokenizer` is null, the answer is an error.
HttpResponse tokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t max_model_len);
HttpResponse detokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t vocab_size);

void add_openai_tokenize_routes(Router& router, ServerContext& context);

}  // namespace hadal::server
