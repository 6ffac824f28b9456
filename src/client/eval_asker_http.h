// Asks questions over OpenAI's HTTP interface. One thread uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/eval_asker.h"
#include "client/server_connection.h"

namespace hadal::client {

// Makes an asker with at most `max_concurrency` questions under way at once. A question that gets no answer
// because a queue is full or a connection breaks is asked again, up to three times.
std::unique_ptr<EvalAsker> make_http_asker(ServerConnection server, std::string model,
                                           int64_t max_concurrency);

}  // namespace hadal::client
