// One request to an OpenAI endpoint on its way: grammars, generations, deltas, the answer. What the answer
// looks like is the endpoint's own (OpenAiAnswer). I/O thread only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/generation.h"
#include "server/openai_request.h"
#include "server/server_context.h"
#include "server/sse.h"

namespace hadal::server {

// The JSON of one endpoint.
class OpenAiAnswer {
 public:
  virtual ~OpenAiAnswer() = default;
  // Takes what is new of choice i. In a stream it writes the events for it.
  virtual void add(size_t i, GenerationDelta delta, SseStream& stream) = 0;
  // A stream's last event, if there is one (usage).
  virtual void end_stream(SseStream& stream) = 0;
  // The answer in one piece, once every choice has ended.
  virtual std::string whole() = 0;
};

// Answers the exchange; every error is answered in OpenAI's shape.
void run_openai_call(ServerContext& context, std::shared_ptr<HttpExchange> exchange, OpenAiRequest request,
                     std::unique_ptr<OpenAiAnswer> answer);

// What requests to this server are checked against.
OpenAiLimits openai_limits(const ServerContext& context);

}  // namespace hadal::server
