// Holds what tests of speculation on the GPU share: prompts of the bundled model, runs of them, and the rule
// for greedy tokens. A row's bits depend on the number of rows beside it. Tokens with and without speculation
// are therefore compared only where the two best logits are far enough apart.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "tests/cuda/engine/tiny_model_test.h"
#include "tests/engine/request_mix.h"

namespace hadal::testing {

// These are prompts in the model's own language: an addition, a story and a list to sort.
inline const std::vector<std::vector<int32_t>> kPrompts = {
    {0, 739, 1214, 223, 20, 19, 25, 20, 23, 22, 348, 223, 26, 21, 24, 24, 16},
    {0, 1525, 1524, 265, 1273, 643, 420, 265, 1685, 786, 569, 675, 265, 1192, 16, 223},
    {0,  747, 627, 2563, 28, 223, 19, 25, 14,  223, 22, 14, 223, 27, 27,
     14, 223, 20,  21,   14, 223, 26, 14, 223, 24,  19, 14, 223, 23, 16}};

// The fixture's backend_ is one GPU with the NextN layer.
class SpeculatingModelTest : public TinyModelTest {
 protected:
  static void SetUpTestSuite() {
    pool_ = std::make_unique<ThreadPool>(2);
    backend_ = load({}, KernelSet::kOptimised, /*with_nextn=*/true);
  }

  static EngineOptions options_of(int64_t width, bool overlap = true) {
    EngineOptions options;
    options.max_total_tokens = 16384;
    options.max_running_requests = 32;
    options.chunked_prefill_size = 96;
    options.context_length = 1024;
    options.decode_log_interval = 0;
    options.speculation_width = width;
    options.overlap_schedule = overlap;
    return options;
  }
  static CheckedEngine make_engine(Backend& backend, const EngineOptions& options) {
    return CheckedEngine(Engine::create(backend, options).value());
  }
  // Runs requests make(0), make(1), …, all of which are queued before the first step.
  template <typename Make>
  static std::vector<Finished> run_all(Backend& backend, const EngineOptions& options, int count,
                                       const Make& make) {
    const CheckedEngine engine = make_engine(backend, options);
    const auto sink = std::make_shared<Collector>();
    std::vector<RequestId> ids;
    engine->pause();
    for (int i = 0; i < count; ++i) {
      GenerateRequest request = make(i);
      request.sampling.seed = request.sampling.seed.value_or(7);
      request.sink = sink;
      ids.push_back(engine->submit(std::move(request)).value());
    }
    engine->resume();
    sink->wait_finished(count);
    std::vector<Finished> finished;
    for (const RequestId id : ids) finished.push_back(sink->result(id));
    return finished;
  }
  // Holds float32 logits [rows, vocab] of the target and of the NextN layer.
  struct NextnLogits {
    std::vector<float> target, nextn;
  };
  // Runs the last prompt with its last `num_decoded` tokens as decode rows, and then NextN over it.
  static NextnLogits nextn_logits(Backend& backend, int64_t num_decoded) {
    const std::vector<int32_t>& ids = kPrompts[2];
    const int64_t num_rows = std::ssize(ids) - 1;
    const int64_t num_prefill = num_rows - num_decoded;
    ForwardBatch batch;
    for (int32_t i = 0; i < num_rows; ++i) {
      batch.token_ids.push_back(ids[i]);
      batch.positions.push_back(i);
      batch.slots.push_back(i);
      batch.logit_rows.push_back(i);
      if (i < num_prefill) continue;
      batch.decode_seq_idx.push_back(0);
      batch.decode_kv_len.push_back(i + 1);
    }
    const auto q_len = static_cast<int32_t>(num_prefill);
    batch.segments = {{.seq_idx = 0, .q_begin = 0, .q_len = q_len, .kv_len = q_len}};
    batch.num_prefill_tokens = num_prefill;
    batch.page_table = {0};
    batch.page_table_stride = 1;
    const auto runner = backend.make_runner(2, num_rows, KvLayout{.format = KvFormat::kBF16}).value();
    EXPECT_TRUE(runner->has_nextn());
    NextnLogits logits;
    const ForwardRows rows = runner->forward_with_hidden(batch);
    logits.target.assign(rows.logits.begin(), rows.logits.end());
    const std::vector<float> hidden(rows.hidden.begin(), rows.hidden.end());
    ForwardBatch next = batch;
    next.token_ids.assign(ids.begin() + 1, ids.end());
    const ForwardRows drafts = runner->forward_nextn(next, hidden);
    logits.nextn.assign(drafts.logits.begin(), drafts.logits.end());
    EXPECT_EQ(std::ssize(drafts.hidden), num_rows * backend.config().hidden_size);
    const std::span<const float> plain = runner->forward(batch);
    double most = 0.0;
    for (size_t i = 0; i < plain.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(plain[i]) - logits.target[i]));
    EXPECT_LE(most, 1e-3) << "all rows have logits, so that both passes compute the same rows";
    return logits;
  }
  static std::vector<Finished> run_prompts(Backend& backend, const EngineOptions& options) {
    return run_all(backend, options, 9, [](int i) {
      std::vector<int32_t> ids = kPrompts[i % 3];
      if (i >= 3) ids.insert(ids.end() - 1, 300 + i);
      if (i >= 6) {
        const std::vector<int32_t> before = random_prompt(90, i);
        ids.insert(ids.begin(), before.begin(), before.end());
      }
      GenerateRequest request = greedy_request(std::move(ids), 60);
      request.logprobs = {.enabled = true, .top_num = 2};
      return request;
    });
  }
};

inline double gap_of(const TokenLogprob& logprob) {
  return static_cast<double>(logprob.top.at(0).second) - logprob.top.at(1).second;
}

// Expects equal greedy tokens wherever the gap of the expected ones exceeds ten times the error of the gaps,
// and returns how many are equal.
inline int64_t expect_greedy(const std::vector<Finished>& expected, const std::vector<Finished>& got) {
  double squares = 0.0;
  int64_t num_compared = 0;
  std::vector<std::pair<size_t, size_t>> differences;  // request, position
  int64_t num_equal = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(got[i].ids.size(), expected[i].ids.size()) << i;
    EXPECT_EQ(got[i].logprobs.size(), got[i].ids.size()) << i;
    for (size_t k = 0; k < std::min(expected[i].ids.size(), got[i].ids.size()); ++k) {
      const TokenLogprob& a = expected[i].logprobs.at(k);
      const TokenLogprob& b = got[i].logprobs.at(k);
      EXPECT_EQ(b.token_id, got[i].ids[k]);
      if (a.token_id != b.token_id) {
        differences.emplace_back(i, k);
        break;
      }
      ++num_equal;
      if (a.top.at(1).first != b.top.at(1).first) continue;
      squares += std::pow(gap_of(a) - gap_of(b), 2);
      ++num_compared;
    }
  }
  EXPECT_GT(num_compared, 20);
  const double error = std::sqrt(squares / static_cast<double>(std::max<int64_t>(num_compared, 1)));
  std::printf("gaps differ by %.2e, %d requests continue differently\n", error,
              static_cast<int>(differences.size()));
  for (const auto& [i, k] : differences)
    EXPECT_LE(gap_of(expected[i].logprobs[k]), 10.0 * error) << "request " << i << ", token " << k;
  return num_equal;
}

}  // namespace hadal::testing
