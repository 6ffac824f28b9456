#include "server/openai_tokenize.h"

#include <limits>

#include <boost/json.hpp>

#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/json_writer.h"

namespace hadal::server {
namespace json = boost::json;
namespace {

HttpResponse error_of(const FieldReader& reader) {
  return error_response(ErrorStyle::kOpenAi, reader.status(), reader.failed_field());
}

void need_tokenizer(FieldReader& reader, std::string_view field, const Tokenizer* tokenizer) {
  if (tokenizer == nullptr) reader.fail(field, "the server runs without a tokenizer (--skip-tokenizer-init)");
}

// Appends the text of one list of ids as a JSON string.
void append_text(FieldReader& reader, const std::string& name, const json::value& list,
                 const Tokenizer& tokenizer, int64_t vocab_size, bool skip_special_tokens, std::string& out) {
  json::object one;  // the list under the name that errors should show
  one.emplace(name, list);
  FieldReader inner(one);
  std::vector<int32_t> ids;
  inner.integers(name, ids, 0, vocab_size - 1);
  reader.adopt(inner);
  if (reader.ok()) append_json_string(out, tokenizer.decode(ids, skip_special_tokens));
}

}  // namespace

HttpResponse tokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t max_model_len) {
  const auto parsed = parse_json_object(body);
  if (!parsed.ok()) return error_response(ErrorStyle::kOpenAi, parsed.status());
  FieldReader reader(parsed.value());
  bool add_special_tokens = true;
  reader.boolean("add_special_tokens", add_special_tokens);
  need_tokenizer(reader, "prompt", tokenizer);
  const json::value* prompt = reader.find("prompt");
  if (prompt == nullptr) reader.fail("prompt", "is missing; must be a string or a list of strings");
  std::vector<std::string> texts;
  reader.texts("prompt", texts, std::numeric_limits<size_t>::max());
  if (!reader.ok()) return error_of(reader);
  std::string tokens;
  std::string counts;
  for (const std::string& text : texts) {
    if (!tokens.empty()) tokens += ',';
    if (!counts.empty()) counts += ',';
    const std::vector<int32_t> ids = tokenizer->encode(text, add_special_tokens);
    append_json_ids(tokens, ids);
    append_json_number(counts, static_cast<int64_t>(ids.size()));
  }
  const bool is_list = prompt->is_array();
  HttpResponse response;
  std::string& out = response.body;
  out = is_list ? "{\"tokens\":[" + tokens + "],\"count\":[" + counts + "]"
                : "{\"tokens\":" + tokens + ",\"count\":" + counts;
  out += ",\"max_model_len\":";
  append_json_number(out, max_model_len);
  out += '}';
  return response;
}

HttpResponse detokenize_response(std::string_view body, const Tokenizer* tokenizer, int64_t vocab_size) {
  const auto parsed = parse_json_object(body);
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
  if (!reader.ok()) return error_of(reader);
  std::string text;
  if (list->empty() || !list->front().is_array()) {
    append_text(reader, "tokens", *value, *tokenizer, vocab_size, skip_special_tokens, text);
  } else {
    for (size_t i = 0; i < list->size() && reader.ok(); ++i) {
      text += i == 0 ? '[' : ',';
      const std::string name = fmt::format("tokens[{}]", i);
      if (!(*list)[i].is_array()) reader.must_be(name, (*list)[i], "a list of token ids");
      append_text(reader, name, (*list)[i], *tokenizer, vocab_size, skip_special_tokens, text);
    }
    text += ']';
  }
  if (!reader.ok()) return error_of(reader);
  HttpResponse response;
  response.body = "{\"text\":" + text + "}";
  return response;
}

void add_openai_tokenize_routes(Router& router, ServerContext& context) {
  for (const char* path : {"/v1/tokenize", "/tokenize"}) {
    router.add({.method = "POST",
                .path = path,
                .style = ErrorStyle::kOpenAi,
                .handler = [&context](const std::shared_ptr<HttpExchange>& exchange) {
                  exchange->respond(tokenize_response(exchange->request().body, context.tokenizer,
                                                      context.engine.context_length()));
                }});
  }
  for (const char* path : {"/v1/detokenize", "/detokenize"}) {
    router.add({.method = "POST",
                .path = path,
                .style = ErrorStyle::kOpenAi,
                .handler = [&context](const std::shared_ptr<HttpExchange>& exchange) {
                  exchange->respond(detokenize_response(exchange->request().body, context.tokenizer,
                                                        context.config.vocab_size));
                }});
  }
}

}  // namespace hadal::server
