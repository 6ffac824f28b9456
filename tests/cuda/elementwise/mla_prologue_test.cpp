// Compares mla_prologue with norms in double and with the CPU's record writer.
#include "kernels/cpu/reference/kv_record.h"
#include "tests/cuda/elementwise/fixture.h"

namespace hadal::testing {
namespace {

struct PrologueCase {
  int64_t m, q_width;
  bool q_norm, bf16_out, fp8_out;
  KvLayout layout;
  int64_t kv_gap = 0;  // columns between the q part and the latent
};

class MlaPrologue : public BothKernels {
 protected:
  void check(const PrologueCase& c) {
    const uint64_t seed = fresh_seed() + c.m * 7 + c.q_width;
    SCOPED_TRACE("seed " + std::to_string(seed) + " m " + std::to_string(c.m) + " q_width " +
                 std::to_string(c.q_width) + " row bytes " + std::to_string(c.layout.row_bytes()) +
                 " scales " + std::to_string(static_cast<int>(c.layout.scales)));
    const int64_t kv_begin = c.q_width + c.kv_gap;
    const int64_t stride = kv_begin + 576 + (c.q_width % 8 == 0 ? 8 : 1);
    auto x = random_bf16(c.m * stride, seed, 2.0F);
    for (int64_t k = 0; k < 576; ++k) x[(c.m / 2) * stride + kv_begin + k] = {};  // a record of zeros
    const auto q_norm = random_floats(std::max<int64_t>(c.q_width, 1), seed + 1, 0.2F, 1.0F);
    const auto kv_norm = random_floats(512, seed + 2, 0.2F, 1.0F);
    const auto table = random_floats(500 * 64, seed + 3);
    std::vector<int32_t> positions(c.m);
    std::vector<int64_t> slots(c.m);
    const int64_t num_slots = cuda::round_up(2 * c.m + 1, kPageSize);
    std::mt19937_64 random(seed + 4);
    std::vector<int64_t> order(num_slots);
    for (int64_t i = 0; i < num_slots; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    for (int64_t i = 0; i < c.m; ++i) {
      positions[i] = static_cast<int32_t>(random() % 500);
      slots[i] = i % 5 == 4 ? -1 : order[i];
    }

    const DeviceArray<bf16> device_x(x);
    const DeviceArray<float> device_q_norm(q_norm);
    const DeviceArray<float> device_kv_norm(kv_norm);
    const DeviceArray<float> device_table(table);
    const DeviceArray<int32_t> device_positions(positions);
    const DeviceArray<int64_t> device_slots(slots);
    const DeviceArray<std::byte> pool(num_slots * c.layout.row_bytes());
    const DeviceArray<bf16> q((c.m + 1) * c.q_width);
    for (const cuda::RowFormat format : kRowFormats) {
      if (!c.q_norm || !c.fp8_out) break;
      const DeviceFp8 rows(c.m, c.q_width, 0, 2, c.m % 2 == 1, format);
      const DeviceArray<std::byte> other_pool(num_slots * c.layout.row_bytes());
      mla_prologue({.x = device_x.data(),
                    .x_stride = stride,
                    .m = c.m,
                    .q_width = c.q_width,
                    .kv_begin = c.kv_gap > 0 ? kv_begin : 0,
                    .q_norm = device_q_norm.data(),
                    .kv_norm = device_kv_norm.data(),
                    .q_quantized = rows.view,
                    .positions = device_positions.data(),
                    .cos_sin = device_table.data(),
                    .slots = device_slots.data(),
                    .pool = other_pool.data(),
                    .layout = c.layout},
                   launch());
      std::vector<double> expected;
      for (int64_t i = 0; i < c.m; ++i) {
        const auto row = normed(&x[i * stride], q_norm, c.q_width, 1e-6F);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      expect_quantized(rows, expected, c.q_width);
      if (HasFatalFailure()) return;
    }
    const DeviceFp8 q_quantized(c.m, std::max<int64_t>(c.q_width, 1), 0, 2, c.m % 2 == 1);
    cuda::MlaPrologueParams params{.x = device_x.data(),
                                   .x_stride = stride,
                                   .m = c.m,
                                   .q_width = c.q_width,
                                   .kv_begin = c.kv_gap > 0 ? kv_begin : 0,
                                   .kv_norm = device_kv_norm.data(),
                                   .positions = device_positions.data(),
                                   .cos_sin = device_table.data(),
                                   .slots = device_slots.data(),
                                   .pool = pool.data(),
                                   .layout = c.layout};
    if (c.q_norm) params.q_norm = device_q_norm.data();
    if (c.bf16_out) params.q = q.data();
    if (c.fp8_out) params.q_quantized = q_quantized.view;
    mla_prologue(params, launch());

    if (c.q_norm) {
      std::vector<double> expected;
      for (int64_t i = 0; i < c.m; ++i) {
        const auto row = normed(&x[i * stride], q_norm, c.q_width, params.eps);
        expected.insert(expected.end(), row.begin(), row.end());
      }
      if (c.bf16_out) expect_rounded(q.download(), expected);
      if (c.fp8_out) expect_quantized(q_quantized, expected, c.q_width);
    }
    check_pool(c, pool.download(), x, stride, kv_norm, table, positions, slots, params.eps);
  }

  static std::vector<double> normed(const bf16* x, const std::vector<float>& weight, int64_t n, float eps) {
    double squares = 0.0;
    for (int64_t k = 0; k < n; ++k) squares += std::pow(static_cast<double>(to_float(x[k])), 2);
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(n) + static_cast<double>(eps));
    std::vector<double> y(n);
    for (int64_t k = 0; k < n; ++k)
      y[k] = static_cast<double>(to_float(x[k])) * factor * static_cast<double>(weight[k]);
    return y;
  }

  static void check_pool(const PrologueCase& c, const std::vector<std::byte>& pool,
                         const std::vector<bf16>& x, int64_t stride, const std::vector<float>& kv_norm,
                         const std::vector<float>& table, const std::vector<int32_t>& positions,
                         const std::vector<int64_t>& slots, float eps) {
    const int row_bytes = c.layout.row_bytes();
    std::vector<bool> written(pool.size() / row_bytes, false);
    int64_t off_by_one = 0;
    for (int64_t i = 0; i < c.m; ++i) {
      if (slots[i] < 0) continue;
      written[slots[i]] = true;
      const bf16* row = &x[i * stride + c.q_width + c.kv_gap];
      const auto exact = normed(row, kv_norm, 512, eps);
      const std::vector<float> latent(exact.begin(), exact.end());
      std::vector<float> rope(64);
      for (int pair = 0; pair < 32; ++pair) {
        const float a = to_float(row[512 + 2 * pair]);
        const float b = to_float(row[512 + 2 * pair + 1]);
        const float cosine = table[positions[i] * 64 + pair];
        const float sine = table[positions[i] * 64 + 32 + pair];
        rope[2 * pair] = a * cosine - b * sine;
        rope[2 * pair + 1] = b * cosine + a * sine;
      }
      std::vector<std::byte> record(row_bytes);
      cpu::reference::write_record(latent.data(), rope.data(), c.layout, record.data());
      const std::byte* got = &pool[slots[i] * row_bytes];
      const int latent_bytes = c.layout.format == KvFormat::kBF16 ? 1024 : 512;
      ASSERT_EQ(std::memcmp(got + rope_offset(c.layout), record.data() + rope_offset(c.layout),
                            row_bytes - rope_offset(c.layout)),
                0)
          << "k_pe of row " << i;
      for (int k = 0; k < 512; ++k) {
        int difference = 0;
        if (latent_bytes == 1024) {
          uint16_t a = 0;
          uint16_t b = 0;
          std::memcpy(&a, got + 2 * k, 2);
          std::memcpy(&b, record.data() + 2 * k, 2);
          difference = std::abs(ordinal(a) - ordinal(b));
        } else {
          difference =
              std::abs(ordinal(static_cast<uint8_t>(got[k])) - ordinal(static_cast<uint8_t>(record[k])));
        }
        ASSERT_LE(difference, 1) << "latent " << k << " of row " << i;
        off_by_one += difference;
      }
      for (int g = 0; c.layout.format == KvFormat::kFp8E4M3 && g < 4; ++g) {
        float a = 0.0F;
        float b = 0.0F;
        std::memcpy(&a, got + 512 + 4 * g, 4);
        std::memcpy(&b, record.data() + 512 + 4 * g, 4);
        ASSERT_NEAR(a / b, 1.0F, 1e-6F) << "scale " << g << " of row " << i;
      }
    }
    EXPECT_LE(off_by_one, 2 + c.m * 512 / 300);
    for (size_t slot = 0; slot < written.size(); ++slot) {
      for (int b = 0; !written[slot] && b < row_bytes; ++b) {
        ASSERT_EQ(pool[slot * row_bytes + b], std::byte{0xff}) << "slot " << slot << " was written";
      }
    }
  }

  static int rope_offset(const KvLayout& layout) {
    switch (layout.format) {
      case KvFormat::kBF16:
        return 1024;
      case KvFormat::kFp8E4M3:
        return kKvFp8RopeOffset;
      default:
        return 512;
    }
  }
};

TEST_P(MlaPrologue, MatchesTheCpuRecord) {
  for (const KvLayout layout :
       {KvLayout{KvFormat::kBF16}, KvLayout{KvFormat::kFp8E4M3, KvScales::kPerToken},
        KvLayout{KvFormat::kFp8E4M3, KvScales::kPer128}, KvLayout{KvFormat::kFp8E5M2}}) {
    for (const PrologueCase& c : {
             PrologueCase{1, 3072, false, false, false, layout},  // V2-Lite
             PrologueCase{70, 3072, false, false, false, layout},
             PrologueCase{7, 64, false, false, false, layout, 64},
             PrologueCase{5, 0, false, false, false, layout},
             PrologueCase{1, 1536, true, true, true, layout},  // V3
             PrologueCase{67, 1536, true, false, true, layout},
             PrologueCase{300, 1536, true, true, false, layout},
             PrologueCase{6, 200, true, true, true, layout, 56},  // a ragged group
             PrologueCase{3, 7936, true, true, true, layout},     // the widest tuned
             PrologueCase{3, 8064, true, true, true, layout},
             PrologueCase{9, 75, true, true, true, layout},  // no 16-byte access
         }) {
      check(c);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(MlaPrologue, SmallRowsForSanitizersMatchTheCpuRecord) {
  for (const KvLayout layout :
       {KvLayout{KvFormat::kBF16}, KvLayout{KvFormat::kFp8E4M3, KvScales::kPerToken},
        KvLayout{KvFormat::kFp8E4M3, KvScales::kPer128}, KvLayout{KvFormat::kFp8E5M2}}) {
    check({5, 64, false, false, false, layout});
    check({3, 200, true, true, true, layout, 56});
  }
}

TEST_P(MlaPrologue, RefusesFormatsOfTheCpu) {
  cuda::MlaPrologueParams params{.x_stride = 576, .layout = {KvFormat::kF32}};
  EXPECT_THROW(mla_prologue(params, launch()), Error);
}

INSTANTIATE_TEST_SUITE_P(Kernels, MlaPrologue, ::testing::Values(false, true), kernel_name);

}  // namespace
}  // namespace hadal::testing
