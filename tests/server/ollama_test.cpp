// Tests Ollama's endpoints over an engine that generates a script's tokens: objects and lines, thinking,
// calls, options, errors, and the description of the model.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include <boost/json.hpp>

#include "server/generation/whole_calls.h"
#include "server/ollama/ollama_request.h"
#include "tests/server/dialect_fixture.h"
#include "tests/source_dir.h"
#include "text/chat/chat_template.h"

namespace hadal::server {
namespace {

using testing::parsed;
using testing::str;
using testing::TestServer;
namespace json = boost::json;

// Returns the options of a server whose model answers `text` to a prompt of `prompt_tokens` tokens and then
// ends.
testing::TestServerOptions ollama_options(int64_t prompt_tokens, std::string_view text,
                                          ChatFormat format = ChatFormat::kV31) {
  testing::TestServerOptions options = testing::answering(prompt_tokens, text, format);
  options.server.tool_call_parser = "deepseekv31";
  options.server.version = "1.2.3";
  options.server.num_parameters = 671'000'000'000;
  options.server.weight_bytes = 12345;
  return options;
}

std::string ollama_chat_body(std::string_view more) {
  std::string body = R"({"model":"m","messages":[{"role":"user","content":"Hi"}])";
  if (!more.empty()) body += ",";
  return body + std::string(more) + "}";
}

std::vector<json::object> answer_lines(const HttpResponse& response) {
  EXPECT_EQ(response.content_type, "application/x-ndjson");
  std::vector<json::object> lines;
  for (size_t at = 0; at < response.body.size();) {
    const size_t end = response.body.find('\n', at);
    EXPECT_NE(end, std::string::npos) << "a line without an end";
    if (end == std::string::npos) break;
    lines.push_back(json::parse(response.body.substr(at, end - at)).as_object());
    at = end + 1;
  }
  return lines;
}

int64_t ollama_prompt_tokens(const std::string& path, std::string body) {
  TestServer server(ollama_options(1, "x"));
  body.insert(1, R"("stream":false,)");
  const HttpResponse response = server.call("POST", path, body);
  EXPECT_EQ(response.status, 200) << response.body;
  return parsed(response).at("prompt_eval_count").to_number<int64_t>();
}

struct Answer {
  std::string content, thinking, reason;
  json::array calls;
  size_t num_lines = 0;
};

void add_message(Answer& out, const json::object& object) {
  const json::object& message = object.at("message").as_object();
  EXPECT_EQ(str(message.at("role")), "assistant");
  out.content += str(message.at("content"));
  if (const json::value* thinking = message.if_contains("thinking")) out.thinking += str(*thinking);
  if (const json::value* calls = message.if_contains("tool_calls")) {
    for (const json::value& call : calls->as_array()) out.calls.push_back(call.at("function"));
  }
}

// Requests both forms, checks that they have the same content, and returns it.
Answer ask_ollama(const std::string& body, std::string_view text) {
  TestServer server(ollama_options(ollama_prompt_tokens("/api/chat", body), text));
  std::string whole_body = body;
  whole_body.insert(1, R"("stream":false,)");
  const HttpResponse response = server.call("POST", "/api/chat", whole_body);
  EXPECT_EQ(response.status, 200) << response.body;
  const json::object object = parsed(response).as_object();
  EXPECT_EQ(object.at("done"), true);
  Answer whole;
  add_message(whole, object);
  whole.reason = str(object.at("done_reason"));
  Answer streamed;
  for (const json::object& line : answer_lines(server.call("POST", "/api/chat", body))) {
    EXPECT_EQ(streamed.reason, "") << "something after the end";
    EXPECT_EQ(str(line.at("model")), "m");
    EXPECT_TRUE(str(line.at("created_at")).ends_with("Z"));
    add_message(streamed, line);
    ++streamed.num_lines;
    if (!line.at("done").as_bool()) continue;
    streamed.reason = str(line.at("done_reason"));
    for (const char* name : {"total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration",
                             "eval_count", "eval_duration"}) {
      EXPECT_GE(line.at(name).as_int64(), 0) << name;
    }
    EXPECT_EQ(line.at("eval_count"), object.at("eval_count"));
  }
  EXPECT_EQ(streamed.content, whole.content);
  EXPECT_EQ(streamed.thinking, whole.thinking);
  EXPECT_EQ(streamed.calls, whole.calls);
  EXPECT_EQ(streamed.reason, whole.reason);
  return streamed;
}

TEST(Ollama, AChatStreamsAsLinesUnlessTheClientWantsOneObject) {
  const Answer answer = ask_ollama(ollama_chat_body(""), "Hello, wörld! 🦊 Good day.");
  EXPECT_EQ(answer.content, "Hello, wörld! 🦊 Good day.");
  EXPECT_EQ(answer.thinking, "");
  EXPECT_EQ(answer.reason, "stop");
  EXPECT_GT(answer.num_lines, 2U);
}

TEST(Ollama, OptionsLimitAndStopTheAnswer) {
  EXPECT_EQ(ask_ollama(ollama_chat_body(R"("options":{"num_predict":2})"), "one two three four").reason,
            "length");
  const Answer stopped = ask_ollama(ollama_chat_body(R"("options":{"stop":["thr"]})"), "one two three four");
  EXPECT_EQ(stopped.content, "one two ");
  EXPECT_EQ(stopped.reason, "stop");
}

TEST(Ollama, ThinkingIsSeparateFromTheContent) {
  for (const char* think : {"true", "\"high\""}) {
    const Answer answer =
        ask_ollama(ollama_chat_body(std::string(R"("think":)") + think), "Let me see.</think>It is 4.");
    EXPECT_EQ(answer.thinking, "Let me see.");
    EXPECT_EQ(answer.content, "It is 4.");
  }
}

TEST(Ollama, CallsComeWholeWithArgumentsAsObjects) {
  const Answer answer =
      ask_ollama(ollama_chat_body(testing::kChatTools),
                 "Sure.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\":\n 1}"
                 "<｜tool▁call▁end｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": [2]}"
                 "<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
  EXPECT_EQ(answer.content, "Sure.");
  ASSERT_EQ(answer.calls.size(), 2U);
  EXPECT_EQ(str(answer.calls[0].at("name")), "add");
  EXPECT_EQ(answer.calls[0].at("arguments"), json::parse(R"({"a":1})"));
  EXPECT_EQ(answer.calls[1].at("arguments"), json::parse(R"({"a":[2]})"));
  EXPECT_EQ(answer.calls[1].at("index"), 1);
}

TEST(Ollama, CallsOfTheConversationAreReadAsOpenAisAre) {
  const auto tokens = [](const std::string& path, const std::string& messages) {
    TestServer server(ollama_options(1, "x"));
    const HttpResponse response = server.call(
        "POST", path,
        std::string(R"({"stream":false,)") + std::string(testing::kChatTools) + "," + messages + "}");
    EXPECT_EQ(response.status, 200) << response.body;
    const json::value answer = parsed(response);
    return path == "/api/chat" ? answer.at("prompt_eval_count").to_number<int64_t>()
                               : answer.at("usage").at("prompt_tokens").to_number<int64_t>();
  };
  const std::string begin =
      R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"","tool_calls":[)";
  EXPECT_EQ(
      tokens("/api/chat", begin + R"({"function":{"name":"add","arguments":{"a":1}}}]},
                {"role":"tool","tool_name":"add","content":"3"}])"),
      tokens("/v1/chat/completions",
             begin + R"({"id":"c","type":"function","function":{"name":"add","arguments":"{\"a\":1}"}}]},
                {"role":"tool","tool_call_id":"c","content":"3"}])"));
}

TEST(Ollama, PiecesOfACallAreJoined) {
  WholeCalls calls;
  EXPECT_TRUE(calls.append({{.index = 0, .id = "i", .name = "f", .arguments = "{\"a\":"}}).empty());
  EXPECT_TRUE(calls.append({{.index = 0, .arguments = "1}"}}).empty());
  const auto first = calls.append({{.index = 1, .id = "j", .name = "g"}});
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].name + first[0].arguments, "f{\"a\":1}");
  const auto last = calls.finish();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->name, "g");
  EXPECT_FALSE(calls.finish());
}

TEST(Ollama, GenerateAnswersAPromptWithOrWithoutTheTemplate) {
  const std::string body = R"({"prompt":"Hi","system":"Be brief."})";
  TestServer server(ollama_options(ollama_prompt_tokens("/api/generate", body), "one two three"));
  std::string text;
  const std::vector<json::object> lines = answer_lines(server.call("POST", "/api/generate", body));
  for (const json::object& line : lines) text += str(line.at("response"));
  EXPECT_EQ(text, "one two three");
  EXPECT_EQ(str(lines.back().at("done_reason")), "stop");
  EXPECT_EQ(str(lines.back().at("model")), "hadal-tiny");
  // A raw prompt has no tokens of the template.
  EXPECT_EQ(ollama_prompt_tokens("/api/generate", R"({"prompt":"Hi","raw":true})"),
            static_cast<int64_t>(server.tokenizer().encode("Hi").size()));
}

TEST(Ollama, LogProbabilitiesAreThoseOfTheContent) {
  TestServer server(
      ollama_options(ollama_prompt_tokens("/api/chat", ollama_chat_body("")), "one two three four five"));
  const HttpResponse response = server.call(
      "POST", "/api/chat",
      ollama_chat_body(R"("stream":false,"logprobs":true,"top_logprobs":2,"options":{"num_predict":3})"));
  ASSERT_EQ(response.status, 200) << response.body;
  const json::value answer = parsed(response);
  ASSERT_EQ(answer.at("logprobs").as_array().size(), 3U);
  EXPECT_EQ(answer.at("logprobs").at(0).at("top_logprobs").as_array().size(), 2U);
}

TEST(Ollama, WithoutAnythingToGenerateTheModelIsSaidToBeLoaded) {
  TestServer server(ollama_options(1, "x"));
  for (const auto& [path, body] : {std::pair("/api/generate", R"({"model":"m"})"),
                                   std::pair("/api/generate", R"({"prompt":"","keep_alive":"5m"})"),
                                   std::pair("/api/chat", R"({"messages":[],"keep_alive":-1})")}) {
    const HttpResponse response = server.call("POST", path, body);
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(parsed(response).at("done_reason"), "load");
    EXPECT_EQ(parsed(response).at("done"), true);
  }
  EXPECT_EQ(server.engine().stats().num_requests, 0);
}

// Parses a chat with these options, and returns how it will be sampled.
SamplingParams params_of(std::string_view options) {
  const auto tokenizer = Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
  OpenAiLimits limits;
  limits.prompt = {.context_length = 4096, .max_total_tokens = 8192};
  limits.vocab_size = testing::kVocab;
  limits.tokenizer = tokenizer.get();
  limits.chat_format = ChatFormat::kV31;
  const auto parsed =
      parse_ollama_chat(ollama_chat_body(std::string(R"("options":)") + std::string(options)), limits);
  if (const auto* error = std::get_if<FieldError>(&parsed)) {
    ADD_FAILURE() << error->status.message;
    return {};
  }
  const OpenAiItem& item = std::get<OllamaRequest>(parsed).common.items.front();
  return item.request.sampling;
}

TEST(Ollama, OptionsBecomeSamplingParameters) {
  const SamplingParams params = params_of(
      R"({"num_predict":7,"temperature":0.5,"top_k":40,"top_p":0.9,"min_p":0.1,"seed":42,"repeat_penalty":1.1,
          "presence_penalty":0.5,"frequency_penalty":-0.5,"repeat_last_n":-1})");
  EXPECT_EQ(params.max_new_tokens, 7);
  EXPECT_EQ(params.temperature, 0.5F);
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.top_p, 0.9F);
  EXPECT_EQ(params.min_p, 0.1F);
  EXPECT_EQ(params.seed, 42U);
  EXPECT_EQ(params.repetition_penalty, 1.1F);
  EXPECT_EQ(params.presence_penalty, 0.5F);
  EXPECT_EQ(params.frequency_penalty, -0.5F);
  const SamplingParams free =
      params_of(R"({"num_predict":-1,"top_k":0,"seed":-1,"num_ctx":4096,"num_gpu":99,"repeat_last_n":64})");
  EXPECT_GT(free.max_new_tokens, 4000);
  EXPECT_EQ(free.top_k, -1);
  EXPECT_FALSE(free.seed);
}

TEST(Ollama, ErrorsNameTheFieldInOllamasShape) {
  TestServer server(ollama_options(1, "x"));
  const struct {
    std::string_view body, text;
  } cases[] = {
      {R"([])", "object"},
      {R"({"messages":"x"})", "messages is \"x\"; must be a list"},
      {R"({"messages":[{"role":"robot","content":"x"}]})", "messages[0].role"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}]})",
       "messages[0].tool_calls[0].function.arguments is \"{}\"; must be an object"},
      {R"("format":"xml")", "format is \"xml\"; must be \"json\""},
      {R"("think":"deeply")", "think is \"deeply\"; must be true, false, low, medium, high or max"},
      {R"("keep_alive":[])", "keep_alive"},
      {R"("options":{"temperature":-1})", "options.temperature is -1"},
      {R"("options":{"num_predict":0})", "options.num_predict is 0"},
      {R"("options":{"num_predict":100000})", "options.num_predict"},
      {R"("options":{"num_ctx":5000})", "--context-length"},
      {R"("options":{"mirostat":2})", "options.mirostat is 2; must be 0"},
      {R"("options":{"repeat_penalty":1.2,"repeat_last_n":64})", "options.repeat_last_n is 64; must be -1"},
      {R"("options":{"stop":7})", "options.stop"},
      {R"("top_logprobs":3)", "needs logprobs"},
      {R"("stream":"yes")", "stream is \"yes\""},
      {R"({"messages":[],"keep_alive":0})", "keep_alive"},
  };
  for (const auto& one : cases) {
    const std::string body = one.body.starts_with('"') ? ollama_chat_body(one.body) : std::string(one.body);
    const HttpResponse response = server.call("POST", "/api/chat", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_EQ(parsed(response).as_object().size(), 1U);
    EXPECT_NE(str(parsed(response).at("error")).find(one.text), std::string::npos) << response.body;
  }
  for (const auto& [body, text] : {std::pair(R"({"prompt":"a","suffix":"b"})", "suffix"),
                                   std::pair(R"({"prompt":"a","template":"b"})", "template"),
                                   std::pair(R"({"prompt":"a","context":[1]})", "context"),
                                   std::pair(R"({"prompt":"a","raw":true,"system":"b"})", "system"),
                                   std::pair(R"({"prompt":["a"]})", "prompt"),
                                   std::pair(R"({"prompt":"a","raw":true,"think":true})", "think")}) {
    const HttpResponse response = server.call("POST", "/api/generate", body);
    EXPECT_EQ(response.status, 400) << body;
    EXPECT_NE(str(parsed(response).at("error")).find(text), std::string::npos) << response.body;
  }
}

TEST(Ollama, APromptThatIsTooLongIsCalledPrompt) {
  TestServer server(ollama_options(1, "x"));
  const std::string text = "word ";
  std::string prompt;
  for (int i = 0; i < 6000; ++i) prompt += text;
  const HttpResponse response = server.call("POST", "/api/generate", R"({"prompt":")" + prompt + R"("})");
  EXPECT_EQ(response.status, 400);
  EXPECT_TRUE(str(parsed(response).at("error")).starts_with("prompt")) << response.body;
}

TEST(Ollama, AFormatThatCannotThinkSaysSo) {
  TestServer v25(ollama_options(1, "x", ChatFormat::kV25));
  HttpResponse response = v25.call("POST", "/api/chat", ollama_chat_body(R"("think":true)"));
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("cannot be asked to think"), std::string::npos) << response.body;
  TestServer r1(ollama_options(1, "x", ChatFormat::kR1));
  response = r1.call("POST", "/api/chat", ollama_chat_body(R"("think":false)"));
  EXPECT_EQ(response.status, 400);
  EXPECT_NE(response.body.find("always think"), std::string::npos) << response.body;
}

TEST(Ollama, ImagesAreNotImplemented) {
  TestServer server(ollama_options(1, "x"));
  HttpResponse response = server.call(
      "POST", "/api/chat", R"({"messages":[{"role":"user","content":"a","images":["iVBORw0KGgo="]}]})");
  EXPECT_EQ(response.status, 501);
  EXPECT_NE(response.body.find("messages[0].images: text generation only"), std::string::npos)
      << response.body;
  response = server.call("POST", "/api/generate", R"({"prompt":"a","images":["iVBORw0KGgo="]})");
  EXPECT_EQ(response.status, 501);
  EXPECT_EQ(server.call("POST", "/api/generate", R"({"prompt":"a","images":[]})").status, 200);
}

TEST(Ollama, TheModelIsDescribedWithWhatItCanDo) {
  TestServer server(ollama_options(1, "x"));
  const json::value tags = parsed(server.call("GET", "/api/tags"));
  ASSERT_EQ(tags.at("models").as_array().size(), 1U);
  const json::value& model = tags.at("models").at(0);
  EXPECT_EQ(str(model.at("name")), "hadal-tiny");
  EXPECT_EQ(model.at("size"), 12345);
  EXPECT_EQ(str(model.at("digest")).size(), 64U);
  EXPECT_EQ(str(model.at("details").at("parameter_size")), "671.0B");
  EXPECT_EQ(str(parsed(server.call("GET", "/api/version")).at("version")), "1.2.3");
  EXPECT_EQ(parsed(server.call("GET", "/api/ps")).at("models").at(0).at("context_length"), 4096);
  for (const char* name : {"hadal-tiny", "hadal-tiny:latest"}) {
    const HttpResponse response =
        server.call("POST", "/api/show", std::string(R"({"model":")") + name + "\"}");
    ASSERT_EQ(response.status, 200) << response.body;
    const json::value shown = parsed(response);
    EXPECT_EQ(shown.at("capabilities"), json::parse(R"(["completion","tools","thinking"])"));
    EXPECT_EQ(shown.at("model_info").at("deepseek2.context_length"), 4096);
  }
  TestServer plain(ollama_options(1, "x", ChatFormat::kV25));
  EXPECT_EQ(parsed(plain.call("POST", "/api/show", R"({"model":"hadal-tiny"})")).at("capabilities"),
            json::parse(R"(["completion","tools"])"));
  EXPECT_EQ(server.call("POST", "/api/show", R"({"model":"other"})").status, 404);
  EXPECT_EQ(server.call("POST", "/api/show", R"({})").status, 400);
}

TEST(Ollama, OtherPathsSayWhyTheyDoNothing) {
  TestServer server(ollama_options(1, "x"));
  for (const auto& [method, path] :
       {std::pair("POST", "/api/pull"), std::pair("POST", "/api/push"), std::pair("POST", "/api/create"),
        std::pair("POST", "/api/copy"), std::pair("DELETE", "/api/delete"), std::pair("POST", "/api/embed"),
        std::pair("POST", "/api/embeddings"), std::pair("POST", "/api/blobs/sha256:00")}) {
    const HttpResponse response = server.call(method, path);
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_FALSE(str(parsed(response).at("error")).empty());
  }
  const HttpResponse response = server.call("GET", "/api/nothing");
  EXPECT_EQ(response.status, 404);
  EXPECT_NE(str(parsed(response).at("error")).find("/api/nothing"), std::string::npos);
}

TEST(Ollama, AnErrorInAStreamIsItsLastLine) {
  testing::TestServerOptions options = ollama_options(1, "");
  options.script = " a b c d e f g";  // without an end
  TestServer server(std::move(options));
  server.gate().allow(1);
  const auto exchange =
      server.send("POST", "/api/chat", ollama_chat_body(R"("options":{"num_predict":4000})"));
  ASSERT_TRUE(server.io().run_until([&] {
    server.gate().allow(1);
    return exchange->num_writes > 1;
  }));
  std::thread drain([&] { server.engine().drain(std::chrono::milliseconds(0)); });
  const bool ended = server.io().run_until([&] {
    server.gate().allow(1);
    return exchange->complete;
  });
  server.gate().open();
  drain.join();
  ASSERT_TRUE(ended);
  std::vector<json::object> lines = answer_lines(exchange->response);
  ASSERT_GT(lines.size(), 1U);
  EXPECT_TRUE(lines.back().contains("error")) << exchange->response.body;
  lines.pop_back();
  for (const json::object& line : lines) EXPECT_EQ(line.at("done"), false);
}

}  // namespace
}  // namespace hadal::server
