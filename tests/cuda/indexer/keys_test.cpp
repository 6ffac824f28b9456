// Compares index keys and queries on the device with the CPU's scalar code. The plain kernels have the same
// bits. The tuned kernel of keys sums its norm in float32, so a few of its codes are the neighbouring ones.
#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/indexer/indexer.h"
#include "tests/cuda/test_launch.h"
#include "tests/kernels/indexer_fixture.h"

namespace hadal::testing {
namespace {

constexpr int kDim = kIndexHeadDim;
constexpr int kPositions = 500;
constexpr int64_t kPageBytes = kPageSize * kKvIndexBytesE4M3;

std::vector<float> rope_table() {
  std::vector<float> table(kPositions * 64);
  for (int position = 0; position < kPositions; ++position) {
    for (int i = 0; i < 32; ++i) {
      const double angle = position * std::pow(10000.0, -i / 32.0);
      table[position * 64 + i] = static_cast<float>(std::cos(angle));
      table[position * 64 + 32 + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

std::vector<bf16> random_rows(cpu::Random& random, int64_t count, float scale) {
  std::vector<bf16> values(count);
  for (bf16& value : values) value = to_bf16(random.normal(scale));
  return values;
}

int code_distance(std::byte a, std::byte b) {
  const auto ordinal = [](std::byte code) {
    const auto bits = static_cast<int>(code);
    return (bits & 0x80) != 0 ? -(bits & 0x7f) : bits;
  };
  return std::abs(ordinal(a) - ordinal(b));
}

class IndexKeys : public ::testing::TestWithParam<bool> {
 protected:
  static bool is_plain() { return GetParam(); }
};

// Holds rows of wk's product, of which every fifth is padding.
struct KeyCase {
  KeyCase(int64_t tokens, int64_t row_stride, cpu::Random& random)
      : m(tokens),
        stride(row_stride),
        num_pages(tokens / kPageSize + 2),
        k(random_rows(random, m * stride, 2.0F)),
        weight(random.normals(kDim, 1.5F)),
        bias(random.normals(kDim, 0.3F)) {
    for (int64_t i = 0; i < m; ++i) positions.push_back(static_cast<int32_t>(random.below(kPositions)));
    for (int64_t slot = 0; slot < num_pages * kPageSize; ++slot) slots.push_back(slot);
    random.shuffle(slots);
    slots.resize(m);
    for (int64_t i = 4; i < m; i += 5) slots[i] = -1;
  }

  std::vector<std::byte> run(bool reference) const {
    const DeviceArray<bf16> device_k(k);
    const DeviceArray<float> device_weight(weight), device_bias(bias), device_table(table);
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<int64_t> device_slots(slots);
    const DeviceArray<std::byte> pool(num_pages * kPageBytes);
    cuda::index_write({.k = device_k.data(),
                       .k_stride = stride,
                       .m = m,
                       .norm_weight = device_weight.data(),
                       .norm_bias = device_bias.data(),
                       .norm_eps = 1e-3F,
                       .positions = device_positions.data(),
                       .cos_sin = device_table.data(),
                       .slots = device_slots.data(),
                       .pool = pool.data()},
                      test_launch(reference));
    return pool.download();
  }

  std::vector<std::byte> expected() const {
    std::vector<std::byte> pool(num_pages * kPageBytes, std::byte{0xff});
    std::vector<float> rows;
    std::vector<int32_t> row_positions;
    std::vector<int64_t> row_slots;
    for (int64_t i = 0; i < m; ++i) {
      if (slots[i] < 0) continue;
      for (int j = 0; j < kDim; ++j) rows.push_back(to_float(k[i * stride + j]));
      row_positions.push_back(positions[i]);
      row_slots.push_back(slots[i]);
    }
    const IndexWriteParams params = {.k = rows.data(),
                                     .k_stride = kDim,
                                     .m = static_cast<int64_t>(row_slots.size()),
                                     .norm_weight = weight.data(),
                                     .norm_bias = bias.data(),
                                     .norm_eps = 1e-3F,
                                     .positions = row_positions.data(),
                                     .cos_sin = table.data(),
                                     .slots = row_slots.data(),
                                     .pool = pool.data(),
                                     .layout = KvIndex::kE4M3};
    cpu::run_on(1, [&](cpu::Context& ctx) { cpu::reference::index_write(params, ctx); });
    return pool;
  }

  int64_t m, stride, num_pages;
  std::vector<bf16> k;
  std::vector<float> weight, bias, table = rope_table();
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
};

void check_keys(bool plain, int64_t m, int64_t stride) {
  SCOPED_TRACE(std::to_string(m) + " tokens, seed " + std::to_string(fresh_seed()));
  cpu::Random random(fresh_seed() + m);
  const KeyCase c(m, stride, random);
  const std::vector<std::byte> pool = c.run(plain), expected = c.expected();
  int64_t different = 0;
  for (size_t i = 0; i < pool.size(); ++i) {
    if (pool[i] == expected[i]) continue;
    const bool is_code = static_cast<int64_t>(i) % kPageBytes < kKvIndexScalesOffset;
    ASSERT_TRUE(is_code && !plain && code_distance(pool[i], expected[i]) <= 1) << "byte " << i;
    ++different;
  }
  EXPECT_LE(different, 2 + m * kDim / 1000);
}

TEST_P(IndexKeys, AreTheCpusInPagesAndNowhereElse) {
  for (int64_t m : {1, 7, 64, 65, 300}) check_keys(is_plain(), m, kDim);
  check_keys(is_plain(), 33, 2240);  // a part of wider rows
  check_keys(is_plain(), 9, 131);    // no vector load
}

TEST_P(IndexKeys, SmallCasesForSanitizersAreTheCpus) {
  check_keys(is_plain(), 11, kDim + 8);
}

struct QueryCase {
  QueryCase(int64_t tokens, int num_heads, int64_t padding, cpu::Random& random)
      : m(tokens),
        heads(num_heads),
        q_stride(int64_t{num_heads} * kDim + padding),
        w_stride(num_heads + padding),
        q(random_rows(random, m * q_stride, 1.0F)),
        w(random.normals(m * w_stride)) {
    for (int64_t i = 0; i < m; ++i) {
      positions.push_back(static_cast<int32_t>(random.below(kPositions)));
      kv_len.push_back(static_cast<int32_t>(90 + random.below(20)));
    }
  }

  // Rows of at most topk keys must be left unchanged. If topk is 0, no lengths are passed.
  void check(bool reference, int topk) const {
    const DeviceArray<bf16> device_q(q);
    const DeviceArray<float> device_w(w), device_table(table);
    const DeviceArray<int32_t> device_positions(positions), device_kv_len(kv_len);
    const DeviceArray<fp8_e4m3> codes(m * heads * kDim);
    const DeviceArray<float> weights(m * heads);
    cuda::index_query({.q = device_q.data(),
                       .q_stride = q_stride,
                       .w = device_w.data(),
                       .w_stride = w_stride,
                       .m = m,
                       .num_heads = heads,
                       .positions = device_positions.data(),
                       .cos_sin = device_table.data(),
                       .kv_len = topk > 0 ? device_kv_len.data() : nullptr,
                       .topk = topk,
                       .codes = codes.data(),
                       .weights = weights.data()},
                      test_launch(reference));
    std::vector<float> expected_q, expected_w;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < int64_t{heads} * kDim; ++j) expected_q.push_back(to_float(q[i * q_stride + j]));
      for (int h = 0; h < heads; ++h) expected_w.push_back(w[i * w_stride + h]);
    }
    const IndexQueryParams params = {.q = expected_q.data(),
                                     .w = expected_w.data(),
                                     .m = m,
                                     .num_heads = heads,
                                     .positions = positions.data(),
                                     .cos_sin = table.data(),
                                     .layout = KvIndex::kE4M3};
    cpu::run_on(1, [&](cpu::Context& ctx) { cpu::reference::index_query(params, ctx); });
    const auto got_codes = codes.download();
    const auto got_weights = weights.download();
    for (int64_t item = 0; item < m * heads; ++item) {
      const bool skipped = topk > 0 && kv_len[item / heads] <= topk;
      for (int j = 0; j < kDim; ++j) {
        const int64_t i = item * kDim + j;
        const uint8_t expected = skipped ? 0xff : to_fp8_e4m3(expected_q[i]).bits;
        ASSERT_EQ(got_codes[i].bits, expected) << "token " << item / heads << ", head " << item % heads;
      }
      const float poison = std::bit_cast<float>(0xffffffffU);
      const float expected = skipped ? poison : expected_w[item];
      ASSERT_EQ(std::memcmp(&got_weights[item], &expected, sizeof(float)), 0)
          << got_weights[item] << ", expected " << expected;
    }
  }

  int64_t m;
  int heads;
  int64_t q_stride, w_stride;
  std::vector<bf16> q;
  std::vector<float> w, table = rope_table();
  std::vector<int32_t> positions, kv_len;
};

TEST_P(IndexKeys, QueriesHaveTheCpusCodesAndWeights) {
  SCOPED_TRACE(fresh_seed());
  cpu::Random random(fresh_seed());
  for (int heads : {1, 7, 16, 32, 63, 64}) {
    for (int64_t padding : {0, 5, 8}) {
      const QueryCase c(19, heads, padding, random);
      c.check(is_plain(), 0);
      c.check(is_plain(), 100);
    }
  }
}

TEST_P(IndexKeys, SmallQueriesForSanitizersAreTheCpus) {
  cpu::Random random(fresh_seed());
  QueryCase(3, 5, 8, random).check(is_plain(), 100);
}

std::string kernel_name(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Plain" : "Tuned";
}
INSTANTIATE_TEST_SUITE_P(Kernels, IndexKeys, ::testing::Values(false, true), kernel_name);

}  // namespace
}  // namespace hadal::testing
