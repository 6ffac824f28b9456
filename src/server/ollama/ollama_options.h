// Reads `options` of Ollama's bodies: sampling parameters, and settings of Ollama's own engine. The function
// is pure.
#pragma once

#include <cstdint>
#include <string_view>

#include "server/json/json_fields.h"
#include "server/json/sampling_fields.h"
#include "server/openai/openai_request.h"

namespace hadal::server {

// Errors about the limit of an answer's length name this field.
inline constexpr std::string_view kOllamaLengthField = "options.num_predict";

// `sampling` holds the defaults. An option that changes the answer is either honoured or refused. An option
// for Ollama's own engine (num_gpu, num_batch, use_mmap, …) has no effect on an answer, so it is ignored.
// Returns how many options Ollama does not define.
int64_t read_ollama_options(FieldReader& reader, const OpenAiLimits& limits, SamplingFields& sampling);

}  // namespace hadal::server
