#include "server/openai/openai_routes.h"

#include "server/openai/openai_chat.h"
#include "server/openai/openai_completions.h"
#include "server/openai/openai_tokenize.h"

namespace hadal::server {

void add_openai_routes(Router& router, ServerContext& context) {
  add_openai_completion_routes(router, context);
  add_openai_chat_routes(router, context);
  add_openai_tokenize_routes(router, context);
}

}  // namespace hadal::server
