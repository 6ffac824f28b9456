// Tests the grammars of requests: they are compiled on background threads, equal ones once, and their memory
// is counted before, during and after that.
#include "server/generation/grammar_task.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/admission/memory_costs.h"
#include "server/admission/request_memory.h"
#include "server/generation/background_pool.h"
#include "tests/server/test_server.h"

namespace hadal::server {
namespace {

HttpRequest from_test() {
  HttpRequest request;
  request.client = "peer:test";
  return request;
}

// Returns a schema that takes seconds to compile: its properties may come in an enormous number of orders.
std::string slow_schema() {
  std::string properties;
  for (int i = 0; i < 100; ++i) properties += fmt::format("{}\"p{}\":{{}}", i == 0 ? "" : ",", i);
  return fmt::format(R"({{"type":"object","minProperties":50,"maxProperties":60,"properties":{{{}}}}})",
                     properties);
}

TEST(MemoryCharge, MemoryThatSeveralShareIsCountedOnceUntilTheLastGivesItBack) {
  const auto memory = std::make_shared<RequestMemory>(100);
  auto part = std::make_shared<const int>(1);
  const std::weak_ptr<const int> alive = part;
  {
    MemoryCharge first(memory);
    EXPECT_TRUE(first.add_shared(MemoryKind::kGrammar, part, 60).ok());
    EXPECT_TRUE(first.add_shared(MemoryKind::kGrammar, part, 60).ok());
    EXPECT_EQ(first.bytes(MemoryKind::kGrammar), 0U) << "it is not this charge's alone";
    MemoryCharge second(memory);
    EXPECT_TRUE(second.add_shared(MemoryKind::kGrammar, std::move(part), 60).ok());
    MemoryCharge moved = std::move(first);
    EXPECT_EQ(memory->bytes(MemoryKind::kGrammar), 60U);
    const Result<void> refused = second.add_shared(MemoryKind::kGrammar, std::make_shared<const int>(2), 41);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code, StatusCode::kResourceExhausted);
    EXPECT_EQ(memory->refused(MemoryKind::kGrammar), 1);
    second = MemoryCharge(memory);
    EXPECT_EQ(memory->total(), 60U);
    EXPECT_FALSE(alive.expired()) << "its address would stand for another part";
    moved.clear();
    EXPECT_TRUE(alive.expired());
    EXPECT_EQ(memory->total(), 0U);
    EXPECT_TRUE(second.add_shared(MemoryKind::kGrammar, std::make_shared<const int>(3), 100).ok());
  }
  EXPECT_EQ(memory->total(), 0U);
}

class GrammarTask : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
    compiler_ = GrammarCompiler::create(server_.tokenizer(), {.vocab_size = testing::kVocab}).value();
    context_.emplace(server_.server().context());
    context_->grammars = compiler_.get();
  }
  Result<CompiledGrammars> compile(GrammarSpecs specs) {
    std::optional<Result<CompiledGrammars>> out;
    compile_grammars(*context_, server_.io(), from_test(), std::move(specs),
                     [&](Result<CompiledGrammars> compiled) { out = std::move(compiled); });
    EXPECT_TRUE(server_.io().run_until([&] { return out.has_value(); }));
    return std::move(*out);
  }
  static std::shared_ptr<const GrammarSpec> regex(const char* text) {
    return std::make_shared<const GrammarSpec>(GrammarSpec{.kind = GrammarKind::kRegex, .text = text});
  }
  // Returns a schema that needs the vocabulary without control characters.
  static std::shared_ptr<const GrammarSpec> limited(int length) {
    return std::make_shared<const GrammarSpec>(
        GrammarSpec{.kind = GrammarKind::kJsonSchema,
                    .text = fmt::format(R"({{"type":"string","maxLength":{}}})", length)});
  }
  static size_t waiting_bytes(const GrammarSpecs& specs) {
    size_t bytes = 0;
    for (const auto& spec : specs) bytes += kCompileBytes + spec->text.size() * kCompileBytesPerByte;
    return bytes;
  }
  size_t compile_bytes() const { return static_cast<size_t>(compiler_->limits().compile_bytes); }
  // Gives the server a new ledger of request memory with this limit, and returns it.
  std::shared_ptr<RequestMemory> use_memory(size_t limit) {
    return context_->memory = std::make_shared<RequestMemory>(limit);
  }

  testing::TestServer server_;
  std::unique_ptr<GrammarCompiler> compiler_;
  std::optional<ServerContext> context_;
};

TEST_F(GrammarTask, CompilesEqualSpecsOnceAndKeepsTheirPlaces) {
  const auto one = regex("a+");
  const auto grammars = compile({one, one, nullptr, regex("b"), regex("a+"), one}).value().of_specs;
  ASSERT_EQ(grammars.size(), 6U);
  for (const size_t i : {1, 4, 5}) EXPECT_EQ(grammars[i], grammars[0]);
  EXPECT_EQ(grammars[2], nullptr);
  EXPECT_NE(grammars[3], grammars[0]);
  EXPECT_EQ(compiler_->cache_stats().num_misses, 2);
  EXPECT_EQ(compiler_->cache_stats().num_hits, 1) << "of the equal text in another spec";
}

TEST_F(GrammarTask, ARequestThatIsLeftWhileItWaitsIsDroppedAtOnce) {
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  context_->background.post([opened] { opened.wait(); }, "peer:test");
  const auto owned = std::make_shared<int>();
  const auto leave = compile_grammars(*context_, server_.io(), from_test(), {regex("a+")},
                                      [owned](const Result<CompiledGrammars>&) { ADD_FAILURE(); });
  EXPECT_EQ(owned.use_count(), 2);
  leave();
  EXPECT_EQ(owned.use_count(), 1) << "what waited is destroyed";
  leave();
  gate.set_value();
  EXPECT_TRUE(compile({regex("b")}).ok());
  EXPECT_EQ(compiler_->cache_stats().num_misses, 1) << "what was left is not compiled";
}

TEST_F(GrammarTask, ARequestThatIsLeftBetweenItsGrammarsIsNotAnswered) {
  const auto owned = std::make_shared<int>();
  const auto leave = compile_grammars(*context_, server_.io(), from_test(), {regex("a+"), regex("b+")},
                                      [owned](const Result<CompiledGrammars>&) { ADD_FAILURE(); });
  // The pool may have begun the first grammar, may wait for the second, or may have compiled both. In each
  // case done() would be called on this thread, which has run no task.
  leave();
  EXPECT_TRUE(server_.io().run_until([&] { return owned.use_count() == 1; }));
}

// When a client leaves, the engine waits for none of its grammars, and the ledger gets its memory back.
TEST(Grammars, AClientThatLeavesWhileItsGrammarWaitsGivesBackItsMemoryAtOnce) {
  if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
  const auto memory = std::make_shared<RequestMemory>(size_t{1} << 30);
  testing::TestServer server({.server = {.memory = memory}, .with_grammars = true});
  std::promise<void> gate;
  const std::shared_future<void> opened = gate.get_future().share();
  for (int i = 0; i < 8; ++i)
    server.server().context().background.post([opened] { opened.wait(); }, std::to_string(i));
  for (const auto& [path, body] : std::vector<std::pair<std::string, std::string>>{
           {"/generate", R"({"text":"Hello","sampling_params":{"regex":"a+","max_new_tokens":4}})"},
           {"/generate", R"({"text":"Hello","stream":true,"sampling_params":{"regex":"b","n":3}})"},
           {"/v1/completions", R"({"prompt":"Hello","regex":"c+","max_tokens":4})"}}) {
    auto exchange = server.send("POST", path, body);
    ASSERT_TRUE(server.io().run_until([&] { return memory->bytes(MemoryKind::kGrammar) > 0; })) << path;
    exchange->disconnect();
    // Nothing of the request is left, except while the thread that has parsed it releases its reference.
    EXPECT_TRUE(server.io().run_until([&] { return exchange.use_count() == 1; })) << path;
    exchange.reset();
    EXPECT_EQ(memory->total(), 0U) << path;
  }
  gate.set_value();
  EXPECT_EQ(server.generate(R"({"text":"Hello","sampling_params":{"regex":"d+","max_new_tokens":2}})").status,
            200);
}

TEST(Grammars, ACompileThatTheLedgerHasNoRoomForIsRefused) {
  if (!grammar_available()) GTEST_SKIP() << "built without xgrammar";
  const auto memory = std::make_shared<RequestMemory>(size_t{32} << 20);
  testing::TestServer server({.server = {.memory = memory}, .with_grammars = true});
  const std::string constrained = R"({"text":"Hello","sampling_params":{"regex":"a+","max_new_tokens":2}})";
  EXPECT_EQ(server.generate(constrained).status, 503) << "a compile may take 64 MiB";
  EXPECT_EQ(memory->refused(MemoryKind::kGrammar), 1);
  // When the answer is here, the thread that has parsed the request may still hold a reference to it.
  EXPECT_TRUE(server.io().run_until([&] { return memory->total() == 0; }));
  EXPECT_EQ(server.generate(R"({"text":"Hello","sampling_params":{"max_new_tokens":2}})").status, 200);
}

// While the last grammar is compiled, the ledger has the sizes of those before it and the limit of a compile.
TEST_F(GrammarTask, EachGrammarIsCountedWhileItWaitsWhileItIsCompiledAndAfterwards) {
  const GrammarSpecs specs = {regex("[a-z]{1,400}"), regex("[b-y]{1,400}"), regex("c")};
  const auto roomy = use_memory(size_t{1} << 40);
  size_t sizes = 0;
  size_t sizes_of_two = 0;
  {
    const CompiledGrammars compiled = compile(specs).value();
    for (const auto& grammar : compiled.of_specs) {
      sizes_of_two = sizes;
      sizes += static_cast<size_t>(grammar->size_bytes());
    }
    EXPECT_EQ(roomy->bytes(MemoryKind::kGrammar), sizes);
    EXPECT_EQ(roomy->total(), sizes);
  }
  EXPECT_EQ(roomy->total(), 0U);
  const size_t waiting = waiting_bytes({specs[0]});
  ASSERT_GT(sizes_of_two, 2 * waiting) << "the last compile needs most";
  const size_t needed = sizes_of_two + waiting_bytes({specs[2]}) + compile_bytes();
  for (const size_t missing : {0, 1}) {
    const auto memory = use_memory(needed - missing);
    const auto compiled = compile(specs);
    EXPECT_EQ(compiled.ok(), missing == 0);
    if (!compiled.ok()) {
      EXPECT_EQ(compiled.status().code, StatusCode::kResourceExhausted);
    }
    EXPECT_EQ(memory->refused(MemoryKind::kGrammar), static_cast<int64_t>(missing));
    EXPECT_EQ(memory->total(), missing == 0 ? sizes : 0U);
  }
}

TEST_F(GrammarTask, AllGrammarsOfARequestAreCountedBeforeTheFirstIsCompiled) {
  const GrammarSpecs specs = {regex("a"), regex("b"), regex("c")};
  use_memory(waiting_bytes(specs) - 1);
  EXPECT_EQ(compile(specs).status().code, StatusCode::kResourceExhausted);
  EXPECT_EQ(compiler_->cache_stats().num_misses, 0);
}

// Two requests use three grammars, which need the same vocabulary.
TEST_F(GrammarTask, AVocabularyIsCountedOnceForAllRequestsThatUseIt) {
  const auto memory = use_memory(size_t{1} << 40);
  const auto sizes_of = [](const CompiledGrammars& compiled) {
    size_t bytes = 0;
    for (const auto& grammar : compiled.of_specs) bytes += static_cast<size_t>(grammar->size_bytes());
    return bytes;
  };
  std::optional<CompiledGrammars> first = compile({limited(9), limited(8), regex("a")}).value();
  const auto vocabulary = static_cast<size_t>(first->of_specs[0]->shared_bytes());
  ASSERT_GT(vocabulary, 0U);
  EXPECT_EQ(memory->bytes(MemoryKind::kGrammar), sizes_of(*first) + vocabulary);
  std::optional<CompiledGrammars> second = compile({limited(7), limited(9)}).value();
  EXPECT_EQ(memory->bytes(MemoryKind::kGrammar), sizes_of(*first) + sizes_of(*second) + vocabulary);
  first.reset();
  EXPECT_EQ(memory->bytes(MemoryKind::kGrammar), sizes_of(*second) + vocabulary);
  second.reset();
  EXPECT_EQ(memory->total(), 0U) << "the cache has the grammars and their vocabulary, in a limit of its own";
  const CompiledGrammars known = compile({limited(9)}).value();
  EXPECT_EQ(memory->bytes(MemoryKind::kGrammar), sizes_of(known) + vocabulary);
}

TEST_F(GrammarTask, AVocabularyThatDoesNotFitIsRefusedAndNotMade) {
  const auto spec = limited(9);
  const auto vocabulary = [&] {
    use_memory(size_t{1} << 40);
    return static_cast<size_t>(compile({limited(3)}).value().of_specs[0]->shared_bytes());
  }();
  compiler_->clear_cache();
  const size_t needed = waiting_bytes({spec}) + compile_bytes() + vocabulary;
  const auto small = use_memory(needed - 1);
  const auto refused = compile({spec});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code, StatusCode::kResourceExhausted);
  EXPECT_NE(refused.status().message.find("max-request-memory"), std::string::npos);
  EXPECT_EQ(small->refused(MemoryKind::kGrammar), 1);
  EXPECT_EQ(small->total(), 0U);
  EXPECT_EQ(compiler_->cache_stats().entries, 0);
  use_memory(needed - 1);
  EXPECT_TRUE(compile({regex("a")}).ok()) << "it needs no vocabulary of its own";
  use_memory(needed);
  EXPECT_TRUE(compile({spec}).ok());
}

TEST_F(GrammarTask, ADrainSkipsSpecsOfRequestsThatWouldBeRefused) {
  server_.server().drain(std::chrono::milliseconds(0));
  EXPECT_EQ(compile({regex("a+")}).status().code, StatusCode::kCancelled);
  EXPECT_EQ(compiler_->cache_stats().num_misses, 0);
}

// A compile that is running is given up, so that a drain need not wait for it.
TEST_F(GrammarTask, ADrainCancelsTheCompileThatRuns) {
  const auto slow = std::make_shared<const GrammarSpec>(
      GrammarSpec{.kind = GrammarKind::kJsonSchema, .text = slow_schema(), .field = "json_schema"});
  std::optional<Result<CompiledGrammars>> out;
  compile_grammars(*context_, server_.io(), from_test(), {slow},
                   [&](Result<CompiledGrammars> compiled) { out = std::move(compiled); });
  server_.server().drain(std::chrono::milliseconds(0));
  EXPECT_TRUE(server_.io().run_until([&] { return out.has_value(); }));
  EXPECT_EQ(out->status().code, StatusCode::kCancelled) << out->status().message;
}

}  // namespace
}  // namespace hadal::server
