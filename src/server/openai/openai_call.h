// Processes one request of a client, whatever its dialect: grammars, generations, deltas and the answer.
// OpenAiAnswer, which belongs to the endpoint, writes the answer in its form. Only the I/O thread uses it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/generation/generation.h"
#include "server/generation/sse.h"
#include "server/openai/openai_request.h"
#include "server/server_context.h"

namespace hadal::server {

// OpenAiAnswer writes the JSON of one endpoint.
class OpenAiAnswer {
 public:
  virtual ~OpenAiAnswer() = default;
  // Adds a delta of choice i, or a piece of one. In a stream it writes the events of a delta with the delta's
  // last piece.
  virtual void add(size_t i, GenerationDelta delta, SseStream& stream) = 0;
  // Writes a stream's last event, if there is one (usage).
  virtual void end_stream(SseStream& stream) = 0;
  // Writes the end of a stream in which a choice has failed: end_stream(), then an error event. An endpoint
  // whose last event reports success writes only the error.
  virtual void fail_stream(int status, std::string_view message, SseStream& stream);
  // Returns the answer in one piece, once every choice has ended.
  virtual std::string whole() = 0;

  // These say how errors and events are written.
  virtual ErrorStyle error_style() const { return ErrorStyle::kOpenAi; }
  virtual EventForm event_form() const { return EventForm::kData; }
};

// Answers the exchange, including every error in the answer's style.
void run_openai_call(ServerContext& context, std::shared_ptr<HttpExchange> exchange, OpenAiRequest request,
                     std::unique_ptr<OpenAiAnswer> answer);

// Returns the limits for a request of the client that sent `from`.
OpenAiLimits openai_limits(const ServerContext& context, const HttpRequest& from);

}  // namespace hadal::server
