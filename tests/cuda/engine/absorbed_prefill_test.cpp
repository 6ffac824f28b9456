// Tests a few prompt tokens after a long cached prefix, which take the absorbed path of attention. Their
// logits are compared with those of the same tokens as decode rows (the same arithmetic in other shapes) and
// with those of the whole prompt computed un-absorbed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "model/cuda/prefill_plan.h"
#include "tests/cuda/engine/tiny_model_test.h"
#include "tests/engine/test_requests.h"

namespace hadal {
namespace {

constexpr int64_t kPages = 160;
constexpr int64_t kSequencePages = kPages / 2;

// Gives one of two sequences the even pages and the other the odd ones, both in descending order.
int32_t page_of(int64_t sequence, int64_t i) {
  return static_cast<int32_t>(kPages - 2 - 2 * i + sequence);
}

class AbsorbedPrefillTest : public testing::TinyModelTest {
 protected:
  static ForwardBatch empty_batch() {
    ForwardBatch batch;
    batch.page_table_stride = kSequencePages;
    for (int64_t sequence = 0; sequence < 2; ++sequence) {
      for (int64_t i = 0; i < kSequencePages; ++i) batch.page_table.push_back(page_of(sequence, i));
    }
    return batch;
  }
  static void add_tokens(ForwardBatch& batch, int64_t sequence, const std::vector<int32_t>& ids,
                         int64_t begin, int64_t end, bool wants_logits) {
    for (int64_t p = begin; p < end; ++p) {
      if (wants_logits) batch.logit_rows.push_back(static_cast<int32_t>(batch.token_ids.size()));
      batch.token_ids.push_back(ids[p]);
      batch.positions.push_back(static_cast<int32_t>(p));
      batch.slots.push_back(int64_t{page_of(sequence, p / kPageSize)} * kPageSize + p % kPageSize);
    }
  }
  static void add_segment(ForwardBatch& batch, int64_t sequence, const std::vector<int32_t>& ids,
                          int64_t begin, int64_t end, bool wants_logits) {
    batch.segments.push_back({.seq_idx = static_cast<int32_t>(sequence),
                              .q_begin = static_cast<int32_t>(batch.token_ids.size()),
                              .q_len = static_cast<int32_t>(end - begin),
                              .kv_len = static_cast<int32_t>(end)});
    add_tokens(batch, sequence, ids, begin, end, wants_logits);
    batch.num_prefill_tokens = batch.num_tokens();
  }
  static std::vector<float> logits_of(ModelRunner& runner, const ForwardBatch& batch) {
    const std::span<const float> logits = runner.forward(batch);
    return {logits.begin(), logits.end()};
  }

  // Holds the difference between two sets of logits: the median of the tokens' relative errors, and the
  // relative error of all logits.
  struct Difference {
    double median = 0.0;
    double all = 0.0;
  };
  static Difference difference(const std::vector<float>& got, const std::vector<float>& want) {
    EXPECT_EQ(got.size(), want.size());
    const auto vocab = static_cast<size_t>(backend_->config().vocab_size);
    std::vector<double> errors;
    double sum = 0.0;
    double norm = 0.0;
    for (size_t begin = 0; begin < want.size(); begin += vocab) {
      double token_sum = 0.0;
      double token_norm = 0.0;
      for (size_t i = begin; i < begin + vocab; ++i) {
        const double error = static_cast<double>(got[i]) - want[i];
        token_sum += error * error;
        token_norm += static_cast<double>(want[i]) * want[i];
      }
      errors.push_back(std::sqrt(token_sum / token_norm));
      sum += token_sum;
      norm += token_norm;
    }
    std::sort(errors.begin(), errors.end());
    return {errors[errors.size() / 2], std::sqrt(sum / norm)};
  }
};

class AbsorbedPrefillFormats : public AbsorbedPrefillTest, public ::testing::WithParamInterface<KvFormat> {};

TEST_P(AbsorbedPrefillFormats, LogitsAgreeWithBothOtherPaths) {
  constexpr int64_t kPrefix = 3900;
  const std::vector<int32_t> ids = testing::random_prompt(kPrefix + 64, 20261);
  const std::vector<int32_t> other = testing::random_prompt(kPrefix + 64, 20262);
  const KvFormat format = GetParam();
  // e5m2 keeps two mantissa bits, so a change of bf16's last bit in one layer may move records of the next
  // layer by an eighth.
  const double bound = format == KvFormat::kFp8E5M2 ? 5e-2 : 2e-2;
  const KvLayout layout{.format = format};
  const PrefillPaths paths{.num_heads = static_cast<int>(backend_->config().num_attention_heads),
                           .layout = layout,
                           .fp8_weights = true};
  const auto runner = backend_->make_runner(kPages, kPrefix + 128, layout).value();
  for (const int64_t n : {1, 5, 8, 13}) {
    SCOPED_TRACE(n);
    ASSERT_TRUE(prefill_absorbed(n, kPrefix + n, paths));
    ForwardBatch prefix = empty_batch();
    add_segment(prefix, 1, ids, 0, kPrefix, false);
    prefix.logit_rows = {0};
    logits_of(*runner, prefix);

    ForwardBatch extension = empty_batch();
    add_segment(extension, 1, ids, kPrefix, kPrefix + n, true);
    const std::vector<float> absorbed = logits_of(*runner, extension);
    EXPECT_EQ(absorbed, logits_of(*runner, extension)) << "other bits the second time";

    ForwardBatch rows = empty_batch();
    add_tokens(rows, 1, ids, kPrefix, kPrefix + n, true);
    for (int64_t p = kPrefix; p < kPrefix + n; ++p) {
      rows.decode_seq_idx.push_back(1);
      rows.decode_kv_len.push_back(static_cast<int32_t>(p + 1));
    }
    const Difference to_decode = difference(absorbed, logits_of(*runner, rows));
    EXPECT_LE(to_decode.median, bound) << "against decode rows";
    EXPECT_LE(to_decode.all, 0.2) << "against decode rows";

    // Here the same tokens run together with a prompt that attends un-absorbed.
    ForwardBatch mixed = empty_batch();
    add_segment(mixed, 0, other, 0, 70, false);
    add_segment(mixed, 1, ids, kPrefix, kPrefix + n, true);
    const Difference to_mixed = difference(logits_of(*runner, mixed), absorbed);
    EXPECT_LE(to_mixed.median, bound) << "in company";
    EXPECT_LE(to_mixed.all, 0.2) << "in company";

    ForwardBatch whole = empty_batch();
    add_segment(whole, 0, ids, 0, kPrefix + n, false);
    ASSERT_FALSE(prefill_absorbed(kPrefix + n, kPrefix + n, paths));
    for (int64_t i = 0; i < n; ++i) whole.logit_rows.push_back(static_cast<int32_t>(kPrefix + i));
    const Difference to_whole = difference(absorbed, logits_of(*runner, whole));
    EXPECT_LE(to_whole.median, 0.1) << "against the un-absorbed path";
    EXPECT_LE(to_whole.all, 0.3) << "against the un-absorbed path";
    std::printf("kv %d n %2d: to decode %.2e (all %.2e), in company %.2e, to un-absorbed %.2e (all %.2e)\n",
                static_cast<int>(format), static_cast<int>(n), to_decode.median, to_decode.all,
                to_mixed.median, to_whole.median, to_whole.all);
  }
}

INSTANTIATE_TEST_SUITE_P(Kv, AbsorbedPrefillFormats,
                         ::testing::Values(KvFormat::kBF16, KvFormat::kFp8E4M3, KvFormat::kFp8E5M2),
                         [](const auto& of) {
                           return of.param == KvFormat::kBF16      ? "Bf16"
                                  : of.param == KvFormat::kFp8E4M3 ? "E4m3"
                                                                   : "E5m2";
                         });

}  // namespace
}  // namespace hadal
