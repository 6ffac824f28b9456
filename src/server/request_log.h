// Writes the lines of --log-requests: one when a request arrives and one when it ends. Any thread may call
// it.
#pragma once

#include <cstddef>
#include <string_view>

#include "server/generation/generation.h"
#include "server/server_context.h"

namespace hadal::server {

// Returns how many bytes of a text a line shows: a line is made on an I/O thread, so no level shows texts of
// any length. It is 0 where no text is shown.
size_t log_text_bytes(const ServerContext& context);

// LogRoom holds how many bytes of prompts the lines of one HTTP request may still show, all of its
// generations together.
struct LogRoom {
  size_t bytes = 1 << 20;
};

// Decodes no more of the prompt than the line shows.
void log_request_start(const ServerContext& context, const GenerationRequest& request, LogRoom& room);
// `text_json` is the visible text, or more than log_text_bytes of it, escaped as inside a JSON string.
void log_request_end(const ServerContext& context, std::string_view rid, const GenerationDelta& last,
                     std::string_view text_json);

const char* finish_name(FinishReason reason);  // "stop" | "length" | "abort" | ""

}  // namespace hadal::server
