// Compares the choice of keys on the device with scores in double precision on the same codes, and with the
// device's own scores, which decide it exactly. The plain kernel must have the bits of the CPU.
//
// Products of codes are exact and sums are float32, in another order than on the CPU. The tolerance, in parts
// of a row's largest score, leaves room for sums that the tensor cores cut off instead of rounding them.
#include <cmath>
#include <functional>

#include "tests/cuda/indexer/select_case.h"

namespace hadal::testing {
namespace {

constexpr double kTolerance = 1e-4;

// Every key that is better than the border by more than the tolerance is chosen, and none that is worse by as
// much; each score is within the tolerance. This supports only results of one piece.
void expect_best(const SelectCase& c, const SelectResult& result) {
  for (int64_t row = 0; row < c.num_rows(); ++row) {
    if (c.kv_len[row] <= c.topk) continue;
    SCOPED_TRACE("row " + std::to_string(row) + " of " + std::to_string(c.kv_len[row]) + " keys");
    const std::vector<double> scores = c.scores(row);
    const float* own = result.scores.data() + row * result.stride;
    double largest = 0.0;
    for (double score : scores) largest = std::max(largest, std::abs(score));
    double worst = 0.0;
    for (size_t s = 0; s < scores.size(); ++s) {
      const double error = std::abs(double{own[s]} - scores[s]) / largest;
      if (!(error <= worst)) worst = error;
    }
    EXPECT_LE(worst, kTolerance) << "error of a score";
    std::vector<double> sorted = scores;
    std::nth_element(sorted.begin(), sorted.begin() + c.topk - 1, sorted.end(), std::greater<>());
    const double border = sorted[c.topk - 1];
    std::vector<bool> is_chosen(scores.size());
    for (int64_t s : result.chosen[row]) is_chosen[s] = true;
    int wrong = 0;
    for (size_t s = 0; s < scores.size(); ++s) {
      const double excess = (scores[s] - border) / largest;
      wrong += (is_chosen[s] ? excess >= -kTolerance : excess <= kTolerance) ? 0 : 1;
    }
    EXPECT_EQ(wrong, 0) << "keys on the wrong side of the border";
  }
}

// The choice is exact by the scores that the device computed.
void expect_exact(const SelectCase& c, const SelectResult& result) {
  for (int64_t row = 0; row < c.num_rows(); ++row) {
    if (c.kv_len[row] <= c.topk) continue;
    const float* scores = result.scores.data() + row * result.stride;
    Positions best(c.kv_len[row]);
    std::iota(best.begin(), best.end(), 0);
    std::stable_sort(best.begin(), best.end(), [&](int64_t a, int64_t b) {
      return scores[a] > scores[b] || (std::isnan(scores[b]) && !std::isnan(scores[a]));
    });
    best.resize(c.topk);
    std::sort(best.begin(), best.end());
    EXPECT_EQ(result.chosen[row], best) << "row " << row << " of " << c.kv_len[row] << " keys";
  }
}

void check(SelectCase& c) {
  const SelectResult plain = c.run({.reference = true});
  EXPECT_EQ(plain.chosen, c.of_cpu()) << "the plain kernel has the CPU's bits";
  EXPECT_EQ(c.run({.reference = true, .by_bits = true}), plain);
  const SelectResult tuned = c.run({});
  expect_best(c, tuned);
  expect_exact(c, tuned);
  for (bool share : {false, true}) {
    EXPECT_EQ(c.run({.by_bits = true, .share = share}), tuned) << "bits, share " << share;
    EXPECT_EQ(c.run({.share = share, .graphed = true}), tuned) << "graph, share " << share;
  }
}

TEST(IndexSelect, ChoosesTheBestKeysForEveryNumberOfHeads) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed());
  for (int heads : {1, 2, 7, 16, 21, 32, 33, 48, 63, 64}) {
    SCOPED_TRACE(std::to_string(heads) + " heads");
    SelectCase c(heads, 100, {0, 1, 64, 99, 100, 101, 128, 129, 400, 1111}, random);
    check(c);
  }
}

TEST(IndexSelect, SmallestCasesForSanitizersAreExact) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed());
  for (int heads : {16, 64}) {
    SelectCase c(heads, 40, {0, 40, 41, 130}, random);
    check(c);
  }
}

TEST(IndexSelect, ChoosesTheBestOfSeveralThousandKeys) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 1);
  SelectCase c(64, kMaxIndexTopk, {2047, 2048, 2049, 4003, 9000}, random);
  check(c);
}

// This is the longest context of the model.
TEST(IndexSelect, ChoosesTheBestOf163840Keys) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 2);
  const SelectCase c(64, kMaxIndexTopk, {163840, 1}, random);
  const SelectResult tuned = c.run({});
  expect_best(c, tuned);
  expect_exact(c, tuned);
  EXPECT_EQ(c.run({.by_bits = true}), tuned);
}

TEST(IndexSelect, ChoosesOneKeyOfMany) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 3);
  SelectCase c(16, 1, {1, 2, 64, 65, 500}, random);
  check(c);
}

TEST(IndexSelect, PromptRowsChooseAmongTheKeysThatTheySee) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 4);
  for (int q_len : {1, 8, 9, 60, 130}) {
    SCOPED_TRACE(q_len);
    SelectCase c = SelectCase::prompt(32, 70, 300, q_len, random);
    check(c);
  }
}

// The numbers of rows give clusters of 8, 4, 2 and 1 blocks per row, and more rows than one launch has.
TEST(IndexSelect, AnyNumberOfRowsIsExact) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 5);
  for (int rows : {66, 100, 200, 600, 1030}) {
    SCOPED_TRACE(rows);
    std::vector<int> lengths;
    for (int i = 0; i < rows; ++i) lengths.push_back(static_cast<int>(random.below(200)));
    SelectCase c(16, 50, lengths, random);
    const SelectResult tuned = c.run({});
    const SelectResult plain = c.run({.reference = true});
    EXPECT_EQ(plain.chosen, c.of_cpu());
    EXPECT_EQ(c.run({.by_bits = true, .share = true}), tuned);
    if (rows <= cuda::kMaxIndexGroups) expect_exact(c, tuned);
  }
}

TEST(IndexSelect, ScoresDependOnTheRowAndTheKeyAlone) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 6);
  const SelectCase c(64, 70, {300, 71, 513, 65, 400}, random);
  const SelectResult whole = c.run({});
  for (const SelectRun& how : {SelectRun{.share = true}, SelectRun{.more_keys = 100000},
                               SelectRun{.num_sms = 3}, SelectRun{.share = true, .num_sms = 1}}) {
    const SelectResult other = c.run(how);
    EXPECT_EQ(other, whole);
    for (int64_t row = 0; row < c.num_rows(); ++row) {
      if (c.kv_len[row] <= c.topk) continue;
      EXPECT_EQ(std::memcmp(&whole.scores[row * whole.stride], &other.scores[row * other.stride],
                            c.kv_len[row] * sizeof(float)),
                0)
          << "row " << row;
    }
  }
}

Positions first_positions(int64_t count) {
  Positions positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

TEST(IndexSelect, OfEqualScoresTheLowerPositionWins) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 7);
  SelectCase c(16, 100, {101, 1000, 5000}, random);
  const std::vector<float> key = random.normals(kIndexHeadDim);
  for (int64_t seq = 0; seq < 3; ++seq) {
    for (int64_t s = 0; s < c.kv_len[seq]; ++s) c.cache.set_key(c.cache.slot(seq, s), key, 0.5F);
  }
  const std::vector<Positions> expected(3, first_positions(100));
  for (bool reference : {false, true}) {
    for (bool by_bits : {false, true})
      EXPECT_EQ(c.run({.reference = reference, .by_bits = by_bits}).chosen, expected);
  }
  // Two keys are better than all others, so 98 of the equal ones are chosen.
  for (float& v : c.w) v = std::abs(v);
  c.cache.set_key(c.cache.slot(2, 2500), key, 1.0F);
  c.cache.set_key(c.cache.slot(2, 4999), key, 1.0F);
  Positions mixed = first_positions(98);
  mixed.push_back(2500);
  mixed.push_back(4999);
  for (bool by_bits : {false, true}) EXPECT_EQ(c.run({.by_bits = by_bits}).chosen[2], mixed);
}

TEST(IndexSelect, NanIsWorseThanEveryNumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed() + 8);
  SelectCase c(16, 100, {160}, random);
  for (float& v : c.w) v = -std::abs(v);  // the numbers are negative or zero
  // Every second of the first 140 keys is NaN, so only 90 numbers are left and 10 NaN are chosen.
  Positions expected;
  for (int64_t s = 0; s < 160; ++s) {
    const bool is_nan = s < 140 && s % 2 == 1;
    if (!is_nan || s < 20) expected.push_back(s);
    if (!is_nan) continue;
    std::vector<float> key = random.normals(kIndexHeadDim);
    const bool by_scale = s % 4 == 1;
    if (!by_scale) key[s % kIndexHeadDim] = kNan;
    c.cache.set_key(c.cache.slot(0, s), key, by_scale ? kNan : 0.25F);
  }
  for (bool reference : {false, true}) {
    for (bool by_bits : {false, true})
      EXPECT_EQ(c.run({.reference = reference, .by_bits = by_bits}).chosen[0], expected);
  }
}

TEST(IndexSelect, RefusesTwoOutputsAndTooFewBits) {
  int32_t word = 0;
  uint64_t bits = 0;
  const cuda::IndexSelectShape shape{.num_rows = 1, .num_heads = 16, .topk = 64, .most_keys = 200};
  EXPECT_THROW(cuda::index_select({.shape = shape}, test_launch()), Error);
  EXPECT_THROW(
      cuda::index_select({.shape = shape, .slots = &word, .counts = &word, .bits = &bits}, test_launch()),
      Error);
  EXPECT_THROW(cuda::index_select({.shape = shape, .bits = &bits, .bits_stride = 3}, test_launch()), Error);
  EXPECT_THROW(cuda::index_select({.shape = shape, .slots = &word}, test_launch()), Error);
}

}  // namespace
}  // namespace hadal::testing
