// Compares the conversions of weights on the device with the CPU's, bit for bit.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/weights/weights.h"
#include "model/quantize.h"
#include "model/random_weights.h"
#include "tests/cuda/device_array.h"

namespace hadal::cuda {
namespace {

using testing::DeviceArray;
using testing::test_stream;

Launch test_launch() {
  return {.stream = test_stream().handle(), .pdl = false};
}

const std::array<std::pair<DType, StoredType>, 3> kFloatTypes = {
    {{DType::kF32, StoredType::kF32}, {DType::kF16, StoredType::kF16}, {DType::kBF16, StoredType::kBF16}}};

// Returns random bits of a type: every exponent, subnormals, and unless `finite` also infinities and NaN.
std::vector<std::byte> random_values(DType dtype, int64_t count, uint64_t seed, bool finite) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(static_cast<size_t>(count * dtype_bytes(dtype)));
  for (int64_t i = 0; i < count; ++i) {
    auto bits = static_cast<uint32_t>(random());
    if (dtype == DType::kF32) {
      if (finite && (bits >> 23 & 0xffU) > 0xf0U) bits &= ~(0x80U << 23);
    } else if (dtype == DType::kBF16) {
      if (finite && (bits >> 7 & 0xffU) > 0xf0U) bits &= ~(0x80U << 7);
    } else if (finite && (bits >> 10 & 0x1fU) == 0x1fU) {
      bits &= ~(0x10U << 10);
    }
    const auto size = static_cast<size_t>(dtype_bytes(dtype));
    std::memcpy(bytes.data() + static_cast<size_t>(i) * size, &bits, size);
  }
  return bytes;
}

TEST(ConvertWeight, GivesTheBitsOfTheHost) {
  for (const auto& [dtype, type] : kFloatTypes) {
    for (const auto& [rows, cols, src_stride, dst_stride] :
         {std::array<int64_t, 4>{3, 5000, 5000, 5000}, {70, 129, 131, 256}, {1, 1, 1, 1}}) {
      const auto values = random_values(dtype, rows * src_stride, 11, false);
      const DeviceArray<std::byte> src(values);
      for (const DType target : {DType::kF32, DType::kBF16, DType::kF16}) {
        const int64_t size = dtype_bytes(target);
        const DeviceArray<std::byte> dst(static_cast<size_t>(rows * dst_stride * size));
        convert_weight({.src = src.data(),
                        .src_type = type,
                        .src_stride = src_stride,
                        .dst = dst.data(),
                        .dst_type = target == DType::kF32    ? StoredType::kF32
                                    : target == DType::kBF16 ? StoredType::kBF16
                                                             : StoredType::kF16,
                        .dst_stride = dst_stride,
                        .rows = rows,
                        .cols = cols},
                       test_launch());
        std::vector<std::byte> expected(dst.size(), std::byte{0xff});
        for (int64_t i = 0; i < rows; ++i) {
          const std::byte* from = values.data() + i * src_stride * dtype_bytes(dtype);
          std::byte* to = expected.data() + i * dst_stride * size;
          if (target == DType::kF32) {
            widen_to_f32(dtype, from, cols, reinterpret_cast<float*>(to));
          } else if (target == DType::kBF16) {
            round_to_bf16(dtype, from, cols, reinterpret_cast<bf16*>(to));
          } else {
            std::vector<float> wide(static_cast<size_t>(cols));
            widen_to_f32(dtype, from, cols, wide.data());
            for (int64_t j = 0; j < cols; ++j)
              reinterpret_cast<f16*>(to)[j] = to_f16(wide[static_cast<size_t>(j)]);
          }
        }
        const auto got = dst.download();
        int64_t wrong = 0;
        for (size_t i = 0; i < got.size(); i += static_cast<size_t>(size)) {
          if (std::memcmp(&got[i], &expected[i], static_cast<size_t>(size)) == 0) continue;
          if (target == DType::kF16) {
            f16 halves[2];
            std::memcpy(&halves[0], &got[i], 2);
            std::memcpy(&halves[1], &expected[i], 2);
            if (std::isnan(to_float(halves[0])) && std::isnan(to_float(halves[1]))) continue;
          }
          float a = 0.0F;
          float b = 0.0F;
          std::memcpy(reinterpret_cast<std::byte*>(&a) + 4 - size, &got[i], static_cast<size_t>(size));
          std::memcpy(reinterpret_cast<std::byte*>(&b) + 4 - size, &expected[i], static_cast<size_t>(size));
          if (std::isnan(a) && std::isnan(b)) continue;  // the payload of a NaN depends on the hardware
          if (wrong++ == 0) ADD_FAILURE() << "first wrong element " << i / static_cast<size_t>(size);
        }
        EXPECT_EQ(wrong, 0) << to_string(dtype) << " to " << to_string(target) << " " << rows << "x" << cols;
      }
    }
  }
}

TEST(QuantizeWeight, GivesTheCodesAndScalesOfTheHost) {
  for (const auto& [dtype, type] : kFloatTypes) {
    for (const auto& [rows, cols, src_stride, stride] : {std::array<int64_t, 4>{256, 384, 384, 384},
                                                         {130, 200, 203, 256},
                                                         {1, 1, 1, 128},
                                                         {127, 129, 129, 256}}) {
      const int64_t scale_cols = (cols + 127) / 128;
      auto values = random_values(dtype, rows * src_stride, 12, true);
      if (rows >= 256) {  // a block of zeros
        for (int64_t i = 0; i < 128; ++i) {
          std::memset(values.data() + i * src_stride * dtype_bytes(dtype), 0,
                      static_cast<size_t>(128 * dtype_bytes(dtype)));
        }
      }
      const DeviceArray<std::byte> src(values);
      const DeviceArray<fp8_e4m3> codes(static_cast<size_t>(rows * stride));
      const int64_t scale_rows = (rows + 127) / 128;
      const DeviceArray<float> scales(static_cast<size_t>(scale_rows * (scale_cols + 1)));
      quantize_weight({.src = src.data(),
                       .src_type = type,
                       .src_stride = src_stride,
                       .codes = codes.data(),
                       .stride = stride,
                       .scales = scales.data(),
                       .scale_stride = scale_cols + 1,
                       .rows = rows,
                       .cols = cols,
                       .code_rows = rows,
                       .code_cols = cols},
                      test_launch());
      const auto got = codes.download();
      const auto got_scales = scales.download();
      int64_t wrong = 0;
      for (int64_t strip = 0; strip < scale_rows; ++strip) {
        const int64_t num_rows = std::min<int64_t>(128, rows - strip * 128);
        std::vector<std::byte> dense;
        for (int64_t i = 0; i < num_rows; ++i) {
          const std::byte* row = values.data() + (strip * 128 + i) * src_stride * dtype_bytes(dtype);
          dense.insert(dense.end(), row, row + cols * dtype_bytes(dtype));
        }
        std::vector<fp8_e4m3> expected(static_cast<size_t>(num_rows * cols));
        std::vector<float> expected_scales(static_cast<size_t>(scale_cols));
        quantize_rows(WeightType::kFp8Block, dtype, dense.data(), num_rows, cols,
                      reinterpret_cast<std::byte*>(expected.data()), expected_scales.data());
        for (int64_t j = 0; j < scale_cols; ++j) {
          EXPECT_EQ(got_scales[static_cast<size_t>(strip * (scale_cols + 1) + j)],
                    expected_scales[static_cast<size_t>(j)]);
        }
        for (int64_t i = 0; i < num_rows; ++i) {
          for (int64_t j = 0; j < stride; ++j) {
            const uint8_t code = got[static_cast<size_t>((strip * 128 + i) * stride + j)].bits;
            const uint8_t want = j < cols ? expected[static_cast<size_t>(i * cols + j)].bits : 0xff;
            if (code != want && wrong++ == 0) {
              ADD_FAILURE() << "row " << strip * 128 + i << " column " << j << ": " << int{code} << " for "
                            << int{want};
            }
          }
        }
      }
      EXPECT_EQ(wrong, 0) << to_string(dtype) << " " << rows << "x" << cols;
    }
  }
}

// INT8 and scales per row have the host's bits, INT8 even where values are infinite or NaN.
TEST(QuantizeWeight, GivesTheBitsOfTheHostForOtherTypes) {
  for (const WeightType weight :
       {WeightType::kInt8Block, WeightType::kFp8Channel, WeightType::kInt8Channel}) {
    for (const auto& [dtype, type] : kFloatTypes) {
      for (const bool finite : {true, false}) {
        if (!finite && weight == WeightType::kFp8Channel) continue;
        const int64_t rows = 130;
        const int64_t cols = 200;
        const int64_t stride = 256;
        const bool blocks = is_block_scaled(weight);
        const int64_t scale_cols = blocks ? 2 : 1;
        const auto values = random_values(dtype, rows * cols, 31, finite);
        const DeviceArray<std::byte> src(values);
        const DeviceArray<fp8_e4m3> codes(static_cast<size_t>(rows * stride));
        const DeviceArray<float> scales(static_cast<size_t>(rows * scale_cols));
        quantize_weight({.type = weight,
                         .src = src.data(),
                         .src_type = type,
                         .src_stride = cols,
                         .codes = codes.data(),
                         .stride = stride,
                         .scales = scales.data(),
                         .scale_stride = blocks ? scale_cols : 0,
                         .rows = rows,
                         .cols = cols,
                         .code_rows = rows,
                         .code_cols = cols},
                        test_launch());
        const auto got = codes.download();
        const auto got_scales = scales.download();
        int64_t wrong = 0;
        for (int64_t row = 0; row < rows; row += 128) {
          const int64_t num_rows = std::min<int64_t>(128, rows - row);
          std::vector<std::byte> expected(static_cast<size_t>(num_rows * cols));
          std::vector<float> expected_scales(static_cast<size_t>(blocks ? scale_cols : num_rows));
          quantize_rows(weight, dtype, values.data() + row * cols * dtype_bytes(dtype), num_rows, cols,
                        expected.data(), expected_scales.data());
          for (size_t i = 0; i < expected_scales.size(); ++i) {
            const float scale = got_scales[static_cast<size_t>(blocks ? row / 128 * scale_cols : row) + i];
            EXPECT_TRUE(scale == expected_scales[i] ||
                        (scale != scale && expected_scales[i] != expected_scales[i]))
                << "scale " << i << " of rows from " << row << ": " << scale << " for " << expected_scales[i];
          }
          for (int64_t i = 0; i < num_rows * cols; ++i) {
            const float scale = expected_scales[static_cast<size_t>(blocks ? i % cols / 128 : i / cols)];
            if (!std::isfinite(scale)) continue;  // every value with this scale is NaN, whatever its code
            wrong += got[static_cast<size_t>((row + i / cols) * stride + i % cols)].bits !=
                     static_cast<uint8_t>(expected[static_cast<size_t>(i)]);
          }
        }
        EXPECT_EQ(wrong, 0) << to_string(dtype) << " to type " << static_cast<int>(weight);
      }
    }
  }
}

// A rank's window of a matrix has the codes and scales of the whole, and memory beside it is left alone.
TEST(QuantizeWeight, WritesOnlyTheCodesOfAWindowWithTheScalesOfAll) {
  constexpr int64_t kRows = 256, kCols = 384, kStride = 384;
  const auto values = random_values(DType::kBF16, kRows * kCols, 77, true);
  const DeviceArray<std::byte> src(values);
  const auto quantised = [&](WeightType weight, int64_t code_rows, int64_t first_col, int64_t code_cols) {
    const DeviceArray<fp8_e4m3> codes(static_cast<size_t>(kRows * kStride));
    const DeviceArray<float> scales(static_cast<size_t>(kRows));
    quantize_weight({.type = weight,
                     .src = src.data(),
                     .src_type = StoredType::kBF16,
                     .src_stride = kCols,
                     .codes = codes.data(),
                     .stride = kStride,
                     .scales = scales.data(),
                     .scale_stride = is_block_scaled(weight) ? 3 : 0,
                     .rows = kRows,
                     .cols = kCols,
                     .code_rows = code_rows,
                     .first_code_col = first_col,
                     .code_cols = code_cols},
                    test_launch());
    return std::pair(codes.download(), scales.download());
  };
  for (const WeightType weight :
       {WeightType::kFp8Block, WeightType::kInt8Block, WeightType::kFp8Channel, WeightType::kInt8Channel}) {
    const bool blocks = is_block_scaled(weight);
    const int64_t code_rows = blocks ? 192 : kRows;
    const int64_t first_col = blocks ? 0 : 100;
    const int64_t code_cols = blocks ? kCols : 72;
    const auto [all, all_scales] = quantised(weight, kRows, 0, kCols);
    const auto [window, window_scales] = quantised(weight, code_rows, first_col, code_cols);
    const int64_t num_scales = blocks ? 6 : kRows;
    for (int64_t i = 0; i < num_scales; ++i)
      EXPECT_EQ(window_scales[static_cast<size_t>(i)], all_scales[static_cast<size_t>(i)]);
    int64_t wrong = 0;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t col = 0; col < kStride; ++col) {
        const bool written = row < code_rows && col < code_cols;
        const uint8_t want =
            written ? all[static_cast<size_t>(row * kStride + first_col + col)].bits : uint8_t{0xff};
        wrong += window[static_cast<size_t>(row * kStride + col)].bits != want;
      }
    }
    EXPECT_EQ(wrong, 0) << static_cast<int>(weight);
  }
}

template <typename T>
void expect_transposed(StoredType type, int heads, int64_t stride) {
  std::mt19937_64 random(13);
  std::vector<T> kv_b(static_cast<size_t>(heads * 256 * stride));
  for (T& value : kv_b) value = static_cast<T>(random());
  std::vector<float> kv_b_scales(static_cast<size_t>(heads * 2 * 4));
  for (float& value : kv_b_scales) value = static_cast<float>(random() % 1000);
  const DeviceArray<T> src(kv_b);
  const DeviceArray<float> src_scales(kv_b_scales);
  const DeviceArray<T> w_uk(static_cast<size_t>(heads * 512 * 128));
  const DeviceArray<float> scales(static_cast<size_t>(heads * 4));
  const bool fp8 = type == StoredType::kE4M3;
  transpose_keys({.kv_b = src.data(),
                  .type = type,
                  .stride = stride,
                  .w_uk = w_uk.data(),
                  .kv_b_scales = fp8 ? src_scales.data() : nullptr,
                  .scale_stride = 4,
                  .w_uk_scales = fp8 ? scales.data() : nullptr,
                  .num_heads = heads},
                 test_launch());
  const auto got = w_uk.download();
  int64_t wrong = 0;
  for (int64_t row = 0; row < heads * 512; ++row) {
    for (int64_t d = 0; d < 128; ++d) {
      wrong += got[static_cast<size_t>(row * 128 + d)] !=
               kv_b[static_cast<size_t>((row / 512 * 256 + d) * stride + row % 512)];
    }
  }
  EXPECT_EQ(wrong, 0) << heads << " heads";
  if (!fp8) return;
  const auto got_scales = scales.download();
  for (int i = 0; i < heads * 4; ++i) {
    EXPECT_EQ(got_scales[static_cast<size_t>(i)], kv_b_scales[static_cast<size_t>(i / 4 * 8 + i % 4)]);
  }
}

TEST(TransposeKeys, MovesEveryElement) {
  expect_transposed<uint16_t>(StoredType::kBF16, 1, 512);
  expect_transposed<uint16_t>(StoredType::kBF16, 5, 520);
  expect_transposed<uint8_t>(StoredType::kE4M3, 3, 512);
}

struct RandomCase {
  const char* name;
  std::vector<int64_t> shape;
  DType dtype;
  StoredType type;
  bool ue8m0 = false;
};

TEST(RandomWeight, GivesTheElementsOfTheHostsGenerator) {
  const std::vector<RandomCase> cases = {
      {"model.layers.0.mlp.up_proj.weight", {70, 4099}, DType::kBF16, StoredType::kBF16},
      {"model.layers.0.mlp.down_proj.weight", {33, 64}, DType::kF16, StoredType::kF16},
      {"model.layers.0.input_layernorm.weight", {1, 5001}, DType::kF32, StoredType::kF32},
      {"model.layers.2.self_attn.o_proj.weight", {129, 2049}, DType::kF8E4M3, StoredType::kE4M3},
      {"model.layers.2.self_attn.o_proj.weight", {129, 2049}, DType::kI8, StoredType::kI8},
      {"model.layers.2.self_attn.o_proj.weight_scale_inv", {2, 17}, DType::kF32, StoredType::kF32},
      {"model.layers.2.self_attn.o_proj.weight_scale_inv", {9, 57}, DType::kF32, StoredType::kF32, true},
  };
  for (const RandomCase& test : cases) {
    RandomWeightOptions options;
    options.seed = 99;
    options.num_hidden_layers = 4;
    options.ue8m0_scales = test.ue8m0;
    const RandomTensor tensor = RandomTensor::make(test.name, test.shape, test.dtype, options).value();
    const RandomTensor::Recipe& recipe = tensor.recipe();
    const int64_t size = dtype_bytes(test.dtype);
    const int64_t src_cols = test.shape[1];
    // The cases are the whole tensor, and a window that starts and ends inside the generator's words, at an
    // odd address.
    for (const auto& [row, col, rows, cols, stride] :
         {std::array<int64_t, 5>{0, 0, test.shape[0], src_cols, src_cols},
          {test.shape[0] - 1, 3, 1, src_cols - 7, src_cols},
          {0, 1, test.shape[0], src_cols - 5, src_cols + 3}}) {
      const DeviceArray<std::byte> dst(static_cast<size_t>(rows * stride * size));
      random_weight({.kind = recipe.kind == RandomTensor::Kind::kReal         ? RandomKind::kReal
                             : recipe.kind == RandomTensor::Kind::kPowerOfTwo ? RandomKind::kPowerOfTwo
                             : recipe.kind == RandomTensor::Kind::kInt8Codes  ? RandomKind::kInt8Codes
                                                                              : RandomKind::kFp8Codes,
                     .type = test.type,
                     .key_low = recipe.key_low,
                     .key_high = recipe.key_high,
                     .offset = recipe.offset,
                     .scale = recipe.scale,
                     .upper_threshold = recipe.upper_threshold,
                     .first = row * src_cols + col,
                     .src_cols = src_cols,
                     .dst = dst.data(),
                     .dst_stride = stride,
                     .rows = rows,
                     .cols = cols},
                    test_launch());
      std::vector<std::byte> expected(dst.size(), std::byte{0xff});
      for (int64_t i = 0; i < rows; ++i) {
        tensor.fill((row + i) * src_cols + col, cols, expected.data() + i * stride * size);
      }
      const auto got = dst.download();
      const auto mismatch = std::mismatch(got.begin(), got.end(), expected.begin());
      EXPECT_EQ(mismatch.first - got.begin(), static_cast<int64_t>(got.size()))
          << test.name << " " << to_string(test.dtype) << " from " << row << "," << col;
    }
  }
}

}  // namespace
}  // namespace hadal::cuda
