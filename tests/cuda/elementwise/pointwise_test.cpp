// Tests embedding, fed tokens, quantisation, SwiGLU, RoPE of q and page copies.
#include <cstring>

#include "kernels/params/random_record.h"
#include "tests/cuda/elementwise/fixture.h"

namespace hadal::testing {
namespace {

class Pointwise : public BothKernels {};

cuda::NormInput dense_input(const bf16* x, int64_t stride) {
  return {.dense = x, .x_stride = stride};
}

TEST_P(Pointwise, EmbeddingCopiesRowsAndZeroesBadIds) {
  for (const int64_t hidden : {int64_t{2048}, int64_t{7168}, int64_t{24}, int64_t{75}}) {
    SCOPED_TRACE(hidden);
    const int64_t vocab = 50;
    const auto table = random_bf16(vocab * hidden, fresh_seed());
    const std::vector<int32_t> ids = {0, 49, 7, -1, 50, 7, 2'000'000'000};
    const auto m = static_cast<int64_t>(ids.size());
    const DeviceArray<bf16> device_table(table);
    const DeviceArray<int32_t> device_ids(ids);
    const DeviceArray<float> y((m + 1) * hidden);
    embedding({device_table.data(), device_ids.data(), y.data(), m, hidden, vocab}, launch());
    const auto out = y.download();
    for (int64_t i = 0; i < m * hidden; ++i) {
      const int64_t id = ids[i / hidden];
      const float want = id >= 0 && id < vocab ? to_float(table[id * hidden + i % hidden]) : 0.0F;
      ASSERT_EQ(out[i], want) << "element " << i;
    }
    ASSERT_TRUE(std::isnan(out[m * hidden]));
  }
}

TEST_P(Pointwise, FeedTokensSkipsPadding) {
  std::vector<int32_t> rows(600);
  std::vector<int32_t> slots(600);
  for (int i = 0; i < 600; ++i) {
    rows[i] = 599 - i;
    slots[i] = i % 3 == 0 ? -1 : i * 2;
  }
  std::vector<int32_t> last(1200);
  for (int i = 0; i < 1200; ++i) last[i] = 5000 + i;
  const DeviceArray<int32_t> device_rows(rows);
  const DeviceArray<int32_t> device_slots(slots);
  const DeviceArray<int32_t> device_last(last);
  const DeviceArray<int32_t> ids(std::vector<int32_t>(600, 7));
  feed_tokens({device_rows.data(), device_slots.data(), device_last.data(), ids.data(), 600}, launch());
  const auto out = ids.download();
  for (int i = 0; i < 600; ++i) ASSERT_EQ(out[599 - i], i % 3 == 0 ? 7 : 5000 + 2 * i) << i;
}

TEST_P(Pointwise, QuantizeRowsGivesTheNearestCodes) {
  for (const int64_t n : {int64_t{512}, int64_t{7168}, int64_t{1408}, int64_t{1416}, int64_t{130},
                          int64_t{18432}, int64_t{33000}}) {
    for (const int64_t m : {1, 5, 67}) {
      SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(n) + " seed " + std::to_string(fresh_seed()));
      const int64_t stride = n + (n % 8 == 0 ? 24 : 3);
      auto x = random_bf16(m * stride, fresh_seed() + n + m, 3.0F);
      for (int64_t c = 0; c < 128 && c < n; ++c) x[c] = {};  // a group of zeros
      std::vector<double> expected(m * n);
      for (int64_t i = 0; i < m * n; ++i)
        expected[i] = static_cast<double>(to_float(x[i / n * stride + i % n]));
      const DeviceArray<bf16> device(x);
      for (const cuda::RowFormat format : kRowFormats) {
        SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)));
        const DeviceFp8 y(m, n, m == 5 ? 256 : 0, 1, m == 67, format);
        quantize_rows({device.data(), stride, m, n, y.view}, launch());
        expect_quantized(y, expected, n);
        if (HasFatalFailure()) return;
        // Inputs are bf16, so the codes are exact.
        const auto codes = y.codes.download();
        const auto scales = y.scales.download();
        for (int64_t i = 0; i < m * n; ++i) {
          const float scale =
              scales[cuda::is_per_token(format) ? i / n : i % n / 128 * y.scale_stride + i / n];
          const uint8_t want = nearest_code(format, static_cast<float>(expected[i]) / scale);
          ASSERT_EQ(codes[i / n * y.stride + i % n].bits, want) << "element " << i;
        }
      }
    }
  }
}

TEST_P(Pointwise, SiluMulMatchesDoublePrecision) {
  for (const int64_t n :
       {int64_t{1408}, int64_t{2048}, int64_t{10944}, int64_t{18432}, int64_t{8}, int64_t{50}}) {
    for (const int64_t m : {1, 9}) {
      SCOPED_TRACE(std::to_string(m) + " x " + std::to_string(n) + " seed " + std::to_string(fresh_seed()));
      auto x = random_bf16(m * 2 * n, fresh_seed() + n, 4.0F);
      x[0] = to_bf16(-200.0F);  // exp overflows: the result is zero, not NaN
      x[1] = to_bf16(300.0F);
      std::vector<double> expected(m * n);
      for (int64_t i = 0; i < m * n; ++i) {
        const auto gate = static_cast<double>(to_float(x[i / n * 2 * n + i % n]));
        expected[i] =
            gate / (1.0 + std::exp(-gate)) * static_cast<double>(to_float(x[i / n * 2 * n + n + i % n]));
      }
      const DeviceArray<bf16> device(x);
      const DeviceArray<bf16> y((m + 1) * n);
      silu_mul({.x = device.data(), .m = m, .n = n, .y = y.data()}, launch());
      auto out = y.download();
      EXPECT_LT(std::fabs(to_float(out[0])), 1e-30F);
      out[0] = to_bf16(static_cast<float>(expected[0]));
      expect_rounded(out, expected, 4e-6);
      for (const cuda::RowFormat format : kRowFormats) {
        SCOPED_TRACE("format " + std::to_string(static_cast<int>(format)));
        const DeviceFp8 y_quantized(m, n, 0, 2, m == 9, format);
        silu_mul({.x = device.data(), .m = m, .n = n, .y_quantized = y_quantized.view}, launch());
        expect_quantized(y_quantized, expected, n);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(Pointwise, QRopeMatchesDoublePrecision) {
  for (const int heads : {1, 16, 20, 128}) {
    for (const bool in_place : {false, true}) {
      SCOPED_TRACE(heads);
      const int64_t m = 11;
      const int64_t q_row = heads * 192 + 8;
      const auto q = random_bf16(m * q_row, fresh_seed() + heads);
      const auto table = random_floats(100 * 64, fresh_seed() + 1);
      std::vector<int32_t> positions(m);
      for (int64_t i = 0; i < m; ++i) positions[i] = static_cast<int32_t>(i * 9 % 100);
      const DeviceArray<bf16> device_q(q);
      const DeviceArray<float> device_table(table);
      const DeviceArray<int32_t> device_positions(positions);
      const int64_t y_row = in_place ? q_row : heads * 576;
      const int64_t y_head = in_place ? 192 : 576;
      const int64_t y_first = in_place ? 128 : 512;
      const DeviceArray<bf16> out(m * y_row);
      bf16* y = in_place ? device_q.data() : out.data();
      q_rope({.q = device_q.data() + 128,
              .q_row_stride = q_row,
              .q_head_stride = 192,
              .y = y + y_first,
              .y_row_stride = y_row,
              .y_head_stride = y_head,
              .positions = device_positions.data(),
              .cos_sin = device_table.data(),
              .m = m,
              .num_heads = heads},
             launch());
      const auto got = in_place ? device_q.download() : out.download();
      std::vector<bf16> want = in_place ? q : std::vector<bf16>(got.size(), bf16{0xffff});
      for (int64_t i = 0; i < m; ++i) {
        for (int h = 0; h < heads; ++h) {
          for (int pair = 0; pair < 32; ++pair) {
            const bf16* x = &q[i * q_row + h * 192 + 128 + 2 * pair];
            const float a = to_float(x[0]);
            const float b = to_float(x[1]);
            const float cosine = table[positions[i] * 64 + pair];
            const float sine = table[positions[i] * 64 + 32 + pair];
            bf16* to = &want[i * y_row + h * y_head + y_first + 2 * pair];
            to[0] = to_bf16(a * cosine - b * sine);
            to[1] = to_bf16(b * cosine + a * sine);
          }
        }
      }
      for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i].bits, want[i].bits) << "element " << i;
    }
  }
}

TEST_P(Pointwise, CopyPagesCopiesTheGivenRowsOnly) {
  for (const KvLayout layout :
       {KvLayout{KvFormat::kBF16}, KvLayout{KvFormat::kFp8E4M3}, KvLayout{KvFormat::kFp8E5M2}}) {
    SCOPED_TRACE(layout.row_bytes());
    const int64_t pages = 7;
    std::mt19937_64 random(fresh_seed());
    std::vector<std::vector<std::byte>> host(3, std::vector<std::byte>(pages * layout.page_bytes()));
    std::vector<DeviceArray<std::byte>> pools;
    std::vector<std::byte*> addresses;
    for (auto& pool : host) {
      for (std::byte& b : pool) b = static_cast<std::byte>(random());
      pools.emplace_back(pool);
      addresses.push_back(pools.back().data());
    }
    const std::vector<cuda::PageCopyEntry> copies = {{0, 6, 64}, {1, 5, 1}, {2, 4, 33}, {3, 3, 0}};
    const DeviceArray<std::byte*> device_addresses(addresses);
    const DeviceArray<cuda::PageCopyEntry> device_copies(copies);
    copy_pages({device_addresses.data(), nullptr, device_copies.data(), 3, 4, layout}, launch());
    for (size_t layer = 0; layer < host.size(); ++layer) {
      auto& want = host[layer];
      for (const auto& copy : copies) {
        std::memcpy(&want[copy.target * layout.page_bytes()], &want[copy.source * layout.page_bytes()],
                    static_cast<size_t>(copy.num_rows * layout.row_bytes()));
      }
      ASSERT_TRUE(pools[layer].download() == want) << "layer " << layer;
    }
  }
}

TEST_P(Pointwise, CopyPagesCopiesIndexKeysWithTheirScales) {
  const KvLayout layout{.format = KvFormat::kFp8E4M3, .index = KvIndex::kE4M3};
  const int64_t pages = 4;
  std::vector<std::byte> host(pages * layout.index_page_bytes());
  std::mt19937_64 random(fresh_seed());
  for (std::byte& b : host) b = static_cast<std::byte>(random());
  const DeviceArray<std::byte> records(std::vector<std::byte>(pages * layout.page_bytes()));
  const DeviceArray<std::byte> keys(host);
  const DeviceArray<std::byte*> pools(std::vector<std::byte*>{records.data()});
  const DeviceArray<std::byte*> index_pools(std::vector<std::byte*>{keys.data()});
  const DeviceArray<cuda::PageCopyEntry> copies(std::vector<cuda::PageCopyEntry>{{0, 2, 33}, {1, 3, 64}});
  copy_pages({.pools = pools.data(),
              .index_pools = index_pools.data(),
              .copies = copies.data(),
              .num_layers = 1,
              .num_copies = 2,
              .layout = layout},
             launch());
  const auto copy = [&](int64_t source, int64_t target, size_t rows) {
    const std::byte* from = &host[source * layout.index_page_bytes()];
    std::byte* to = &host[target * layout.index_page_bytes()];
    std::memcpy(to, from, rows * kKvIndexDim);
    std::memcpy(to + kKvIndexScalesOffset, from + kKvIndexScalesOffset, rows * sizeof(float));
  };
  copy(0, 2, 33);
  copy(1, 3, 64);
  EXPECT_TRUE(keys.download() == host);
}

// The expected bytes are those of the formulas of random_record.h in host code.
TEST_P(Pointwise, FilledPagesHaveTheBytesThatTheCpuStores) {
  constexpr int64_t kLayers = 2;
  constexpr int64_t kPages = 3;
  constexpr uint64_t kSeed = 11;
  for (const KvLayout layout :
       {KvLayout{KvFormat::kF16}, KvLayout{KvFormat::kBF16}, KvLayout{KvFormat::kFp8E5M2},
        KvLayout{KvFormat::kFp8E4M3}, KvLayout{.format = KvFormat::kFp8E4M3, .index = KvIndex::kE4M3}}) {
    SCOPED_TRACE(layout.token_bytes());
    std::vector<DeviceArray<std::byte>> pools, index_pools;
    std::vector<std::byte*> addresses, index_addresses;
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      pools.emplace_back(std::vector<std::byte>(kPages * layout.page_bytes()));
      addresses.push_back(pools.back().data());
      index_pools.emplace_back(
          std::vector<std::byte>(std::max<int64_t>(kPages * layout.index_page_bytes(), 1)));
      index_addresses.push_back(index_pools.back().data());
    }
    const DeviceArray<std::byte*> device_addresses(addresses);
    const DeviceArray<std::byte*> device_index(index_addresses);
    fill_pages({.pools = device_addresses.data(),
                .index_pools = device_index.data(),
                .num_layers = kLayers,
                .num_pages = kPages,
                .layout = layout,
                .seed = kSeed},
               launch());
    const auto store = [](std::byte* to, auto value) { std::memcpy(to, &value, sizeof(value)); };
    for (int64_t layer = 0; layer < kLayers; ++layer) {
      std::vector<std::byte> records(kPages * layout.page_bytes());
      std::vector<std::byte> keys(std::max<int64_t>(kPages * layout.index_page_bytes(), 1));
      for (int64_t slot = 0; slot < kPages * kPageSize; ++slot) {
        std::byte* const record = &records[slot * layout.row_bytes()];
        const uint64_t key = random_record_key(kSeed, layer, slot, RandomPart::kRecord);
        for (int i = 0; i < kKvRowDim; ++i) {
          const float value = random_record_value(key, i);
          if (layout.format == KvFormat::kF16) store(record + 2 * i, to_f16(value));
          if (layout.format == KvFormat::kBF16) store(record + 2 * i, to_bf16(value));
          if (layout.format == KvFormat::kFp8E5M2) store(record + i, to_fp8_e5m2(value));
          if (layout.format != KvFormat::kFp8E4M3) continue;
          if (i < kKvLatentDim) {
            store(record + i, to_fp8_e4m3(value / kRandomScale));
          } else {
            store(record + kKvFp8RopeOffset + 2 * (i - kKvLatentDim), to_bf16(value));
          }
          if (i < kKvNumScales) store(record + kKvFp8ScaleOffset + 4 * i, kRandomScale);
        }
        if (layout.index == KvIndex::kNone) continue;
        std::byte* const page = &keys[slot / kPageSize * layout.index_page_bytes()];
        const uint64_t index_key = random_record_key(kSeed, layer, slot, RandomPart::kIndexKey);
        for (int i = 0; i < kKvIndexDim; ++i) {
          store(page + slot % kPageSize * kKvIndexDim + i,
                to_fp8_e4m3(random_record_value(index_key, i) / kRandomScale));
        }
        store(page + kKvIndexScalesOffset + 4 * (slot % kPageSize), kRandomScale);
      }
      ASSERT_TRUE(pools[layer].download() == records) << "layer " << layer;
      ASSERT_TRUE(index_pools[layer].download() == keys) << "index keys of layer " << layer;
    }
  }
}

// Runs every kernel of this file on a few ragged rows, for memory and race checkers.
TEST_P(Pointwise, RaggedRowsForSanitizersAreFinite) {
  const int64_t m = 3;
  const int64_t n = 1416;
  const DeviceArray<bf16> x(random_bf16(m * 2 * n, fresh_seed()));
  const DeviceArray<bf16> y(m * n);
  const DeviceFp8 y_quantized(m, n, 0, 0, false);
  const DeviceArray<float> sum(std::vector<float>(m * n, 1.0F));
  const DeviceArray<int32_t> ids(std::vector<int32_t>{0, 5, -1});
  const DeviceArray<float> table(random_floats(6 * 64, fresh_seed()));
  const DeviceArray<int32_t> positions(std::vector<int32_t>{0, 5, 2});
  silu_mul({.x = x.data(), .m = m, .n = n, .y = y.data(), .y_quantized = y_quantized.view}, launch());
  quantize_rows({x.data(), n, m, n, y_quantized.view}, launch());
  add_residual(dense_input(x.data(), n), sum.data(), m, n, launch());
  embedding({x.data(), ids.data(), sum.data(), m, n, 6}, launch());
  q_rope({.q = x.data(),
          .q_row_stride = 192,
          .q_head_stride = 64,
          .y = y.data(),
          .y_row_stride = 192,
          .y_head_stride = 64,
          .positions = positions.data(),
          .cos_sin = table.data(),
          .m = m,
          .num_heads = 3},
         launch());
  for (float v : sum.download()) ASSERT_TRUE(std::isfinite(v));
  const auto out = y.download();
  for (int64_t i = 0; i < m * n; ++i) ASSERT_TRUE(std::isfinite(to_float(out[i]))) << i;
}

// In a graph of ops that read each other's results, overlapped launches must not read early.
TEST_P(Pointwise, OverlappedLaunchesKeepOrder) {
  for (const int64_t m : {1, 64, 300}) {
    const int64_t n = 2048;
    const auto residual = random_floats(m * n, fresh_seed());
    const DeviceArray<float> weight(random_floats(n, fresh_seed() + 1, 0.1F, 1.0F));
    std::vector<float> results[2];
    for (const bool pdl : {false, true}) {
      DeviceArray<float> sum(residual);
      const DeviceArray<bf16> y(m * n);
      const DeviceArray<bf16> hidden(m * n / 2);
      const DeviceFp8 quantized(m, n / 2, 0, 0, false);
      const cuda::Launch how = launch_on_test_stream(GetParam(), pdl);
      const CudaGraph graph = CudaGraph::capture(test_stream(), [&] {
        for (int layer = 0; layer < 30; ++layer) {
          add_rms_norm({.input = layer == 0 ? cuda::NormInput{} : dense_input(y.data(), n),
                        .residual = sum.data(),
                        .weight = weight.data(),
                        .y = y.data(),
                        .m = m,
                        .n = n},
                       how);
          silu_mul({.x = y.data(), .m = m, .n = n / 2, .y = hidden.data()}, how);
          quantize_rows({hidden.data(), n / 2, m, n / 2, quantized.view}, how);
          add_residual(dense_input(y.data(), n), sum.data(), m, n, how);
        }
      });
      graph.launch(test_stream().handle());
      test_stream().synchronize();
      results[pdl ? 1 : 0] = sum.download();
    }
    ASSERT_EQ(std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)), 0)
        << m << " rows";
    for (float v : results[0]) ASSERT_TRUE(std::isfinite(v));
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Pointwise, ::testing::Values(false, true), kernel_name);

}  // namespace
}  // namespace hadal::testing
