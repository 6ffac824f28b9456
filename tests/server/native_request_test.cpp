// Tests parsing the body of /generate, without an engine.
#include "server/native/native_request.h"

#include <gtest/gtest.h>

#include <string>

#include "server/admission/request_memory.h"
#include "tests/server/test_server.h"
#include "text/stop/stop_search.h"

namespace hadal::server {

namespace {

std::variant<NativeRequest, FieldError> parse_native(const std::string& body) {
  return parse_native_request(body, {.prompt = {.context_length = 4096, .max_total_tokens = 8192},
                                     .vocab_size = testing::kVocab,
                                     .tokenizer = nullptr});
}

// However many generations a request has, its grammar and its stops exist once.
TEST(NativeRequest, PromptsShareTheirGrammarAndStops) {
  const std::string params = R"({"n":2,"stop":["a","b"],"stop_regex":"c+","json_schema":{"type":"string"}})";
  for (const std::string& all : {params, "[" + params + "," + params + "]"}) {
    const auto parsed_body = parse_native(R"({"input_ids":[[3],[4]],"sampling_params":)" + all + "}");
    ASSERT_TRUE(std::holds_alternative<NativeRequest>(parsed_body)) << all;
    const auto& items = std::get<NativeRequest>(parsed_body).items;
    ASSERT_EQ(items.size(), 4U);
    for (const NativeItem& item : items) {
      EXPECT_EQ(item.grammar, items[0].grammar);
      EXPECT_EQ(item.request.stops, items[0].request.stops);
    }
    ASSERT_NE(items[0].request.stops, nullptr);
    EXPECT_EQ(items[0].request.stops->size(), 3U);
    EXPECT_EQ(items[0].grammar->text, R"({"type":"string"})");
  }
}

// Making thousands of choices takes milliseconds, and a client can request them with few bytes.
TEST(NativeRequest, PlacesForAllChoicesAreTakenBeforeAnyIsMade) {
  const auto memory = std::make_shared<RequestMemory>(size_t{1} << 20);
  std::vector<int64_t> asked;
  const auto refused = [&](const std::string& more) {
    const NativeLimits limits{.prompt = {.context_length = 4096, .max_total_tokens = 8192, .memory = memory},
                              .reserve = [&](int64_t count) -> Result<QueuePlaces> {
                                asked.push_back(count);
                                return make_status(StatusCode::kResourceExhausted, "the queue is full");
                              },
                              .vocab_size = testing::kVocab,
                              .tokenizer = nullptr};
    const auto result = parse_native_request(
        R"({"input_ids":[[3],[4],[5]],"sampling_params":{"n":128,"max_new_tokens":9},)" + more + "}", limits);
    const FieldError* error = std::get_if<FieldError>(&result);
    return error == nullptr ? std::string() : error->status.message;
  };
  EXPECT_EQ(refused(R"("stream":false)"), "the queue is full") << "the memory would be exhausted as well";
  EXPECT_EQ(refused(R"("rid":["x","x","x"])"), "the queue is full");
  EXPECT_EQ(memory->refused(MemoryKind::kChoice), 0);
  EXPECT_EQ(asked, (std::vector<int64_t>{384, 384}));
  EXPECT_NE(refused(R"("priority":"high")"), "the queue is full");
  EXPECT_EQ(asked.size(), 2U) << "a request that is wrong takes no places";
}

TEST(NativeRequest, OversizedFieldsAreRefusedBeforeTheyAreStored) {
  const auto refused = [](const std::string& params) {
    const auto result = parse_native(R"({"input_ids":[[3],[4]],"sampling_params":)" + params + "}");
    const FieldError* error = std::get_if<FieldError>(&result);
    return error == nullptr ? std::string() : error->field;
  };
  EXPECT_EQ(refused(R"({"ebnf":")" + std::string(300'000, 'x') + "\"}"), "sampling_params.ebnf");
  EXPECT_EQ(refused(R"({"stop_regex":["1","2","3","4","5","6","7","8","9"]})"), "sampling_params.stop_regex");
  EXPECT_EQ(refused(R"({"stop_regex":"(a"})"), "sampling_params.stop_regex");
  EXPECT_EQ(refused(R"({"stop_regex":["1","2","3","4","5","6","7","8"]})"), "");
}

// All prompts of a request together may have as many states as one prompt.
TEST(NativeRequest, TheStopExpressionsOfAllPromptsTogetherAreBounded) {
  const auto refused = [](int repeats, int count) {
    std::string ids;
    std::string params;
    for (int i = 0; i < count; ++i) {
      ids += fmt::format("{}[3]", i == 0 ? "" : ",");
      params += fmt::format(R"({}{{"stop_regex":"{}a{{{}}}"}})", i == 0 ? "" : ",", i, repeats);
    }
    const auto result =
        parse_native(fmt::format(R"({{"input_ids":[{}],"sampling_params":[{}]}})", ids, params));
    const FieldError* error = std::get_if<FieldError>(&result);
    return error == nullptr ? std::string() : error->field;
  };
  EXPECT_EQ(refused(500, 1), "");
  EXPECT_EQ(refused(500, 2), "");
  EXPECT_EQ(refused(500, 3), "sampling_params[2].stop_regex");
  EXPECT_EQ(refused(10, 64), "");
  EXPECT_TRUE(refused(20, 64).ends_with("].stop_regex")) << refused(20, 64);
}

TEST(NativeRequest, ARequestHasAtMost64DifferentGrammars) {
  const auto parsed = [](int count, int different) {
    std::string ids;
    std::string params;
    for (int i = 0; i < count; ++i) {
      ids += fmt::format("{}[3]", i == 0 ? "" : ",");
      params += fmt::format(R"({}{{"regex":"a{}"}})", i == 0 ? "" : ",", i % different);
    }
    return parse_native(fmt::format(R"({{"input_ids":[{}],"sampling_params":[{}]}})", ids, params));
  };
  EXPECT_TRUE(std::holds_alternative<NativeRequest>(parsed(64, 64)));
  const auto repeated = parsed(130, 64);
  ASSERT_TRUE(std::holds_alternative<NativeRequest>(repeated)) << "equal grammars count once";
  const auto& items = std::get<NativeRequest>(repeated).items;
  EXPECT_EQ(items[64].grammar, items[0].grammar) << "and exist once";
  EXPECT_EQ(items[129].grammar, items[1].grammar);
  const auto refused = parsed(65, 65);
  const FieldError* error = std::get_if<FieldError>(&refused);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(error->field, "sampling_params[64].regex");
  EXPECT_EQ(error->status.code, StatusCode::kInvalidArgument);
  EXPECT_NE(error->status.message.find("there are 65 different grammars up to this prompt; at most 64 are "
                                       "allowed in one request"),
            std::string::npos)
      << error->status.message;
}

}  // namespace
}  // namespace hadal::server
