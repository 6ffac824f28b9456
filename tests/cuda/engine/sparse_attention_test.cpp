// Runs a small V3.2 with random weights on the GPU, and compares it with the CPU and with itself in other
// batches. Its layers are dense, so that no expert is chosen by the last bit of a router. Where two keys have
// almost the same score, GPU and CPU may select different ones, so logits are compared by the median over
// tokens.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "engine/backend.h"
#include "engine/engine.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

using testing::CheckedEngine;
using testing::Finished;
using testing::greedy_request;
using testing::random_prompt;

constexpr int64_t kTopk = 64;
constexpr int64_t kPages = 64;
constexpr int64_t kSequencePages = 8;  // of each of eight sequences

ModelConfig small_config(int64_t topk) {
  constexpr const char* kText = R"({
    "architectures": ["DeepseekV32ForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "moe_intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 16,
    "q_lora_rank": 128, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 16, "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 4,
    "topk_group": 2, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true,
    "routed_scaling_factor": 2.5, "first_k_dense_replace": 3, "moe_layer_freq": 1, "vocab_size": 320,
    "max_position_embeddings": 2560, "rope_theta": 10000, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
    "index_n_heads": 16, "index_head_dim": 128, "index_topk": 64})";
  ModelConfig config = parse_model_config(kText, "small V3.2").value();
  config.index_topk = topk;
  return config;
}

// Gives sequence s pages s, s + 8, … in descending order.
int32_t page_of(int64_t sequence, int64_t i) {
  return static_cast<int32_t>(kPages - 8 - 8 * i + sequence);
}

ForwardBatch empty_batch() {
  ForwardBatch batch;
  batch.page_table_stride = kSequencePages;
  for (int64_t sequence = 0; sequence < 8; ++sequence) {
    for (int64_t i = 0; i < kSequencePages; ++i) batch.page_table.push_back(page_of(sequence, i));
  }
  return batch;
}

void add_tokens(ForwardBatch& batch, int64_t sequence, const std::vector<int32_t>& ids, int64_t begin,
                int64_t end) {
  for (int64_t p = begin; p < end; ++p) {
    batch.logit_rows.push_back(static_cast<int32_t>(batch.token_ids.size()));
    batch.token_ids.push_back(ids[p]);
    batch.positions.push_back(static_cast<int32_t>(p));
    batch.slots.push_back(int64_t{page_of(sequence, p / kPageSize)} * kPageSize + p % kPageSize);
  }
}
void add_segment(ForwardBatch& batch, int64_t sequence, const std::vector<int32_t>& ids, int64_t begin,
                 int64_t end) {
  batch.segments.push_back({.seq_idx = static_cast<int32_t>(sequence),
                            .q_begin = static_cast<int32_t>(batch.token_ids.size()),
                            .q_len = static_cast<int32_t>(end - begin),
                            .kv_len = static_cast<int32_t>(end)});
  add_tokens(batch, sequence, ids, begin, end);
  batch.num_prefill_tokens = batch.num_tokens();
}
void add_decode_row(ForwardBatch& batch, int64_t sequence, const std::vector<int32_t>& ids,
                    int64_t position) {
  add_tokens(batch, sequence, ids, position, position + 1);
  batch.decode_seq_idx.push_back(static_cast<int32_t>(sequence));
  batch.decode_kv_len.push_back(static_cast<int32_t>(position + 1));
}

std::vector<float> logits_of(ModelRunner& runner, const ForwardBatch& batch) {
  const std::span<const float> logits = runner.forward(batch);
  return {logits.begin(), logits.end()};
}

// Returns the median of the tokens' relative errors.
double difference(const std::vector<float>& got, const std::vector<float>& want) {
  EXPECT_EQ(got.size(), want.size());
  std::vector<double> errors;
  for (size_t begin = 0; begin < std::min(got.size(), want.size()); begin += testing::kVocab) {
    double sum = 0.0;
    double norm = 0.0;
    for (size_t i = begin; i < begin + testing::kVocab; ++i) {
      const double error = static_cast<double>(got[i]) - want[i];
      sum += error * error;
      norm += static_cast<double>(want[i]) * want[i];
    }
    EXPECT_TRUE(std::isfinite(sum));
    errors.push_back(std::sqrt(sum / norm));
  }
  std::sort(errors.begin(), errors.end());
  return errors[errors.size() / 2];
}

struct Case {
  const char* name;
  KvFormat format = KvFormat::kBF16;
  KernelSet kernels = KernelSet::kOptimised;
  LoadQuantization quantization = LoadQuantization::kNone;
  bool fusion = true;
};

class DeviceSparseAttention : public ::testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<Backend> load(DeviceType device, int64_t topk = kTopk, int64_t seq_len_threshold = -1) {
    BackendOptions options;
    options.load = {.format = LoadFormat::kDummy, .quantization = GetParam().quantization, .seed = 3};
    options.load.load_nextn = false;
    options.kernels = device == DeviceType::kCuda ? GetParam().kernels : KernelSet::kOptimised;
    options.fusion = GetParam().fusion;
    options.seq_len_threshold = seq_len_threshold;
    return load_backend(device, {}, small_config(topk), options, pool_).value();
  }
  static std::unique_ptr<ModelRunner> runner(Backend& backend) {
    return backend.make_runner(kPages, 1024, layout(backend)).value();
  }
  static KvLayout layout(const Backend& backend) {
    return cache_layout(backend.config(), GetParam().format).value();
  }
  static EngineOptions engine_options(const Backend& backend) {
    EngineOptions options;
    options.max_total_tokens = 8192;
    options.max_running_requests = 8;
    options.context_length = 1024;
    options.decode_log_interval = 0;
    options.overlap_schedule = false;
    options.kv_layout = layout(backend);
    return options;
  }

  ThreadPool pool_{2};
};

TEST_P(DeviceSparseAttention, PromptsAroundTheLimitAgreeWithTheCpu) {
  const auto gpu = load(DeviceType::kCuda);
  const auto all = load(DeviceType::kCuda, 2048);
  const auto cpu = load(DeviceType::kCpu);
  ForwardBatch batch = empty_batch();
  const int64_t lengths[] = {1, 63, 64, 65, 130, 260};
  for (int64_t i = 0; i < 6; ++i) add_segment(batch, i, random_prompt(lengths[i], 100 + i), 0, lengths[i]);
  const auto of_gpu = runner(*gpu);
  const std::vector<float> got = logits_of(*of_gpu, batch);
  EXPECT_EQ(got, logits_of(*of_gpu, batch)) << "other bits the second time";
  const double to_cpu = difference(got, logits_of(*runner(*cpu), batch));
  // The last rows have at least 160 visible keys.
  const auto last_rows = [&](const std::vector<float>& logits) {
    return std::vector<float>(logits.end() - 100 * gpu->config().vocab_size, logits.end());
  };
  const double to_all = difference(last_rows(got), last_rows(logits_of(*runner(*all), batch)));
  std::printf("%s: to the CPU %.2e, to attention to all keys %.2e\n", GetParam().name, to_cpu, to_all);
  EXPECT_LE(to_cpu, 5e-2);
  EXPECT_GT(to_all, to_cpu) << "the selection makes no difference";
}

// With a threshold above the limit some rows that select attend un-absorbed, with bits as a mask; with one
// below it rows that attend to all keys do so absorbed.
TEST_P(DeviceSparseAttention, AThresholdOfThePathsChangesResultsByRoundingOnly) {
  ForwardBatch batch = empty_batch();
  const int64_t lengths[] = {1, 64, 65, 130, 190, 400};
  for (int64_t i = 0; i < 6; ++i) add_segment(batch, i, random_prompt(lengths[i], 200 + i), 0, lengths[i]);
  const auto gpu = load(DeviceType::kCuda);
  const auto all = load(DeviceType::kCuda, 2048);
  const std::vector<float> want = logits_of(*runner(*gpu), batch);
  // The last prompt's rows have at least 65 keys, and the last 200 of them more than 200.
  const auto last_rows = [&](const std::vector<float>& logits) {
    return std::vector<float>(logits.end() - 336 * gpu->config().vocab_size, logits.end());
  };
  const double to_all = difference(last_rows(want), last_rows(logits_of(*runner(*all), batch)));
  for (const int64_t threshold : {0, 20, 64, 65, 150, 200, 2000}) {
    SCOPED_TRACE(threshold);
    const auto other = load(DeviceType::kCuda, kTopk, threshold);
    const auto of_other = runner(*other);
    const std::vector<float> got = logits_of(*of_other, batch);
    EXPECT_EQ(got, logits_of(*of_other, batch)) << "other bits the second time";
    const double to_default = difference(last_rows(got), last_rows(want));
    std::printf("threshold %d: to the default %.2e, to attention to all keys %.2e\n",
                static_cast<int>(threshold), to_default, to_all);
    EXPECT_LE(difference(got, want), 5e-2);
    EXPECT_LE(to_default, 5e-2);
    EXPECT_GT(to_all, to_default);

    // The same prompt in chunks, whose borders are on all sides of limit and threshold.
    std::vector<float> chunked;
    int64_t begin = 0;
    for (const int64_t end : {10, 70, 140, 160, 400}) {
      ForwardBatch chunk = empty_batch();
      add_segment(chunk, 7, random_prompt(400, 205), begin, end);
      const std::vector<float> some = logits_of(*of_other, chunk);
      chunked.insert(chunked.end(), some.begin(), some.end());
      begin = end;
    }
    EXPECT_LE(difference(last_rows(chunked), last_rows(want)), 5e-2) << "in chunks";
  }
}

// Every layer selects anew, so what a row computes alone, in chunks and as a decode row differs by rounding.
TEST_P(DeviceSparseAttention, ChunksAndDecodeRowsAgreeWithAWholePrompt) {
  const auto gpu = load(DeviceType::kCuda);
  const auto of_gpu = runner(*gpu);
  const std::vector<int32_t> ids = random_prompt(200, 5);
  const std::vector<int32_t> other = random_prompt(100, 6);
  ForwardBatch whole = empty_batch();
  add_segment(whole, 0, ids, 0, 200);
  const std::vector<float> want = logits_of(*of_gpu, whole);

  std::vector<float> chunked;
  int64_t begin = 0;
  for (const int64_t end : {40, 70, 71, 129, 200}) {
    ForwardBatch batch = empty_batch();
    add_segment(batch, 1, ids, begin, end);
    const std::vector<float> some = logits_of(*of_gpu, batch);
    chunked.insert(chunked.end(), some.begin(), some.end());
    begin = end;
  }
  EXPECT_LE(difference(chunked, want), 5e-2) << "in chunks";

  // Sequence 2 decodes beside sequence 3, which never has more keys than the limit, and a prompt.
  ForwardBatch prefix = empty_batch();
  add_segment(prefix, 2, ids, 0, 60);
  add_segment(prefix, 3, other, 0, 20);
  logits_of(*of_gpu, prefix);
  std::vector<float> decoded;
  for (int64_t p = 60; p < 80; ++p) {
    ForwardBatch batch = empty_batch();
    if (p % 4 == 0) add_segment(batch, 4, other, 0, p);
    const auto first = static_cast<size_t>(batch.num_tokens()) * testing::kVocab;
    add_decode_row(batch, 2, ids, p);
    add_decode_row(batch, 3, other, p - 40);
    const std::vector<float> some = logits_of(*of_gpu, batch);
    decoded.insert(decoded.end(), some.begin() + static_cast<std::ptrdiff_t>(first),
                   some.begin() + static_cast<std::ptrdiff_t>(first + testing::kVocab));
  }
  const std::vector<float> of_whole(want.begin() + 60 * testing::kVocab, want.begin() + 80 * testing::kVocab);
  EXPECT_LE(difference(decoded, of_whole), 5e-2) << "as decode rows";
}

TEST_P(DeviceSparseAttention, GraphsGiveTheBitsOfKernelsOneByOne) {
  const auto gpu = load(DeviceType::kCuda);
  const auto answers = [&](bool use_graphs, const std::vector<int64_t>& lengths) {
    EngineOptions options = engine_options(*gpu);
    options.device.use_graphs = use_graphs;
    const CheckedEngine engine(Engine::create(*gpu, options).value());
    engine->pause();
    std::vector<RequestId> ids;
    for (const int64_t length : lengths) {
      GenerateRequest request = greedy_request(random_prompt(length, length), 24);
      request.logprobs = {.enabled = true, .start = -1, .top_num = 2};
      ids.push_back(engine->submit(std::move(request)).value());
    }
    engine->resume();
    std::vector<Finished> finished;
    for (const RequestId id : ids) finished.push_back(testing::drain(*engine, id));
    return finished;
  };
  // With the second lengths no row selects at first, so both kinds of graphs run.
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{20, 50, 62, 64, 150}, std::vector<int64_t>{20, 30, 45, 50, 54}}) {
    const std::vector<Finished> graphed = answers(true, lengths);
    const std::vector<Finished> eager = answers(false, lengths);
    for (size_t i = 0; i < graphed.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << lengths[0] << " to " << lengths.back() << ", request " << i);
      EXPECT_EQ(graphed[i].ids.size(), 24U) << graphed[i].last.abort_text;
      testing::expect_same(graphed[i], eager[i]);
    }
  }
}

// The row that does not select has at most one page of keys, so the row beside it does not change how its
// keys are cut.
TEST_P(DeviceSparseAttention, TheIndexerRunsOnlyIfARowMaySelectAndChangesNoOtherRow) {
  const auto gpu = load(DeviceType::kCuda);
  const auto run = [&](int64_t neighbour_length) {
    const auto executor = gpu->make_executor(engine_options(*gpu)).value();
    const int64_t lengths[] = {50, neighbour_length};
    for (int32_t slot = 0; slot < 2; ++slot) {
      StagedStep prompt;
      prompt.step = slot + 1;
      prompt.batch = empty_batch();
      SlotStart& start = prompt.slots.emplace_back();
      start.slot = slot;
      start.sampling.temperature = 0.0F;
      start.logprobs = {.enabled = true, .top_num = 5};
      add_segment(prompt.batch, slot, random_prompt(lengths[slot], 7 + slot), 0, lengths[slot]);
      prompt.batch.logit_rows = {static_cast<int32_t>(lengths[slot]) - 1};
      prompt.samples = {{.slot = slot, .position = lengths[slot]}};
      executor->launch(std::move(prompt));
      EXPECT_EQ(executor->wait().error, "");
    }
    StagedStep decode;
    decode.step = 3;
    decode.batch = empty_batch();
    decode.profile = true;
    for (int32_t slot = 0; slot < 2; ++slot) {
      decode.feeds.push_back({.row = slot, .slot = slot});
      add_decode_row(decode.batch, slot, std::vector<int32_t>(1024, 0), lengths[slot]);
      decode.samples.push_back({.slot = slot, .logit_row = slot, .position = lengths[slot] + 1});
    }
    executor->launch(std::move(decode));
    return executor->wait();
  };
  const StepOutput without = run(40);
  const StepOutput with = run(100);
  const auto runs = [](const StepOutput& output, const char* name) {
    return std::any_of(output.ops.begin(), output.ops.end(),
                       [&](const OpTiming& op) { return op.name == name; });
  };
  for (const char* name : {"index_wq_b", "index_weights", "index_query", "index_select"}) {
    EXPECT_FALSE(runs(without, name)) << name;
    EXPECT_TRUE(runs(with, name)) << name;
  }
  EXPECT_TRUE(runs(without, "index_write"));
  ASSERT_EQ(without.error + with.error, "");
  const SampledToken& expected = without.samples.at(0);
  const SampledToken& got = with.samples.at(0);
  EXPECT_EQ(got.token, expected.token);
  ASSERT_TRUE(expected.logprob && got.logprob);
  EXPECT_EQ(got.logprob->logprob, expected.logprob->logprob);
  EXPECT_EQ(got.logprob->top, expected.logprob->top);
}

// The runner's steps do not say that their only row selects, so they run both paths.
TEST_P(DeviceSparseAttention, ALoneRowThatSelectsLeavesOutTheOtherPathAndChangesNoResult) {
  const auto gpu = load(DeviceType::kCuda);
  constexpr int64_t kLength = 100;
  const std::vector<int32_t> ids = random_prompt(kLength + 1, 8);
  ForwardBatch prefix = empty_batch();
  add_segment(prefix, 0, ids, 0, kLength);
  ForwardBatch row = empty_batch();
  add_decode_row(row, 0, ids, kLength);
  const auto of_gpu = runner(*gpu);
  logits_of(*of_gpu, prefix);
  const std::vector<float> logits = logits_of(*of_gpu, row);
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));

  for (const bool profile : {true, false}) {
    SCOPED_TRACE(profile);
    const auto executor = gpu->make_executor(engine_options(*gpu)).value();
    StagedStep prompt;
    prompt.step = 1;
    prompt.batch = prefix;
    SlotStart& start = prompt.slots.emplace_back();
    start.sampling.temperature = 0.0F;
    start.logprobs = {.enabled = true, .top_num = 5};
    prompt.batch.logit_rows = {kLength - 1};
    prompt.samples = {{.position = kLength}};
    executor->launch(std::move(prompt));
    EXPECT_EQ(executor->wait().error, "");
    StagedStep decode;
    decode.step = 2;
    decode.batch = row;
    decode.profile = profile;
    decode.samples = {{.position = kLength + 1}};
    executor->launch(std::move(decode));
    const StepOutput output = executor->wait();
    ASSERT_EQ(output.error, "");
    EXPECT_EQ(output.graphed, !profile);
    for (const OpTiming& op : output.ops) EXPECT_STRNE(op.name.c_str(), "mla_plan");
    ASSERT_TRUE(output.samples.at(0).logprob.has_value());
    for (const auto& [token, logprob] : output.samples[0].logprob->top)
      EXPECT_NEAR(logprob, logits[token] - std::log(sum), 1e-3) << token;
  }
}

// The prefix ends inside a page, so its index keys are copied with its records.
TEST_P(DeviceSparseAttention, APrefixOfTheCacheGivesTheLogprobsOfNoCache) {
  const auto gpu = load(DeviceType::kCuda);
  const std::vector<int32_t> base = random_prompt(150, 1);
  std::vector<int32_t> extended(base.begin(), base.begin() + 140);
  const std::vector<int32_t> own = random_prompt(30, 2);
  extended.insert(extended.end(), own.begin(), own.end());
  const auto request = [](const std::vector<int32_t>& ids) {
    GenerateRequest made = greedy_request(ids, 1);
    made.logprobs = {.enabled = true, .start = -1, .top_num = 1};
    return made;
  };
  EngineOptions options = engine_options(*gpu);
  const CheckedEngine cached(Engine::create(*gpu, options).value());
  testing::run(*cached, request(base));
  const Finished hit = testing::run(*cached, request(extended));
  EXPECT_GE(hit.last.cached_tokens, 140);
  options.enable_radix_cache = false;
  const CheckedEngine plain(Engine::create(*gpu, options).value());
  const Finished alone = testing::run(*plain, request(extended));
  ASSERT_EQ(hit.logprobs.size(), 1U);
  ASSERT_EQ(alone.logprobs.size(), 1U);
  EXPECT_NEAR(hit.logprobs[0].logprob, alone.logprobs[0].logprob, 0.1);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, DeviceSparseAttention,
    ::testing::Values(
        Case{.name = "Bf16"}, Case{.name = "Fp8Cache", .format = KvFormat::kFp8E4M3},
        Case{.name = "Fp8Weights", .format = KvFormat::kFp8E4M3, .quantization = LoadQuantization::kFp8},
        Case{.name = "Unfused", .quantization = LoadQuantization::kFp8, .fusion = false},
        Case{.name = "Reference", .kernels = KernelSet::kReference}),
    [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace hadal
