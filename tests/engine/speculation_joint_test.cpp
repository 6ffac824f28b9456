// Tests that speculation at temperature 1 draws three consecutive tokens from the target's joint
// distribution, through chains and through trees of drafts. Drafts share the target's noise, which could tie
// a token to the one before it. No part of the model runs here: logits are tables over a few tokens, so that
// the distribution can be enumerated in double.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "engine/cpu/cpu_executor.h"
#include "tests/engine/fake_executor.h"
#include "tests/engine/sampling_oracle.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::SamplingCase;

constexpr int64_t kTokens = 5;  // vocabulary
constexpr int64_t kDepth = 3;
constexpr int64_t kNumNew = 4;  // the prompt's step samples the first one, verifications the triple after it
const std::vector<int32_t> kPrompt = {1, 3};

// Holds logits for every pair of the two newest tokens.
using Table = std::array<std::array<std::array<float, kTokens>, kTokens>, kTokens>;

Table random_table(uint64_t seed, float spread) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  Table table;
  for (auto& rows : table) {
    for (auto& row : rows) {
      for (float& logit : row) logit = normal(random);
    }
  }
  return table;
}

// Computes the target's logits from the two newest tokens, of which it reads the older one from the cache.
// NextN has both tokens, the older one from its hidden state, and is wrong by random amounts.
class TableRunner final : public HostRunner {
 public:
  explicit TableRunner(int64_t num_pages)
      : config_(testing::fake_config(kTokens)), cache_(static_cast<size_t>(num_pages * kPageSize)) {
    config_.hidden_size = 1;
    const Table mistakes = random_table(2, 0.7F);
    for (int64_t a = 0; a < kTokens; ++a) {
      for (int64_t b = 0; b < kTokens; ++b) {
        for (int64_t c = 0; c < kTokens; ++c) nextn_[a][b][c] = target_[a][b][c] + mistakes[a][b][c];
      }
    }
  }
  static Table target() { return random_table(1, 1.5F); }

  const ModelConfig& config() const override { return config_; }
  bool has_nextn() const override { return true; }
  void copy_pages(std::span<const PageCopy> copies) override { ASSERT_TRUE(copies.empty()); }
  void move_records(std::span<const RecordMove> moves) override {
    for (const RecordMove& move : moves) cache_[move.target] = cache_[move.source];
  }
  void fill_cache(uint64_t /*seed*/) override { FAIL() << "this test computes its records"; }
  const ExpertStats& expert_stats() const override { return stats_; }
  std::span<const float> forward(const ForwardBatch& batch) override {
    return forward_with_hidden(batch).logits;
  }

  ForwardRows forward_with_hidden(const ForwardBatch& batch) override {
    hidden_.clear();
    for (size_t i = 0; i < batch.token_ids.size(); ++i) {
      cache_[batch.slots[i]] = batch.token_ids[i];
      hidden_.push_back(static_cast<float>(batch.token_ids[i]));
    }
    logits_.clear();
    for (const int32_t row : batch.logit_rows) {
      append(logits_, target_[cache_[slot_before(batch, row)]][batch.token_ids[row]]);
    }
    return {.logits = logits_, .hidden = hidden_};
  }

  ForwardRows forward_nextn(const ForwardBatch& batch, std::span<const float> hidden) override {
    nextn_logits_.clear();
    nextn_hidden_.clear();
    for (const int32_t row : batch.logit_rows) {
      append(nextn_logits_, nextn_[static_cast<int64_t>(hidden[row])][batch.token_ids[row]]);
      nextn_hidden_.push_back(static_cast<float>(batch.token_ids[row]));
    }
    return {.logits = nextn_logits_, .hidden = nextn_hidden_};
  }

 private:
  // Returns the slot of the key before a row. A request has one page, and in a tree that key is the parent.
  static int64_t slot_before(const ForwardBatch& batch, int32_t row) {
    const int64_t decode_row = row - batch.num_prefill_tokens;
    if (decode_row < 0 || batch.decode_ancestors.empty()) return batch.slots[row] - 1;
    const int64_t kv_len = batch.decode_kv_len[decode_row];
    return batch.slots[row] / kPageSize * kPageSize +
           record_position(batch.decode_ancestors[decode_row], kv_len, kv_len - 2);
  }
  static void append(std::vector<float>& to, const std::array<float, kTokens>& row) {
    to.insert(to.end(), row.begin(), row.end());
  }

  ModelConfig config_;
  ExpertStats stats_;
  const Table target_ = target();
  Table nextn_;
  std::vector<int32_t> cache_;  // [slots]: the token of each record
  std::vector<float> logits_, hidden_, nextn_logits_, nextn_hidden_;
};

size_t cell_of(const std::vector<int32_t>& generated) {
  size_t cell = 0;
  for (int64_t i = 1; i < kNumNew; ++i) cell = cell * kTokens + static_cast<size_t>(generated[i]);
  return cell;
}

// Adds the probability of every triple after the text of `row`, which itself has this probability.
void add_triples(const Table& target, SamplingCase row, double probability, std::vector<double>& triples) {
  if (std::ssize(row.generated) == kNumNew) {
    triples[cell_of(row.generated)] += probability;
    return;
  }
  std::vector<int32_t> text = row.prompt;
  text.insert(text.end(), row.generated.begin(), row.generated.end());
  const auto& logits = target[text[text.size() - 2]][text.back()];
  row.logits.assign(logits.begin(), logits.end());
  const std::vector<double> probabilities = exact_probabilities(row);
  row.generated.push_back(0);
  for (int32_t token = 0; token < kTokens; ++token) {
    if (probabilities[token] == 0.0) continue;
    row.generated.back() = token;
    add_triples(target, row, probability * probabilities[token], triples);
  }
}

struct JointCase {
  SamplingCase sampling;
  int64_t topk = 1;
  int64_t width = 0;
};

class JointTriples : public ::testing::TestWithParam<JointCase> {};

TEST_P(JointTriples, FollowTheTargetsDistribution) {
  constexpr int64_t kDraws = 40'000;
  constexpr int64_t kTogether = 256;
  SamplingCase start = GetParam().sampling;
  const SamplingParams params = start.params;
  start.prompt = kPrompt;
  std::vector<double> exact(kTokens * kTokens * kTokens);
  add_triples(TableRunner::target(), start, 1.0, exact);

  ThreadPool pool(2);
  EngineOptions options{.max_total_tokens = kTogether * kPageSize, .max_running_requests = kTogether};
  options.enable_radix_cache = false;
  options.context_length = kPageSize;
  options.decode_log_interval = 0;
  options.speculation_width = GetParam().width;
  options.draft_shape = {.num_steps = kDepth, .topk = GetParam().topk};
  auto executor =
      std::make_unique<CpuExecutor>(std::make_unique<TableRunner>(kTogether), pool, /*speculates=*/true,
                                    std::vector<double>(), options.draft_shape);
  const testing::CheckedEngine engine(
      Engine::create(std::move(executor), testing::fake_config(kTokens), options).value());
  const auto sink = std::make_shared<testing::Collector>();
  std::vector<RequestId> ids;
  for (int64_t seed = 0; seed < kDraws; ++seed) {
    GenerateRequest request;
    request.input_ids = kPrompt;
    request.sampling = params;
    request.sampling.seed = static_cast<uint64_t>(seed);
    request.sampling.max_new_tokens = kNumNew;
    request.sampling.ignore_eos = true;
    request.sink = sink;
    ids.push_back(engine->submit(std::move(request)).value());
  }
  sink->wait_finished(kDraws);
  std::vector<int64_t> counts(exact.size());
  for (const RequestId id : ids) {
    const std::vector<int32_t> generated = sink->result(id).ids;
    ASSERT_EQ(std::ssize(generated), kNumNew);
    ++counts[cell_of(generated)];
  }
  EXPECT_GT(testing::chi_squared_p(counts, exact), 1e-4);
  const SpeculationCounts speculation = engine->stats().speculation;
  EXPECT_GT(speculation.accept_length(), 1.6) << "most triples come through accepted drafts";
  EXPECT_LT(speculation.accept_length(), 2.9) << "and some drafts are wrong";
}

JointCase with(std::string name, SamplingParams params, int64_t topk = 1, int64_t width = kDepth + 1) {
  params.temperature = 1.0F;
  SamplingCase row;
  row.name = std::move(name);
  row.params = params;
  return {.sampling = row, .topk = topk, .width = width};
}

INSTANTIATE_TEST_SUITE_P(
    Speculation, JointTriples,
    ::testing::Values(with("WholeVocabulary", {}), with("TopK", {.top_k = 3}), with("TopP", {.top_p = 0.8F}),
                      with("FrequencyPenalty", {.frequency_penalty = 0.8F}), with("Tree", {}, 3, 8),
                      with("TreeWithTopPAndPenalty", {.top_p = 0.8F, .frequency_penalty = 0.8F}, 2, 6)),
    [](const auto& one) { return one.param.sampling.name; });

}  // namespace
}  // namespace hadal
