#include "tests/kernels/indexer_fixture.h"

namespace hadal::cpu {
namespace {

using Positions = std::vector<int64_t>;

// Holds tokens with random queries. Token i belongs to sequence seq_idx[i] and has kv_len[i] visible keys.
struct SelectCase {
  int num_heads = 0;
  int topk = 0;
  std::vector<int32_t> seq_idx;
  std::vector<int32_t> kv_len;
  IndexCache cache;
  std::vector<float> q;
  std::vector<float> w;

  // Every token has a sequence of its own.
  SelectCase(int heads, int k, const std::vector<int>& lengths, KvIndex layout, uint64_t seed)
      : SelectCase(heads, k, lengths, lengths, layout, Random(seed)) {
    for (size_t i = 0; i < lengths.size(); ++i) seq_idx[i] = static_cast<int32_t>(i);
  }
  // Describes the last q_len tokens of one sequence of `length` keys.
  static SelectCase prompt(int heads, int k, int length, int q_len, KvIndex layout, uint64_t seed) {
    std::vector<int> kv_len;
    for (int i = 0; i < q_len; ++i) kv_len.push_back(length - q_len + i + 1);
    return {heads, k, {length}, kv_len, layout, Random(seed)};
  }

  int64_t num_tokens() const { return static_cast<int64_t>(kv_len.size()); }

  // Returns the chosen positions of tokens [begin, begin + count), by slots or by bits. Everything that the
  // contract says about the outputs is checked here.
  template <typename Kernel>
  std::vector<Positions> run(Kernel kernel, bool by_bits, int num_threads, int64_t begin, int64_t count) {
    int64_t stride = 1;
    for (int32_t n : kv_len) stride = std::max<int64_t>(stride, (n + 63) / 64 + 1);
    std::vector<int32_t> slots(count * topk + 16, 0x7f7f7f7f);
    std::vector<int32_t> counts(count, 0x7f7f7f7f);
    std::vector<uint64_t> bits(count * stride + 16, ~uint64_t{0});
    IndexSelectParams p = {.q = q.data() + begin * num_heads * kIndexHeadDim,
                           .w = w.data() + begin * num_heads,
                           .num_tokens = count,
                           .num_heads = num_heads,
                           .topk = topk,
                           .keys = cache.view(),
                           .seq_idx = seq_idx.data() + begin,
                           .kv_len = kv_len.data() + begin};
    if (by_bits) {
      p.bits = bits.data();
      p.bits_stride = stride;
    } else {
      p.slots = slots.data();
      p.counts = counts.data();
    }
    run_on(num_threads, [&](Context& ctx) { kernel(p, ctx); });
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(slots[count * topk + i], 0x7f7f7f7f);
      EXPECT_EQ(bits[count * stride + i], ~uint64_t{0});
    }
    std::vector<Positions> chosen(count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = kv_len[begin + i];
      if (by_bits) {
        for (int64_t s = 0; s < stride * 64; ++s) {
          if ((bits[i * stride + s / 64] >> (s % 64) & 1U) != 0) chosen[i].push_back(s);
        }
      } else {
        for (int64_t s = 0, j = 0; s < n && j < counts[i]; ++s) {
          if (slots[i * topk + j] != cache.slot(seq_idx[begin + i], s)) continue;
          chosen[i].push_back(s);
          ++j;
        }
        EXPECT_EQ(static_cast<int64_t>(chosen[i].size()), counts[i]) << "slots ascend by position";
        for (int64_t j = counts[i]; j < topk; ++j) EXPECT_EQ(slots[i * topk + j], -1);
      }
      EXPECT_EQ(static_cast<int64_t>(chosen[i].size()), std::min<int64_t>(topk, n));
      EXPECT_TRUE(chosen[i].empty() || chosen[i].back() < n);
    }
    return chosen;
  }
  template <typename Kernel>
  std::vector<Positions> run(Kernel kernel, bool by_bits = false, int num_threads = 2) {
    return run(kernel, by_bits, num_threads, 0, num_tokens());
  }

  // Returns the scores of a token's keys in double.
  std::vector<double> scores(int64_t token) {
    std::vector<double> all(kv_len[token]);
    float key[kIndexHeadDim];
    for (int64_t s = 0; s < kv_len[token]; ++s) {
      const double scale =
          reference::load_index_key(cache.pool.data(), cache.layout, cache.slot(seq_idx[token], s), key);
      for (int64_t row = token * num_heads; row < (token + 1) * num_heads; ++row) {
        double product = 0.0;
        for (int i = 0; i < kIndexHeadDim; ++i) product += double{q[row * kIndexHeadDim + i]} * key[i];
        all[s] += std::max(product, 0.0) * w[row];
      }
      all[s] *= scale;
    }
    return all;
  }

 private:
  SelectCase(int heads, int k, const std::vector<int>& lengths, const std::vector<int>& visible,
             KvIndex layout, Random random)
      : num_heads(heads),
        topk(k),
        seq_idx(visible.size(), 0),
        kv_len(visible.begin(), visible.end()),
        cache(lengths, layout, random),
        q(random.normals(num_tokens() * heads * kIndexHeadDim, 3.0F)),
        w(random.normals(num_tokens() * heads, 0.01F)) {}
};

// Every key that is better than the last chosen one by more than a thousandth of the largest score is chosen,
// and none that is worse by as much.
void expect_best(SelectCase& c, int64_t token, const Positions& chosen) {
  const std::vector<double> scores = c.scores(token);
  if (static_cast<int>(scores.size()) <= c.topk) return;  // run() has counted them
  double largest = 0.0;
  for (double score : scores) largest = std::max(largest, std::abs(score));
  std::vector<double> sorted = scores;
  std::nth_element(sorted.begin(), sorted.begin() + c.topk - 1, sorted.end(), std::greater<>());
  const double border = sorted[c.topk - 1];
  std::vector<bool> is_chosen(scores.size());
  for (int64_t s : chosen) is_chosen[s] = true;
  for (size_t s = 0; s < scores.size(); ++s) {
    const double excess = (scores[s] - border) / largest;
    EXPECT_TRUE(is_chosen[s] ? excess >= -1e-3 : excess <= 1e-3) << "position " << s << ": " << excess;
  }
}

void expect_best_of_all(SelectCase& c) {
  const auto expected = c.run(reference::index_select);
  for (int64_t token = 0; token < c.num_tokens(); ++token) expect_best(c, token, expected[token]);
  for (bool by_bits : {false, true}) {
    SCOPED_TRACE(by_bits ? "bits" : "slots");
    // Scores have equal bits in every kernel, so the chosen keys are equal.
    for_each_target([&] { EXPECT_EQ(c.run(simd::index_select, by_bits), expected); });
    EXPECT_EQ(c.run(reference::index_select, by_bits), expected);
  }
}

TEST(IndexSelect, ChoosesTheBestKeysForEveryNumberOfHeads) {
  const uint64_t seed = 61;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    for (int heads : {1, 2, 7, 16, 21, 32, 48, 63, 64}) {
      SCOPED_TRACE(static_cast<int>(layout) * 100 + heads);
      SelectCase c(heads, 100, {0, 1, 64, 99, 100, 101, 128, 129, 400}, layout, seed + heads);
      expect_best_of_all(c);
    }
  }
}

TEST(IndexSelect, ChoosesTheBestOfSeveralThousandKeys) {
  const uint64_t seed = 62;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout));
    SelectCase c(64, kMaxIndexTopk, {2047, 2048, 2049, 4003}, layout, seed);
    expect_best_of_all(c);
  }
}

// This is the longest context of the model.
TEST(IndexSelect, ChoosesTheBestOf163840Keys) {
  const uint64_t seed = 63;
  SCOPED_TRACE(seed);
  SelectCase c(8, kMaxIndexTopk, {163840}, KvIndex::kE4M3, seed);
  for (bool by_bits : {false, true}) expect_best(c, 0, c.run(simd::index_select, by_bits)[0]);
}

TEST(IndexSelect, ChoosesOneKeyOfMany) {
  const uint64_t seed = 64;
  SCOPED_TRACE(seed);
  SelectCase c(16, 1, {1, 2, 64, 65, 500}, KvIndex::kE4M3, seed);
  expect_best_of_all(c);
}

TEST(IndexSelect, KeysDoNotDependOnThreadsBatchOrChunk) {
  const uint64_t seed = 65;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    SelectCase prompt = SelectCase::prompt(16, 70, 150, 100, layout, seed);
    SelectCase batch(16, 70, {300, 20, 513, 65, 70, 71, 0, 90}, layout, seed);
    for (SelectCase* c : {&prompt, &batch}) {
      for_each_target([&] {
        const auto together = c->run(simd::index_select, false, 1);
        for (int threads : {2, 7}) EXPECT_EQ(c->run(simd::index_select, true, threads), together);
        for (int64_t chunk : {1, 7}) {
          std::vector<Positions> chunked;
          for (int64_t begin = 0; begin < c->num_tokens(); begin += chunk) {
            const int64_t count = std::min(chunk, c->num_tokens() - begin);
            for (auto& row : c->run(simd::index_select, false, 2, begin, count)) chunked.push_back(row);
          }
          EXPECT_EQ(chunked, together);
        }
      });
    }
  }
}

// Returns 0, 1, … count − 1.
Positions first_positions(int64_t count) {
  Positions positions(count);
  std::iota(positions.begin(), positions.end(), 0);
  return positions;
}

TEST(IndexSelect, OfEqualScoresTheLowerPositionWins) {
  const uint64_t seed = 66;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    SelectCase c(16, 100, {101, 1000}, layout, seed);
    const std::vector<float> key = Random(seed).normals(kIndexHeadDim);
    for (int64_t seq = 0; seq < 2; ++seq) {
      for (int64_t s = 0; s < c.kv_len[seq]; ++s) c.cache.set_key(c.cache.slot(seq, s), key, 0.5F);
    }
    const std::vector<Positions> expected(2, first_positions(100));
    EXPECT_EQ(c.run(reference::index_select), expected);
    for_each_target([&] {
      EXPECT_EQ(c.run(simd::index_select, false), expected);
      EXPECT_EQ(c.run(simd::index_select, true), expected);
    });
    // Two keys are better than all others, so 98 of the equal ones are chosen.
    std::vector<float> better = key;
    for (float& v : better) v *= 2.0F;
    for (float& v : c.w) v = std::abs(v);
    c.cache.set_key(c.cache.slot(1, 500), better, 0.5F);
    c.cache.set_key(c.cache.slot(1, 999), better, 0.5F);
    Positions mixed = first_positions(98);
    mixed.push_back(500);
    mixed.push_back(999);
    EXPECT_EQ(c.run(reference::index_select)[1], mixed);
    for_each_target([&] { EXPECT_EQ(c.run(simd::index_select)[1], mixed); });
  }
}

// The product of a positive and a negative number below the smallest float32 is −0.
TEST(IndexSelect, NegativeZeroEqualsZero) {
  SelectCase c(1, 70, {200}, KvIndex::kF32, 67);
  std::fill(c.q.begin(), c.q.end(), 0.0F);
  c.q[0] = 1e-30F;
  c.w[0] = -1e-10F;
  std::vector<float> key(kIndexHeadDim, 0.0F);
  for (int64_t s = 0; s < 200; ++s) {
    key[0] = s % 2 == 0 ? 1e-10F : -1e-10F;
    c.cache.set_key(c.cache.slot(0, s), key, 1.0F);
  }
  EXPECT_EQ(c.run(reference::index_select)[0], first_positions(70));
  for_each_target([&] { EXPECT_EQ(c.run(simd::index_select)[0], first_positions(70)); });
}

TEST(IndexSelect, NanIsWorseThanEveryNumber) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const uint64_t seed = 68;
  SCOPED_TRACE(seed);
  for (KvIndex layout : all_index_layouts()) {
    SCOPED_TRACE(static_cast<int>(layout));
    SelectCase c(16, 100, {160}, layout, seed);
    for (float& v : c.w) v = -std::abs(v);  // the numbers are negative
    // Every second of the first 140 keys is NaN, so only 90 numbers are left and 10 NaN are chosen.
    Positions expected;
    for (int64_t s = 0; s < 160; ++s) {
      const bool is_nan = s < 140 && s % 2 == 1;
      if (!is_nan || s < 20) expected.push_back(s);
      if (!is_nan) continue;
      std::vector<float> key = Random(s).normals(kIndexHeadDim);
      const bool by_scale = layout == KvIndex::kE4M3 && s % 4 == 1;
      if (!by_scale) key[s % kIndexHeadDim] = s % 8 == 3 ? -kNan : kNan;
      c.cache.set_key(c.cache.slot(0, s), key, by_scale ? kNan : 0.25F);
    }
    if (layout == KvIndex::kF32) {  // −infinity is a number
      c.cache.set_key(c.cache.slot(0, 142), std::vector<float>(kIndexHeadDim, 3e38F), 1.0F);
      for (int i = 0; i < kIndexHeadDim; ++i) c.q[i] = 3.0F;
    }
    EXPECT_EQ(c.run(reference::index_select)[0], expected);
    for_each_target([&] {
      EXPECT_EQ(c.run(simd::index_select, false)[0], expected);
      EXPECT_EQ(c.run(simd::index_select, true)[0], expected);
    });
  }
}

}  // namespace
}  // namespace hadal::cpu
