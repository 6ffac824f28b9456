// Compares the wgmma and TMA wrappers form by form, the tiled FP8 product and the library's bf16 product with
// sums on the host. Small integers make the first two exact, so a wrong index shows as a wrong value, not as
// noise.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/tiled/linear.h"
#include "kernels/cuda/gemm/tiled/supports.h"
#include "kernels/cuda/gemm/variants.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/gemm/wgmma_probe.h"
#include "tests/cuda/test_launch.h"

namespace hadal {
namespace {

using cuda::kQuantGroup;
using testing::DeviceArray;
using testing::test_launch;

// Holds the first difference of two arrays of rows, and the number of different elements.
struct Mismatch {
  size_t count = 0;
  std::string first;
};
Mismatch compare(const std::vector<float>& out, const std::vector<float>& ref, size_t width) {
  Mismatch result;
  for (size_t i = 0; i < ref.size(); ++i) {
    if (out[i] == ref[i]) continue;
    if (++result.count <= 4)
      result.first += fmt::format(" [{}, {}] is {}, not {};", i / width, i % width, out[i], ref[i]);
  }
  return result;
}

struct ProbeCase {
  cuda::WgmmaForm form;
  const char* name;
  bool is_bf16, a_mn, b_mn;
};
constexpr ProbeCase kProbes[] = {
    {cuda::WgmmaForm::kBf16, "Bf16", true, false, false},
    {cuda::WgmmaForm::kBf16BMnMajor, "Bf16BMnMajor", true, false, true},
    {cuda::WgmmaForm::kBf16AMnMajor, "Bf16AMnMajor", true, true, false},
    {cuda::WgmmaForm::kBf16BothMnMajor, "Bf16BothMnMajor", true, true, true},
    {cuda::WgmmaForm::kBf16Registers, "Bf16Registers", true, false, false},
    {cuda::WgmmaForm::kBf16RegistersBMnMajor, "Bf16RegistersBMnMajor", true, false, true},
    {cuda::WgmmaForm::kE4m3, "E4m3", false, false, false},
    {cuda::WgmmaForm::kE4m3Registers, "E4m3Registers", false, false, false},
};

// Returns the bytes of `values` [rows, depth] as T, transposed where MN-major.
template <typename T, typename Convert>
DeviceArray<uint8_t> laid_out(const std::vector<int>& values, int rows, int depth, bool mn_major,
                              Convert convert) {
  std::vector<T> out(values.size());
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < depth; ++k)
      out[mn_major ? k * rows + r : r * depth + k] = convert(static_cast<float>(values[r * depth + k]));
  const auto* bytes = reinterpret_cast<const uint8_t*>(out.data());
  return DeviceArray<uint8_t>(std::vector<uint8_t>(bytes, bytes + out.size() * sizeof(T)));
}

class WgmmaForms : public ::testing::TestWithParam<ProbeCase> {};

TEST_P(WgmmaForms, GiveTheExactSumsOfSmallIntegers) {
  const ProbeCase& probe = GetParam();
  for (const int n : {8, 64, 96, 128, 192, 256}) {
    if (probe.b_mn && n % 64 != 0) continue;
    const uint64_t seed = std::random_device{}();
    SCOPED_TRACE(fmt::format("n {}, seed {}", n, seed));
    std::mt19937_64 random(seed);
    std::uniform_int_distribution<int> small(-3, 3);
    const int depth = probe.is_bf16 ? cuda::kProbeDepthBf16 : cuda::kProbeDepthE4m3;
    std::vector<int> a(cuda::kProbeRows * depth);
    std::vector<int> b(n * depth);
    for (int& v : a) v = small(random);
    for (int& v : b) v = small(random);
    std::vector<float> ref(cuda::kProbeRows * n);
    for (int r = 0; r < cuda::kProbeRows; ++r) {
      for (int c = 0; c < n; ++c) {
        int sum = 0;
        for (int k = 0; k < depth; ++k) sum += a[r * depth + k] * b[c * depth + k];
        ref[r * n + c] = static_cast<float>(sum);
      }
    }
    const auto upload = [&](const std::vector<int>& values, int rows, bool mn_major) {
      return probe.is_bf16
                 ? laid_out<bf16>(values, rows, depth, mn_major, [](float v) { return to_bf16(v); })
                 : laid_out<fp8_e4m3>(values, rows, depth, mn_major, [](float v) { return to_fp8_e4m3(v); });
    };
    const DeviceArray<uint8_t> a_device = upload(a, cuda::kProbeRows, probe.a_mn);
    const DeviceArray<uint8_t> b_device = upload(b, n, probe.b_mn);
    const DeviceArray<float> d(ref.size());
    const DeviceArray<bf16> d_bf16(ref.size());
    cuda::WgmmaProbeParams params;
    params.form = probe.form;
    params.n = n;
    params.a = a_device.data();
    params.b = b_device.data();
    params.d = d.data();
    params.d_bf16 = n % 64 == 0 ? d_bf16.data() : nullptr;
    cuda::wgmma_probe(params, test_launch());
    const Mismatch sums = compare(d.download(), ref, n);
    EXPECT_EQ(sums.count, 0U) << sums.first;
    if (n % 64 != 0) continue;
    std::vector<float> rounded(ref.size());
    for (size_t i = 0; i < ref.size(); ++i) rounded[i] = to_float(to_bf16(ref[i]));
    const Mismatch tiles = compare(testing::widened<bf16>(d_bf16.download()), rounded, n);
    EXPECT_EQ(tiles.count, 0U) << "through stmatrix and a tensor store:" << tiles.first;
  }
}

INSTANTIATE_TEST_SUITE_P(Wgmma, WgmmaForms, ::testing::ValuesIn(kProbes),
                         [](const auto& instance) { return instance.param.name; });

struct Shape {
  int64_t m, n, k;
};

// Holds the operands of an FP8 product on host and device. With `exact`, codes are in −2…2 and scales are
// powers of two, so that every sum is exact in float32; otherwise any codes occur.
struct Fp8Case {
  int64_t m, n, k, width, groups, y_stride, scale_stride, w_scale_stride;
  std::vector<fp8_e4m3> x, w;
  std::vector<float> x_values, w_values, x_scales, w_scales;

  Fp8Case(const Shape& s, bool exact, uint64_t seed) : m(s.m), n(s.n), k(s.k) {
    width = cuda::round_up(k, kQuantGroup);
    groups = width / kQuantGroup;
    y_stride = n + 8;
    scale_stride = cuda::round_up(m, 4) + 4;
    w_scale_stride = groups + 1;
    std::mt19937_64 random(seed);
    // Returns any code except the two of NaN, or −2…2.
    const auto code = [&] {
      const auto bits = static_cast<uint8_t>(random() >> 20);
      if (exact) return to_fp8_e4m3(static_cast<float>(bits % 5) - 2.0F);
      return fp8_e4m3{(bits & 0x7fU) == 0x7fU ? static_cast<uint8_t>(bits ^ 1U) : bits};
    };
    const auto fill = [&](std::vector<fp8_e4m3>& codes, std::vector<float>& values, int64_t rows) {
      codes.resize(rows * width);
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < k; ++j) codes[i * width + j] = code();
      for (const fp8_e4m3 c : codes) values.push_back(to_float(c));
    };
    fill(x, x_values, m);
    fill(w, w_values, n);
    std::uniform_int_distribution<int> exponent(-1, 1);
    std::uniform_real_distribution<float> spread(0.5F, 2.0F);
    const auto scale = [&] { return exact ? std::ldexp(1.0F, exponent(random)) : 1e-3F * spread(random); };
    x_scales.assign(groups * scale_stride, NAN);
    w_scales.assign((n + 127) / 128 * w_scale_stride, NAN);
    for (int64_t g = 0; g < groups; ++g) {
      for (int64_t i = 0; i < m; ++i) x_scales[g * scale_stride + i] = scale();
      for (int64_t i = 0; i < (n + 127) / 128; ++i) w_scales[i * w_scale_stride + g] = scale();
    }
  }

  double reference(int64_t row, int64_t column) const {
    double sum = 0.0;
    for (int64_t g = 0; g < groups; ++g) {
      double block = 0.0;
      for (int64_t j = g * kQuantGroup; j < (g + 1) * kQuantGroup; ++j)
        block += static_cast<double>(x_values[row * width + j]) *
                 static_cast<double>(w_values[column * width + j]);
      sum += block * static_cast<double>(x_scales[g * scale_stride + row]) *
             static_cast<double>(w_scales[column / 128 * w_scale_stride + g]);
    }
    return sum;
  }
};

// Holds the same on the device, for products in all tiles.
class Fp8Device {
 public:
  explicit Fp8Device(const Fp8Case& c)
      : x_(c.x), w_(c.w), x_scales_(c.x_scales), w_scales_(c.w_scales), y_(c.m * c.y_stride) {
    params_.x_quantized.codes = x_.data();
    params_.x_quantized.scales = x_scales_.data();
    params_.x_quantized.stride = c.width;
    params_.x_quantized.scale_stride = c.scale_stride;
    params_.w.data = w_.data();
    params_.w.type = WeightType::kFp8Block;
    params_.w.n = c.n;
    params_.w.k = c.k;
    params_.w.row_stride = c.width;
    params_.w.scales = w_scales_.data();
    params_.w.scale_stride = c.w_scale_stride;
    params_.y = y_.data();
    params_.y_stride = c.y_stride;
    params_.m = c.m;
  }

  // Runs twice into poisoned memory; the second run's bits must equal those of the first.
  std::vector<bf16> run(cuda::LinearTile tile) {
    EXPECT_TRUE(cuda::tiled::supports(cuda::linear_shape(params_)));
    const auto once = [&] {
      y_.poison();
      cuda::wgmma_linear_with(tile, params_, test_launch());
      return y_.download();
    };
    std::vector<bf16> first = once();
    const std::vector<bf16> second = once();
    EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(bf16)), 0)
        << "bits of a second run";
    return first;
  }

 private:
  DeviceArray<fp8_e4m3> x_, w_;
  DeviceArray<float> x_scales_, w_scales_;
  DeviceArray<bf16> y_;
  cuda::DenseLinearParams params_;
};

class WgmmaFp8Linear : public ::testing::TestWithParam<Shape> {};
class WgmmaFp8LinearLarge : public ::testing::TestWithParam<Shape> {};

// Compares a product in all of `tiles` with exact sums.
void expect_exact(const Shape& s, std::span<const cuda::LinearTile> tiles) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("m {}, n {}, k {}, seed {}", s.m, s.n, s.k, seed));
  const Fp8Case c(s, true, seed);
  Fp8Device device(c);
  // Large shapes check every seventh row: 7 and 64 have no common divisor, so each row of a tile is checked.
  const int64_t every = s.m * s.n * s.k > 300'000'000 ? 7 : 1;
  std::vector<float> ref;
  for (int64_t i = static_cast<int64_t>(seed) % every; i < c.m; i += every)
    for (int64_t j = 0; j < c.n; ++j) ref.push_back(to_float(to_bf16(static_cast<float>(c.reference(i, j)))));
  for (const cuda::LinearTile tile : tiles) {
    SCOPED_TRACE(fmt::format("tile {}", static_cast<int>(tile)));
    const std::vector<bf16> out = device.run(tile);
    std::vector<float> seen;
    size_t overwritten = 0;
    size_t unwritten = 0;
    for (int64_t i = 0; i < c.m; ++i) {
      const bool checked = i % every == static_cast<int64_t>(seed) % every;
      for (int64_t j = 0; j < c.n; ++j) {
        const bf16 value = out[i * c.y_stride + j];
        unwritten += value.bits == 0xffff ? 1 : 0;
        if (checked) seen.push_back(to_float(value));
      }
      for (int64_t j = c.n; j < c.y_stride; ++j)
        overwritten += out[i * c.y_stride + j].bits != 0xffff ? 1 : 0;
    }
    ASSERT_EQ(seen.size(), ref.size());
    const Mismatch mismatch = compare(seen, ref, c.n);
    EXPECT_EQ(mismatch.count, 0U) << mismatch.first;
    EXPECT_EQ(unwritten, 0U);
    EXPECT_EQ(overwritten, 0U) << "elements after the rows";
  }
}

TEST_P(WgmmaFp8Linear, IsExactOnSmallIntegers) {
  expect_exact(GetParam(), cuda::kLinearTiles);
}

// Tests each tile alone, with several tiles of rows and columns, the last ones ragged, and more steps than
// stages.
class WgmmaLinearTile : public ::testing::TestWithParam<cuda::LinearTile> {};
TEST_P(WgmmaLinearTile, IsExactOnSmallIntegers) {
  for (const Shape& s : {Shape{64, 64, 128}, Shape{128, 256, 256}, Shape{300, 576, 1160}})
    expect_exact(s, std::span(&GetParam(), 1));
}
INSTANTIATE_TEST_SUITE_P(Tiles, WgmmaLinearTile, ::testing::ValuesIn(cuda::kLinearTiles),
                         [](const auto& instance) {
                           return fmt::format("t{}", static_cast<int>(instance.param));
                         });

std::string shape_name(const ::testing::TestParamInfo<Shape>& info) {
  return fmt::format("m{}n{}k{}", info.param.m, info.param.n, info.param.k);
}
// The shapes have one tile, parts of tiles, more steps of k than any ring has stages, and more tiles than
// blocks (also with one step each).
INSTANTIATE_TEST_SUITE_P(Shapes, WgmmaFp8Linear,
                         ::testing::Values(Shape{128, 128, 128}, Shape{256, 256, 256}, Shape{256, 128, 1024},
                                           Shape{1, 8, 128}, Shape{129, 136, 384}, Shape{300, 576, 520},
                                           Shape{64, 1536, 256}, Shape{513, 264, 1920}, Shape{300, 2112, 256},
                                           Shape{1100, 4608, 128}, Shape{1030, 4400, 256}),
                         shape_name);

TEST_P(WgmmaFp8LinearLarge, MatchesDoubleSums) {
  const Shape& s = GetParam();
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("m {}, n {}, k {}, seed {}", s.m, s.n, s.k, seed));
  const Fp8Case c(s, false, seed);
  Fp8Device device(c);
  std::mt19937_64 random(seed + 1);
  std::vector<std::pair<int64_t, int64_t>> places;
  std::vector<float> ref;
  for (int i = 0; i < 3000; ++i) {
    places.emplace_back(random() % c.m, random() % c.n);
    ref.push_back(static_cast<float>(c.reference(places.back().first, places.back().second)));
  }
  for (const cuda::LinearTile tile : cuda::kLinearTiles) {
    SCOPED_TRACE(fmt::format("tile {}", static_cast<int>(tile)));
    const std::vector<bf16> out = device.run(tile);
    size_t unwritten = 0;
    for (int64_t i = 0; i < c.m; ++i)
      for (int64_t j = 0; j < c.n; ++j) unwritten += std::isnan(to_float(out[i * c.y_stride + j])) ? 1 : 0;
    EXPECT_EQ(unwritten, 0U);
    std::vector<float> seen;
    for (const auto& [row, column] : places) seen.push_back(to_float(out[row * c.y_stride + column]));
    EXPECT_LT(testing::relative_error(std::span<const float>(seen), std::span<const float>(ref)), 4e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, WgmmaFp8LinearLarge,
                         ::testing::Values(Shape{1300, 7168, 2048}, Shape{700, 2112, 7168},
                                           Shape{600, 24576, 1536}),
                         shape_name);

TEST(WgmmaTiles, FitTheirShapes) {
  EXPECT_EQ(cuda::choose_linear_tile(WeightType::kFp8Block, 4096, 7168, 16384, 132),
            cuda::LinearTile::k256x128);
  EXPECT_EQ(cuda::choose_linear_tile(WeightType::kFp8Block, 4096, 2112, 7168, 132),
            cuda::LinearTile::k128x192);  // 352 tiles, not 288 of twice
  EXPECT_EQ(cuda::choose_linear_tile(WeightType::kFp8Block, 512, 2112, 7168, 132),
            cuda::LinearTile::k128x64);  // 132 tiles for 132 processors
  EXPECT_EQ(cuda::choose_linear_tile(WeightType::kFp8Block, 128, 2112, 7168, 132),
            cuda::LinearTile::k128x64By2);  // 33
  EXPECT_EQ(cuda::choose_linear_tile(WeightType::kFp8Block, 128, 576, 7168, 132),
            cuda::LinearTile::k128x64By4);  // 9
}

TEST(CublasLtLinear, MatchesDoubleSumsInGraphsToo) {
  cuda::GemmLibrary library;
  for (const bool f32 : {false, true}) {
    for (const Shape& s :
         {Shape{1, 64, 64}, Shape{77, 576, 2048}, Shape{333, 2816, 512}, Shape{1030, 2048, 1408}}) {
      const uint64_t seed = std::random_device{}();
      SCOPED_TRACE(fmt::format("m {}, n {}, k {}, float32 {}, seed {}", s.m, s.n, s.k, f32, seed));
      const int64_t x_stride = s.k + 8;
      const int64_t y_stride = s.n + 8;
      const std::vector<bf16> x = testing::random_bf16(s.m * x_stride, seed);
      const std::vector<bf16> w = testing::random_bf16(s.n * s.k, seed + 1);
      const DeviceArray<bf16> x_device(x);
      const DeviceArray<bf16> w_device(w);
      DeviceArray<bf16> y(s.m * y_stride);
      DeviceArray<float> y_f32(s.m * y_stride);
      cuda::DenseLinearParams p;
      p.x = x_device.data();
      p.x_stride = x_stride;
      p.w.data = w_device.data();
      p.w.n = s.n;
      p.w.k = s.k;
      p.w.row_stride = s.k;
      p.y = f32 ? nullptr : y.data();
      p.y_f32 = f32 ? y_f32.data() : nullptr;
      p.y_stride = y_stride;
      p.m = s.m;
      cuda::cublaslt_linear(p, library, test_launch());
      const auto download = [&] { return f32 ? y_f32.download() : testing::widened<bf16>(y.download()); };
      const std::vector<float> out = download();
      std::mt19937_64 random(seed + 2);
      std::vector<float> seen;
      std::vector<float> ref;
      for (int i = 0; i < 2000; ++i) {
        const auto row = static_cast<int64_t>(random() % s.m);
        const auto column = static_cast<int64_t>(random() % s.n);
        double sum = 0.0;
        for (int64_t j = 0; j < s.k; ++j)
          sum += static_cast<double>(to_float(x[row * x_stride + j])) *
                 static_cast<double>(to_float(w[column * s.k + j]));
        seen.push_back(out[row * y_stride + column]);
        ref.push_back(static_cast<float>(sum));
      }
      EXPECT_LT(testing::relative_error(std::span<const float>(seen), std::span<const float>(ref)),
                f32 ? 1e-5 : 4e-3);
      y.poison();
      y_f32.poison();
      const CudaGraph graph = CudaGraph::capture(testing::test_stream(),
                                                 [&] { cuda::cublaslt_linear(p, library, test_launch()); });
      graph.launch(testing::test_stream().handle());
      const std::vector<float> replayed = download();
      EXPECT_EQ(std::memcmp(replayed.data(), out.data(), out.size() * sizeof(float)), 0)
          << "bits of the graph";
    }
  }
}

}  // namespace
}  // namespace hadal
