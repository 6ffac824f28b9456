#include "model/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace hadal {
namespace {

// Holds the bytes of `values` at an odd address, so that every load is unaligned.
template <typename T>
class Misaligned {
 public:
  explicit Misaligned(const std::vector<T>& values) : bytes_(values.size() * sizeof(T) + 1) {
    if (!values.empty()) std::memcpy(bytes_.data() + 1, values.data(), values.size() * sizeof(T));
  }
  const std::byte* data() const { return bytes_.data() + 1; }

 private:
  std::vector<std::byte> bytes_;
};

uint32_t bits_of(float v) {
  return std::bit_cast<uint32_t>(v);
}

TEST(WidenToF32, EveryF16IsExact) {
  std::vector<f16> values;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) values.push_back({static_cast<uint16_t>(bits)});
  std::vector<float> widened(values.size());
  widen_to_f32(DType::kF16, Misaligned(values).data(), static_cast<int64_t>(values.size()), widened.data());
  for (size_t i = 0; i < values.size(); ++i) {
    const float expected = to_float(values[i]);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(widened[i])) << i;
    } else {
      ASSERT_EQ(bits_of(widened[i]), bits_of(expected)) << i;
    }
  }
}

TEST(WidenToF32, EveryBf16IsExact) {
  std::vector<bf16> values;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) values.push_back({static_cast<uint16_t>(bits)});
  std::vector<float> widened(values.size());
  widen_to_f32(DType::kBF16, Misaligned(values).data(), static_cast<int64_t>(values.size()), widened.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bits_of(widened[i]), static_cast<uint32_t>(i) << 16);
}

TEST(RoundToBf16, MatchesTheScalarDefinition) {
  std::mt19937 random(1);
  std::vector<float> values;
  for (int i = 0; i < 200'003; ++i) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  for (const float v : {0.0F, -0.0F, 1.00390625F, 1.01171875F, 3.4e38F, INFINITY, -INFINITY, NAN})
    values.push_back(v);
  std::vector<bf16> rounded(values.size());
  round_to_bf16(DType::kF32, Misaligned(values).data(), static_cast<int64_t>(values.size()), rounded.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(rounded[i].bits, to_bf16(values[i]).bits) << values[i];
}

TEST(RoundToBf16, F16IsRoundedFromItsExactFloat) {
  std::vector<f16> values;
  for (uint32_t bits = 0; bits < 0x7c00; ++bits) values.push_back({static_cast<uint16_t>(bits)});
  std::vector<bf16> rounded(values.size());
  round_to_bf16(DType::kF16, Misaligned(values).data(), static_cast<int64_t>(values.size()), rounded.data());
  for (size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(rounded[i].bits, to_bf16(to_float(values[i])).bits) << i;
}

TEST(Conversions, TailsStayInsideTheirRange) {
  for (int64_t count = 0; count <= 70; ++count) {
    std::vector<float> values(static_cast<size_t>(count), 1.5F);
    std::vector<float> widened(static_cast<size_t>(count) + 1, -7.0F);
    std::vector<bf16> rounded(static_cast<size_t>(count) + 1, bf16{0xabcd});
    const Misaligned source(values);
    widen_to_f32(DType::kF32, source.data(), count, widened.data());
    round_to_bf16(DType::kF32, source.data(), count, rounded.data());
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(widened[static_cast<size_t>(i)], 1.5F);
      ASSERT_EQ(rounded[static_cast<size_t>(i)].bits, to_bf16(1.5F).bits);
    }
    EXPECT_EQ(widened.back(), -7.0F);
    EXPECT_EQ(rounded.back().bits, 0xabcd);
  }
}

// Compares with the definition of quantize.h, element by element.
void expect_definition(const std::vector<float>& w, int64_t rows, int64_t k,
                       const std::vector<fp8_e4m3>& codes, const std::vector<float>& scales) {
  for (int64_t block = 0; block * 128 < k; ++block) {
    float amax = kMinBlockAmax;
    const int64_t end = std::min(k, block * 128 + 128);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = block * 128; c < end; ++c)
        amax = std::max(amax, std::fabs(w[static_cast<size_t>(r * k + c)]));
    }
    ASSERT_EQ(bits_of(scales[static_cast<size_t>(block)]), bits_of(amax / 448.0F));
    const float inverse = 448.0F / amax;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = block * 128; c < end; ++c) {
        const auto i = static_cast<size_t>(r * k + c);
        ASSERT_EQ(codes[i].bits, to_fp8_e4m3(w[i] * inverse).bits)
            << "row " << r << " column " << c << " of " << w[i];
      }
    }
  }
}

TEST(QuantizeFp8Strip, MatchesTheDefinitionOnRaggedBlocks) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  for (const auto& [rows, k] :
       {std::pair<int64_t, int64_t>{128, 256}, {64, 300}, {1, 1}, {3, 129}, {128, 127}}) {
    std::vector<float> w;
    for (int64_t i = 0; i < rows * k; ++i)
      w.push_back(normal(random) * std::exp2(static_cast<float>(random() % 24) - 20.0F));
    w[0] = -0.0F;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      std::vector<float> stored = w;
      std::vector<fp8_e4m3> codes(w.size() + 1, fp8_e4m3{0xee});
      std::vector<float> scales(static_cast<size_t>((k + 127) / 128) + 1, -5.0F);
      const auto quantize = [&](const std::byte* source) {
        quantize_rows(WeightType::kFp8Block, dtype, source, rows, k,
                      reinterpret_cast<std::byte*>(codes.data()), scales.data());
      };
      if (dtype == DType::kF32) {
        quantize(Misaligned(w).data());
      } else if (dtype == DType::kBF16) {
        std::vector<bf16> half;
        for (float& v : stored) v = to_float(half.emplace_back(to_bf16(v)));
        quantize(Misaligned(half).data());
      } else {
        std::vector<f16> half;
        for (float& v : stored) v = to_float(half.emplace_back(to_f16(v)));
        quantize(Misaligned(half).data());
      }
      expect_definition(stored, rows, k, codes, scales);
      EXPECT_EQ(codes.back().bits, 0xee);
      EXPECT_EQ(scales.back(), -5.0F);
    }
  }
}

TEST(QuantizeFp8Strip, EveryCodeQuantisesToItself) {
  // A block whose amax is 448 has scale 1, so each finite code's value must quantise to itself.
  std::vector<float> w;
  for (int code = 0; code < 256; ++code) {
    const float v = to_float(fp8_e4m3{static_cast<uint8_t>(code)});
    w.push_back(std::isnan(v) ? 448.0F : v);
  }
  std::vector<fp8_e4m3> codes(256);
  std::vector<float> scales(1);
  quantize_rows(WeightType::kFp8Block, DType::kF32, reinterpret_cast<const std::byte*>(w.data()), 2, 128,
                reinterpret_cast<std::byte*>(codes.data()), scales.data());
  EXPECT_EQ(scales[0], 1.0F);
  for (int code = 0; code < 256; ++code) {
    if ((code & 0x7f) == 0x7f) continue;  // NaN
    EXPECT_EQ(codes[static_cast<size_t>(code)].bits, code);
  }
}

TEST(QuantizeFp8Strip, ZeroBlocksAndTinyBlocksStayFinite) {
  std::vector<float> w(128 * 128, 0.0F);
  for (const float tiny : {0.0F, 1e-38F, -1e-45F}) {
    w[5] = tiny;
    std::vector<fp8_e4m3> codes(w.size());
    std::vector<float> scales(1);
    quantize_rows(WeightType::kFp8Block, DType::kF32, reinterpret_cast<const std::byte*>(w.data()), 128, 128,
                  reinterpret_cast<std::byte*>(codes.data()), scales.data());
    EXPECT_GT(scales[0], 0.0F);
    for (const fp8_e4m3 code : codes) ASSERT_EQ(to_float(code), 0.0F);
  }
}

TEST(QuantizeFp8Strip, ErrorIsWithinHalfAStepOfE4m3) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> w(128 * 128);
  for (float& v : w) v = normal(random);
  std::vector<fp8_e4m3> codes(w.size());
  std::vector<float> scales(1);
  quantize_rows(WeightType::kFp8Block, DType::kF32, reinterpret_cast<const std::byte*>(w.data()), 128, 128,
                reinterpret_cast<std::byte*>(codes.data()), scales.data());
  for (size_t i = 0; i < w.size(); ++i) {
    const float back = to_float(codes[i]) * scales[0];
    ASSERT_LE(std::fabs(back - w[i]), std::max(std::fabs(w[i]) / 16.0F * 1.001F, scales[0] * 0x1p-10F))
        << w[i];
  }
}

constexpr WeightType kTypes[] = {WeightType::kFp8Block, WeightType::kInt8Block, WeightType::kFp8Channel,
                                 WeightType::kInt8Channel};

struct Quantised {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<float> back;
};

template <typename T>
Quantised quantised(WeightType type, DType dtype, const std::vector<T>& w, int64_t rows, int64_t k) {
  Quantised q;
  q.codes.assign(w.size() + 1, std::byte{0xee});
  const auto num_scales = static_cast<size_t>(is_block_scaled(type) ? (k + 127) / 128 : rows);
  q.scales.assign(num_scales + 1, -5.0F);
  q.back.assign(w.size(), NAN);
  quantize_rows(type, dtype, Misaligned(w).data(), rows, k, q.codes.data(), q.scales.data());
  EXPECT_EQ(q.codes.back(), std::byte{0xee});
  EXPECT_EQ(q.scales.back(), -5.0F);
  dequantize_rows(type, q.codes.data(), rows, k, q.scales.data(), q.back.data());
  return q;
}

TEST(QuantizeRows, ErrorIsWithinHalfAStepOnRaggedShapesOfEveryType) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (const WeightType type : kTypes) {
    for (const auto& [rows, k] :
         {std::pair<int64_t, int64_t>{128, 256}, {64, 300}, {1, 1}, {3, 129}, {128, 127}, {5, 17}}) {
      std::vector<float> w;
      for (int64_t i = 0; i < rows * k; ++i)
        w.push_back(normal(random) * std::exp2(static_cast<float>(i % 9)));
      std::vector<bf16> half;
      std::vector<f16> other;
      for (const float v : w) half.push_back(to_bf16(v));
      for (const float v : w) other.push_back(to_f16(v));
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        const Quantised q = dtype == DType::kF32    ? quantised(type, dtype, w, rows, k)
                            : dtype == DType::kBF16 ? quantised(type, dtype, half, rows, k)
                                                    : quantised(type, dtype, other, rows, k);
        for (int64_t i = 0; i < rows * k; ++i) {
          const auto at = static_cast<size_t>(i);
          const float value = dtype == DType::kF32    ? w[at]
                              : dtype == DType::kBF16 ? to_float(half[at])
                                                      : to_float(other[at]);
          const float scale = q.scales[static_cast<size_t>(is_block_scaled(type) ? i % k / 128 : i / k)];
          const float step = is_int8(type) ? scale : std::max(std::fabs(value) / 8.0F, scale * 0x1p-9F);
          ASSERT_LE(std::fabs(q.back[at] - value), step * 0.501F) << "type " << int(type) << " at " << i;
        }
      }
    }
  }
}

TEST(QuantizeRows, Int8MatchesTheDefinition) {
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-3.0F, 3.0F);
  const int64_t rows = 7, k = 203;
  std::vector<float> w(static_cast<size_t>(rows * k));
  for (float& v : w) v = uniform(random);
  const Quantised q = quantised(WeightType::kInt8Channel, DType::kF32, w, rows, k);
  for (int64_t row = 0; row < rows; ++row) {
    float amax = kMinBlockAmax;
    for (int64_t i = row * k; i < (row + 1) * k; ++i)
      amax = std::max(amax, std::fabs(w[static_cast<size_t>(i)]));
    ASSERT_EQ(bits_of(q.scales[static_cast<size_t>(row)]), bits_of(amax / 127.0F));
    const float multiplier = 127.0F / amax;
    int largest = 0;
    for (int64_t i = row * k; i < (row + 1) * k; ++i) {
      const auto code = static_cast<int8_t>(q.codes[static_cast<size_t>(i)]);
      ASSERT_EQ(static_cast<float>(code), std::nearbyint(w[static_cast<size_t>(i)] * multiplier)) << i;
      largest = std::max(largest, std::abs(int{code}));
    }
    EXPECT_EQ(largest, 127);
  }
}

TEST(QuantizeRows, ZerosAndTinyValuesStayFinite) {
  for (const WeightType type : kTypes) {
    for (const float tiny : {0.0F, 1e-38F, -1e-45F}) {
      std::vector<float> w(4 * 160, 0.0F);
      w[5] = tiny;
      const Quantised q = quantised(type, DType::kF32, w, 4, 160);
      for (const float back : q.back) ASSERT_EQ(back, 0.0F);
      for (size_t i = 0; i + 1 < q.scales.size(); ++i) EXPECT_GT(q.scales[i], 0.0F);
    }
  }
}

TEST(QuantizeRows, ANaNMakesAllValuesOfItsInt8ScaleNaN) {
  for (const WeightType type : kTypes) {
    for (const float bad : {NAN, -INFINITY}) {
      std::vector<float> w(2 * 256, 1.5F);
      w[256 + 3] = bad;  // row 1, first block
      const Quantised q = quantised(type, DType::kF32, w, 2, 256);
      EXPECT_TRUE(std::isnan(q.back[256 + 3])) << int(type);
      const bool spreads = is_int8(type) || std::isinf(bad);
      EXPECT_EQ(std::isnan(q.back[256 + 4]), spreads) << int(type);
      EXPECT_EQ(std::isnan(q.back[4]), spreads && is_block_scaled(type)) << int(type);
      EXPECT_EQ(std::isnan(q.back[256 + 200]), spreads && !is_block_scaled(type)) << int(type);
      EXPECT_EQ(q.back[200], 1.5F);
    }
  }
}

TEST(QuantizeValues, TwoPassesGiveTheBitsOfOneRow) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  std::vector<float> w(1000);
  for (float& v : w) v = normal(random);
  for (const WeightType type : {WeightType::kFp8Channel, WeightType::kInt8Channel}) {
    const Quantised whole = quantised(type, DType::kF32, w, 1, 1000);
    const auto* bytes = reinterpret_cast<const std::byte*>(w.data());
    const float amax =
        std::max(max_abs(type, DType::kF32, bytes, 333), max_abs(type, DType::kF32, bytes + 333 * 4, 667));
    std::vector<std::byte> codes(1000);
    quantize_values(type, DType::kF32, bytes, 333, amax, codes.data());
    quantize_values(type, DType::kF32, bytes + 333 * 4, 667, amax, codes.data() + 333);
    EXPECT_EQ(scale_of(type, amax), whole.scales[0]);
    EXPECT_TRUE(std::equal(codes.begin(), codes.end(), whole.codes.begin()));
  }
}

}  // namespace
}  // namespace hadal
