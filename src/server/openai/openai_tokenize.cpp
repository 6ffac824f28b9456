#include "server/openai/openai_tokenize.h"

#include <limits>

#include <boost/json.hpp>

#include "server/admission/memory_costs.h"
#include "server/generation/generation.h"
#include "server/generation/parse_task.h"
#include "server/json/api_error.h"
#include "server/json/json_fields.h"
#include "server/json/json_writer.h"
#include "server/openai/openai_call.h"
#include "server/openai/openai_chat_request.h"
#include "text/tokenizer/splitter.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

// These limit one request: tokens in either direction, bytes of all texts to tokenise, and bytes of an
// answer's text.
constexpr size_t kMaxTokens = size_t{1} << 20;
// Merging one long word takes memory of 28 times its bytes.
constexpr size_t kMaxPromptBytes = size_t{8} << 20;
constexpr size_t kMaxTextBytes = size_t{16} << 20;

HttpResponse openai_error_of(const FieldReader& reader) {
  return error_response(ErrorStyle::kOpenAi, reader.status(), reader.failed_field());
}

void need_tokenizer(FieldReader& reader, std::string_view field, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) reader.fail(field, "the server runs without a tokenizer (--skip-tokenizer-init)");
}

// Appends the text of one list of ids as a JSON string, and adds its bytes to those of the request.
void append_decoded(FieldReader& reader, MemoryCharge& reading, const std::string& name,
                    const json::value& list, const Tokenizer& tokenizer, int64_t vocab_size,
                    bool skip_special_tokens, size_t& num_bytes, std::string& out) {
  json::object one;  // the list, under the name that errors should show
  one.emplace(name, list);
  FieldReader inner(one);
  std::vector<int32_t> ids;
  inner.integers(name, ids, 0, vocab_size - 1, kMaxTokens);
  reader.adopt(inner);
  const size_t bytes_before = num_bytes;
  for (const int32_t id : ids) num_bytes += tokenizer.token_bytes(id).size();
  if (num_bytes > kMaxTextBytes) {
    reader.fail("tokens",
                fmt::format("have more than {} bytes of text, which one request may have", kMaxTextBytes));
  }
  const Result<void> charged =
      reading.add(MemoryKind::kOutput, (num_bytes - bytes_before) * kTextBytesPerByte);
  if (!charged.ok()) reader.refuse({}, charged.status());
  if (reader.ok()) append_json_string(out, tokenizer.decode(ids, skip_special_tokens));
}

// Returns the tokens of the prompt of a chat with these fields.
HttpResponse tokenize_chat(FieldReader& reader, size_t body_bytes, const OpenAiLimits& limits) {
  if (reader.has("prompt")) reader.fail("prompt", "excludes messages; only one of them may be given");
  reader.unsupported({"return_token_strs"}, "use /detokenize");
  if (body_bytes > kMaxPromptBytes) {
    reader.fail("messages", fmt::format("are in a body of {} bytes; at most {} are allowed", body_bytes,
                                        kMaxPromptBytes));
  }
  OpenAiLimits chat = limits;
  chat.reserve = nullptr;  // nothing is generated
  chat.request.max_tokens = 0;
  chat.prompt.allow_auto_truncate = false;
  chat.prompt.context_length = chat.prompt.max_total_tokens = static_cast<int64_t>(kMaxTokens);
  OpenAiChatRequest request;
  request.common.memory = MemoryCharge(limits.prompt.memory);
  read_openai_chat(reader, chat, request);
  if (!reader.ok()) return openai_error_of(reader);
  const TokenIds& ids = request.common.items.front().request.input_ids;
  HttpResponse response;
  response.body = "{\"tokens\":";
  append_json_ids(response.body, ids);
  response.body += ",\"count\":";
  append_json_number(response.body, static_cast<int64_t>(ids.size()));
  response.body += ",\"max_model_len\":";
  append_json_number(response.body, limits.prompt.context_length);
  response.body += '}';
  return response;
}

}  // namespace

HttpResponse tokenize_response(std::string_view body, const OpenAiLimits& limits) {
  const Tokenizer* tokenizer = limits.tokenizer;
  MemoryCharge reading(limits.prompt.memory);
  const auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return error_response(ErrorStyle::kOpenAi, parsed.status());
  FieldReader reader(parsed.value());
  if (reader.has("messages")) return tokenize_chat(reader, body.size(), limits);
  bool add_special_tokens = true;
  reader.boolean("add_special_tokens", add_special_tokens);
  need_tokenizer(reader, "prompt", tokenizer);
  const json::value* prompt = reader.find("prompt");
  if (prompt == nullptr) reader.fail("prompt", "is missing; must be a string or a list of strings");
  std::vector<std::string> texts;
  reader.texts("prompt", texts, std::numeric_limits<size_t>::max());
  size_t num_bytes = 0;
  for (const std::string& text : texts) num_bytes += text.size();
  if (num_bytes > kMaxPromptBytes) {
    reader.fail("prompt", fmt::format("has {} bytes; at most {} are allowed", num_bytes, kMaxPromptBytes));
  }
  if (!reader.ok()) return openai_error_of(reader);
  // Each byte of text may be a token. The text and the answer each hold a copy of the token.
  for (const auto& [kind, bytes] : {std::pair(MemoryKind::kPrompt, num_bytes * kEncodeBytesPerByte),
                                    std::pair(MemoryKind::kOutput, num_bytes * kIdTextBytes)}) {
    if (const Result<void> charged = reading.add(kind, bytes); !charged.ok())
      return error_response(ErrorStyle::kOpenAi, charged.status());
  }
  std::string tokens;
  std::string counts;
  size_t room = kMaxTokens;
  for (const std::string& text : texts) {
    if (!tokens.empty()) tokens += ',';
    if (!counts.empty()) counts += ',';
    std::vector<int32_t> ids;
    try {
      ids = tokenizer->encode(text, add_special_tokens, room);
    } catch (const PatternLimitError& error) {
      reader.fail("prompt", error.what());
      return openai_error_of(reader);
    }
    if (ids.size() > room) {
      reader.fail("prompt", fmt::format("has more than {} tokens, which one request may have", kMaxTokens));
      return openai_error_of(reader);
    }
    room -= ids.size();
    append_json_ids(tokens, ids);
    append_json_number(counts, static_cast<int64_t>(ids.size()));
  }
  const bool is_list = prompt->is_array();
  HttpResponse response;
  std::string& out = response.body;
  out = is_list ? "{\"tokens\":[" + tokens + "],\"count\":[" + counts + "]"
                : "{\"tokens\":" + tokens + ",\"count\":" + counts;
  out += ",\"max_model_len\":";
  append_json_number(out, limits.prompt.context_length);
  out += '}';
  return response;
}

HttpResponse detokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t vocab_size,
                                 const std::shared_ptr<RequestMemory>& memory) {
  MemoryCharge reading(memory);
  const auto parsed = parse_json_object(body, &reading);
  if (!parsed.ok()) return error_response(ErrorStyle::kOpenAi, parsed.status());
  FieldReader reader(parsed.value());
  bool skip_special_tokens = true;
  reader.boolean("skip_special_tokens", skip_special_tokens);
  need_tokenizer(reader, "tokens", tokenizer);
  const json::value* value = reader.find("tokens");
  const json::array* list = value == nullptr ? nullptr : value->if_array();
  if (value == nullptr) {
    reader.fail("tokens", "is missing; must be a list of token ids or a list of such lists");
  } else if (list == nullptr) {
    reader.must_be("tokens", *value, "a list of token ids or a list of such lists");
  }
  if (!reader.ok()) return openai_error_of(reader);
  size_t num_bytes = 0;
  std::string text;
  if (list->empty() || !list->front().is_array()) {
    append_decoded(reader, reading, "tokens", *value, *tokenizer, vocab_size, skip_special_tokens, num_bytes,
                   text);
  } else {
    for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
      text += i == 0 ? '[' : ',';
      const std::string name = fmt::format("tokens[{}]", i);
      if (!(*list)[i].is_array()) reader.must_be(name, (*list)[i], "a list of token ids");
      append_decoded(reader, reading, name, (*list)[i], *tokenizer, vocab_size, skip_special_tokens,
                     num_bytes, text);
    }
    text += ']';
  }
  if (!reader.ok()) return openai_error_of(reader);
  HttpResponse response;
  response.body = "{\"text\":" + text + "}";
  return response;
}

void add_openai_tokenize_routes(Router& router, ServerContext& context) {
  // `prepare(exchange)` returns the answer to a body, as a function that any thread may call.
  using Answer = std::function<HttpResponse(std::string_view)>;
  const auto add = [&](const char* path, std::function<Answer(const HttpRequest&)> prepare) {
    router.add({.method = "POST",
                .path = path,
                .style = ErrorStyle::kOpenAi,
                .handler = [&context, prepare = std::move(prepare)](std::shared_ptr<HttpExchange> exchange) {
                  Answer answer = prepare(exchange->request());
                  parse_body(context, std::move(exchange), ErrorStyle::kOpenAi, std::move(answer),
                             [](const std::shared_ptr<HttpExchange>& client, HttpResponse response) {
                               client->respond(std::move(response));
                             });
                }});
  };
  for (const char* path : {"/v1/tokenize", "/tokenize"}) {
    add(path, [&context](const HttpRequest& from) {
      return [limits = openai_limits(context, from)](std::string_view body) {
        return tokenize_response(body, limits);
      };
    });
  }
  for (const char* path : {"/v1/detokenize", "/detokenize"}) {
    add(path, [&context](const HttpRequest& from) {
      return [&context, memory = ledger_for(context, from)](std::string_view body) {
        return detokenize_response(body, context.tokenizer, context.config.vocab_size, memory);
      };
    });
  }
}

}  // namespace hadal::server
