// Writes the lines of --log-requests: one when a request arrives and one when it ends. Any thread may call
// it.
#pragma once

#include <cstddef>
#include <string_view>

#include "server/generation/generation.h"
#include "server/server_context.h"

namespace hadal::server {

// Returns how many bytes of each text a log line shows (0: none). Every level has a limit, because lines are
// written on an I/O thread.
size_t log_text_bytes(const ServerContext& context);

// LogRoom holds how many bytes of prompts the log lines of one HTTP request may still show. All generations
// of the request share it.
struct LogRoom {
  size_t bytes = 1 << 20;
};

// Writes the line for an arriving request. It decodes no more of the prompt than the line shows.
void log_request_start(const ServerContext& context, const GenerationRequest& request, LogRoom& room);
// Writes the line for the end. `text_json` is the visible text, or at least its first log_text_bytes, escaped
// as inside a JSON string, without the quotes.
void log_request_end(const ServerContext& context, std::string_view rid, const GenerationDelta& last,
                     std::string_view text_json);

const char* finish_name(FinishReason reason);  // "stop" | "length" | "abort" | ""

}  // namespace hadal::server
