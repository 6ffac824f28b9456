// Gives the cost of each part of a request in bytes. Only the cost of its head is elsewhere, in
// server/http/http_ledger.h. The figures are upper estimates for the whole process: the request, the state of
// the engine and the scheduler, and the answer's JSON, with the spare capacity of growing containers.
// tests/server/request_memory_test.cpp compares them with what is really allocated.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/result.h"
#include "server/admission/request_memory.h"
#include "server/generation/generation.h"

namespace hadal::server {

// Counts the memory of the values and the parser of a body's JSON, per byte of the body. A list of digits
// costs most: two bytes become a value of 24 bytes, of which the parser's growing stack may hold three
// copies. Larger bodies are counted exactly while they are parsed (server/json/json_fields.h).
inline constexpr size_t kJsonBytesPerByte = 40;
// Counts texts that a parser copies out of the values: messages, the rendered prompt and tools.
inline constexpr size_t kTextBytesPerByte = 3;
// Counts the memory that tokenising a text needs, per byte; most of it is for one long word.
inline constexpr size_t kEncodeBytesPerByte = 32;
// Counts a grammar that waits to be compiled, per byte of its text. During compilation the upper bound
// GrammarMemoryLimits::compile_bytes is counted, and afterwards the grammar's size.
inline constexpr size_t kCompileBytesPerByte = 256;
inline constexpr size_t kCompileBytes = size_t{64} << 10;
// Counts the JSON of one token id that /tokenize returns, which exists twice.
inline constexpr size_t kIdTextBytes = 16;

// Counts one choice without its tokens and its lists: objects of the request, of the engine and of the
// scheduler, its rid, its sampling parameters. choice_bytes() adds biases, stop tokens and stop conditions.
inline constexpr size_t kChoiceBytes = size_t{8} << 10;
// Counts a prompt token, which all choices of the prompt share in the request, the engine and the scheduler.
// The scheduler's hash of each page of 64 tokens needs an eighth of a byte for each of them.
inline constexpr size_t kPromptTokenBytes = 12;
// Counts a token of a prompt whose tokens are penalised: the choices share a list of the different ones.
inline constexpr size_t kPenalisedPromptTokenBytes = 4;
// Counts a generated token, which the engine and the scheduler hold.
inline constexpr size_t kTokenBytes = 16;
// Counts a generated token whose occurrences are counted for a penalty.
inline constexpr size_t kCountedTokenBytes = 64;
// Counts a generated token of an answer that is kept until its end, with its text, its JSON and its part of
// the answer's body.
inline constexpr size_t kKeptTokenBytes = 128;
// Counts the text of a generated token that stop expressions may hold back: the whole text of an answer.
inline constexpr size_t kHeldTokenBytes = 32;
// Counts a log-probability (the token's own or an alternative's) that is kept: its number, its JSON and its
// part of the body.
inline constexpr size_t kKeptLogprobBytes = 256;
// Counts the same in the form of chat, where a log-probability is an object with text and bytes.
inline constexpr size_t kLongLogprobBytes = 640;
// Counts the matcher of a constrained choice, as GrammarMemoryLimits::position_bytes bounds it, and its
// growth with each token: 0.4 to 3 KiB in usual grammars. Its masks are counted separately.
inline constexpr size_t kMatcherBytes = size_t{128} << 10;
inline constexpr size_t kMatcherTokenBytes = size_t{2} << 10;

// The tokens of a growing answer are counted in blocks of this many. Each block is counted before the engine
// can have generated it.
inline constexpr int64_t kTokenBlock = 256;

inline size_t bytes_per_logprob(bool long_logprobs) {
  return long_logprobs ? kLongLogprobBytes : kKeptLogprobBytes;
}

// Returns the bytes of a choice like `request` before its first token, without its prompt.
size_t choice_bytes(const GenerationRequest& request);

// Returns the bytes of each generated token, without its log-probabilities.
size_t token_bytes(const GenerationRequest& request);

// Returns the number of log-probabilities of `num_tokens` tokens.
inline size_t num_logprobs(const LogprobOptions& logprobs, int64_t num_tokens) {
  if (!logprobs.enabled) return 0;
  return static_cast<size_t>(num_tokens) * static_cast<size_t>(1 + logprobs.top_num);
}

// Returns the number of positions of a prompt whose log-probabilities are wanted.
inline int64_t num_scored_positions(const LogprobOptions& logprobs, int64_t prompt_tokens) {
  return logprobs.start < 0 ? 0 : std::max<int64_t>(prompt_tokens - logprobs.start, 0);
}

// Returns the bytes of a delta that waits for its client, as numbers and as the JSON that it becomes.
inline size_t held_bytes(const GenerationDelta& delta, bool long_logprobs) {
  size_t entries = 0;
  for (const auto* list : {&delta.logprobs, &delta.prompt_logprobs}) {
    entries += list->size() * (list->empty() ? 1 : 1 + list->front().top.size());
  }
  return 4 * delta.text.size() + delta.token_ids.size() * kIdTextBytes +
         entries * bytes_per_logprob(long_logprobs);
}

// Adds to `charge` the memory of `num_choices` generations that have the parameters of `request` and share
// its prompt. Of each answer only the first block (kTokenBlock tokens) is counted. The caller has set the
// request's prompt, length and log-probabilities. `vocab_size` is the length of the grammar's masks in tokens
// (0: no grammar).
Result<void> charge_choices(MemoryCharge& charge, const GenerationRequest& request, int64_t num_choices,
                            int64_t vocab_size);

}  // namespace hadal::server
