// Tests prompts that are cut while another client's stream runs, and therefore take the absorbed path in
// part: their results are those that they have alone, up to rounding.
#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/engine/recorded_plans.h"
#include "tests/engine/small_model.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;

class AbsorbedPrompt : public ::testing::TestWithParam<const char*> {
 protected:
  static EngineOptions options_of(int64_t max_prefill_ms) {
    EngineOptions options;
    options.max_total_tokens = 16384;
    options.context_length = 1024;
    options.max_running_requests = 8;
    options.chunked_prefill_size = 64;
    options.decode_log_interval = 0;
    options.max_prefill_ms = max_prefill_ms;
    return options;
  }
  static GenerateRequest long_prompt() {
    GenerateRequest request = greedy_request(random_prompt(400, 3), 8);
    request.client = 2;
    request.logprobs = {.enabled = true, .start = 0, .top_num = 2};
    return request;
  }
  // Returns the long prompt's outcome while another client's stream generates all the time.
  Finished beside_a_stream(const EngineOptions& options) {
    const CheckedEngine engine(Engine::create(*model_, pool_, options).value());
    GenerateRequest stream = greedy_request(random_prompt(5, 4), 1000);
    stream.client = 1;
    engine->pause();  // so that the stream lasts, however late the prompt is submitted
    const RequestId streaming = engine->submit(std::move(stream)).value();
    const RequestId prompt = engine->submit(long_prompt()).value();
    engine->resume();
    Finished finished = testing::drain(*engine, prompt);
    engine->abort(streaming);
    testing::drain(*engine, streaming);
    return finished;
  }
  Finished alone(EngineOptions options) {
    options.max_prefill_ms = 0;
    options.record_plans.clear();
    const CheckedEngine engine(Engine::create(*model_, pool_, options).value());
    return testing::run(*engine, long_prompt());
  }

  ThreadPool pool_{2};
  std::unique_ptr<Model> model_ = testing::make_small_model(GetParam(), pool_);
};

TEST_P(AbsorbedPrompt, ComputesWhatTheUnabsorbedPathDoes) {
  const testing::RecordedPlans plans;
  EngineOptions options = options_of(/*max_prefill_ms=*/1);
  options.record_plans = plans.path();
  const Finished cut = beside_a_stream(options);
  EXPECT_GT(plans.count("\"kind\":\"absorbed\""), 0) << "no chunk was absorbed";

  const Finished whole = alone(options);
  ASSERT_EQ(cut.prompt_logprobs.size(), whole.prompt_logprobs.size());
  for (size_t i = 0; i < whole.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(cut.prompt_logprobs[i].token_id, whole.prompt_logprobs[i].token_id) << i;
    EXPECT_NEAR(cut.prompt_logprobs[i].logprob, whole.prompt_logprobs[i].logprob, 1e-4) << i;
  }
}

TEST_P(AbsorbedPrompt, IsNotUsedWherePromptsAlwaysTakeTheSamePath) {
  EngineOptions options = options_of(/*max_prefill_ms=*/1);
  options.cache_generated_tokens = false;
  const testing::RecordedPlans plans;
  options.record_plans = plans.path();
  const Finished cut = beside_a_stream(options);
  EXPECT_EQ(plans.count("\"kind\":\"absorbed\""), 0);
  EXPECT_GE(plans.count("\"kind\":\"prefill\""), 1 + 400 / 64) << "the prompt was not cut";
  testing::expect_same(cut, alone(options));
}

INSTANTIATE_TEST_SUITE_P(Models, AbsorbedPrompt, ::testing::Values("v3", "v2-lite"));

}  // namespace
}  // namespace hadal
