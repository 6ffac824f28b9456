// Tells which fields of a body no API defines. There is one table for each kind of body. Each field in a
// table is read, refused, or known to make no difference to an answer. The functions are pure.
#pragma once

#include <cstdint>

#include <boost/json/fwd.hpp>

namespace hadal::server {

enum class BodyKind {
  kOpenAi,          // /v1/chat/completions and /v1/completions
  kMessages,        // Anthropic's /v1/messages
  kResponses,       // OpenAI's /v1/responses
  kOllamaChat,      // /api/chat
  kOllamaGenerate,  // /api/generate
  kOllamaOptions,   // `options` of both
};

// Returns how many fields of `object` are not null and not in the tables of this kind.
int64_t num_unknown_fields(const boost::json::object& object, BodyKind kind);

}  // namespace hadal::server
