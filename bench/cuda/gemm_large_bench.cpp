// Measures the matrix products of prefill: FP8 and bf16 linears and grouped experts with 128 to 32768 rows,
// at the shapes of DeepSeek-V3 and V2-Lite. Each figure is the median over graphs of several calls whose
// inputs are rotated past the L2. "peer" is DeepGEMM (FP8) and the library's best (bf16) on one H200, from
// docs/performance.md.
//
//   cuda_gemm_large_bench [quick | fit]
// `fit` prints instead the times of the tiled kernel's tiles that src/kernels/cuda/gemm/fitted.h holds,
// microseconds per block of 128 of k and per tile, from two rounds of tiles over all multiprocessors at two
// lengths of k.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/experts/variants.h"
#include "kernels/cuda/gemm/fitted.h"
#include "kernels/cuda/gemm/tiled/linear.h"
#include "kernels/cuda/gemm/variants.h"
#include "tensor/cuda.h"

namespace hadal {
namespace {

CudaStream& stream() {
  static CudaStream instance;
  return instance;
}

cuda::Launch launch() {
  cuda::Launch result;
  result.stream = stream().handle();
  result.num_sms = cuda_device_info(0).num_sms;
  return result;
}

enum class Fill { kBf16, kE4m3, kScales };

// Returns 4 MB of random values.
std::vector<uint8_t> random_pattern(Fill fill) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<uint8_t> pattern(size_t{4} << 20);
  if (fill == Fill::kE4m3) {
    for (uint8_t& code : pattern) code = to_fp8_e4m3(100.0F * normal(random)).bits;
  } else if (fill == Fill::kBf16) {
    auto* values = reinterpret_cast<bf16*>(pattern.data());
    for (size_t i = 0; i < pattern.size() / 2; ++i) values[i] = to_bf16(normal(random));
  } else {
    auto* values = reinterpret_cast<float*>(pattern.data());
    for (size_t i = 0; i < pattern.size() / 4; ++i)
      values[i] = 1e-3F * (1.5F + std::clamp(normal(random), -1.0F, 1.0F));
  }
  return pattern;
}

// Returns the pattern, repeated end to end.
DeviceBuffer random_buffer(size_t bytes, Fill fill) {
  static const std::vector<uint8_t> patterns[] = {random_pattern(Fill::kBf16), random_pattern(Fill::kE4m3),
                                                  random_pattern(Fill::kScales)};
  const std::vector<uint8_t>& pattern = patterns[static_cast<int>(fill)];
  const size_t first = std::min(bytes, pattern.size());
  DeviceBuffer buffer(std::max<size_t>(bytes, 1));
  copy_to_device(buffer.data(), pattern.data(), first, stream().handle());
  for (size_t done = first; done < bytes; done *= 2)
    copy_on_device(buffer.data() + done, buffer.data(), std::min(done, bytes - done), stream().handle());
  stream().synchronize();
  return buffer;
}

struct Operands {
  DeviceBuffer x, x_scales, w, w_scales, y;
};

struct Size {
  int64_t m, n, k;
  int experts = 1;

  double flop() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  }
  size_t bytes(size_t element) const { return element * static_cast<size_t>(m * k + n * k * experts); }
};

Operands make(const Size& s, bool fp8) {
  const size_t element = fp8 ? 1 : 2;
  Operands o;
  o.x = random_buffer(element * s.m * s.k, fp8 ? Fill::kE4m3 : Fill::kBf16);
  o.w = random_buffer(element * s.n * s.k * s.experts, fp8 ? Fill::kE4m3 : Fill::kBf16);
  o.y = DeviceBuffer(static_cast<size_t>(s.m * s.n) * 2);
  if (fp8) {
    o.x_scales = random_buffer(sizeof(float) * cuda::round_up(s.m, 4) * (s.k / 128), Fill::kScales);
    o.w_scales = random_buffer(sizeof(float) * ((s.n + 127) / 128) * (s.k / 128) * s.experts, Fill::kScales);
  }
  return o;
}

MatrixWeight weight(const Operands& o, const Size& s, bool fp8) {
  MatrixWeight w;
  w.data = o.w.data();
  w.type = fp8 ? WeightType::kFp8Block : WeightType::kBF16;
  w.n = s.n;
  w.k = s.k;
  w.row_stride = s.k;
  w.scales = fp8 ? o.w_scales.as<float>() : nullptr;
  w.scale_stride = s.k / 128;
  return w;
}

cuda::QuantizedRows fp8_rows(const Operands& o, const Size& s) {
  cuda::QuantizedRows rows;
  rows.codes = o.x.as<fp8_e4m3>();
  rows.scales = o.x_scales.as<float>();
  rows.stride = s.k;
  rows.scale_stride = cuda::round_up(s.m, 4);
  return rows;
}

int calls_for(const Size& s) {
  return std::clamp(static_cast<int>(2e13 / s.flop()), 2, 16);
}

void report(const char* what, const Size& s, double us, double peer_tflops) {
  fmt::print("{:<14} {:>7} {:>6} {:>6} {:>4} {:>9.1f} us {:>7.0f} TFLOP/s", what, s.m, s.n, s.k, s.experts,
             us, s.flop() / us * 1e-6);
  if (peer_tflops > 0.0) fmt::print("   peer {:>5.0f}", peer_tflops);
  fmt::print("\n");
  std::fflush(stdout);
}

void bench_linear(const Size& s, bool fp8, double peer_tflops, cuda::GemmLibrary& library) {
  const int sets = std::min(bench::num_rotating_sets(s.bytes(fp8 ? 1 : 2)), 4);
  std::vector<Operands> operands;
  for (int i = 0; i < sets; ++i) operands.push_back(make(s, fp8));
  const auto call = [&](int i) {
    const Operands& o = operands[i % sets];
    cuda::DenseLinearParams p;
    if (fp8) {
      p.x_quantized = fp8_rows(o, s);
    } else {
      p.x = o.x.as<bf16>();
      p.x_stride = s.k;
    }
    p.w = weight(o, s, fp8);
    p.y = o.y.as<bf16>();
    p.y_stride = s.n;
    p.m = s.m;
    if (fp8)
      cuda::wgmma_linear(p, launch());
    else
      cuda::cublaslt_linear(p, library, launch());
  };
  report(fp8 ? "fp8" : "bf16 library", s, bench::time_in_graph(stream(), call, calls_for(s)), peer_tflops);
}

// Rows are spread over the experts like balanced random routing; the `shared` experts at the end get all
// tokens.
void bench_grouped(const Size& s, int shared, int slots, bool fp8) {
  const int sets = std::min(bench::num_rotating_sets(s.bytes(fp8 ? 1 : 2)), 2);
  std::vector<Operands> operands;
  for (int i = 0; i < sets; ++i) operands.push_back(make(s, fp8));
  std::mt19937 random(2);
  const int64_t tokens = s.m / slots;
  std::vector<int32_t> counts(s.experts, 0);
  for (int e = 0; e < shared; ++e) counts[s.experts - 1 - e] = static_cast<int32_t>(tokens);
  for (int64_t i = 0; i < s.m - shared * tokens; ++i) ++counts[random() % (s.experts - shared)];
  std::vector<int32_t> offsets{0};
  for (const int32_t count : counts) offsets.push_back(offsets.back() + count);
  DeviceBuffer offsets_device(offsets.size() * 4);
  copy_to_device(offsets_device.data(), offsets.data(), offsets.size() * 4, stream().handle());
  stream().synchronize();
  const auto call = [&](int i) {
    const Operands& o = operands[i % sets];
    cuda::GroupedLinearParams p;
    if (fp8) {
      p.x_quantized = fp8_rows(o, s);
    } else {
      p.x = o.x.as<bf16>();
      p.x_stride = s.k;
    }
    p.expert_offsets = offsets_device.as<int32_t>();
    p.num_rows = s.m;
    p.num_experts = s.experts;
    p.w = weight(o, s, fp8);
    p.expert_stride = s.n * s.k;
    p.expert_scale_stride = (s.n + 127) / 128 * (s.k / 128);
    p.y = o.y.as<bf16>();
    const cuda::GroupedTile tile = cuda::choose_grouped_tile(cuda::grouped_shape(p, launch().num_sms));
    cuda::launch_grouped_linear(cuda::grouped_tile(tile), p, launch());
  };
  report(fp8 ? "fp8 experts" : "bf16 experts", s, bench::time_in_graph(stream(), call, calls_for(s)), 0.0);
}

// Returns microseconds of a product in a given tile.
double time_of_tile(WeightType type, cuda::LinearTile tile, const Size& s) {
  const int sets = std::min(bench::num_rotating_sets(s.bytes(1)), 4);
  std::vector<Operands> operands;
  for (int i = 0; i < sets; ++i) operands.push_back(make(s, true));
  DeviceBuffer channel_scales = random_buffer(static_cast<size_t>(std::max(s.m, s.n)) * 4, Fill::kScales);
  return bench::time_in_graph(
      stream(),
      [&](int i) {
        const Operands& o = operands[i % sets];
        cuda::DenseLinearParams p;
        p.x_quantized = fp8_rows(o, s);
        p.x_quantized.format = cuda::row_format_of(type);
        p.w = weight(o, s, true);
        p.w.type = type;
        if (is_channel_scaled(type)) p.x_quantized.scales = channel_scales.as<float>();
        if (is_channel_scaled(type)) p.w.scales = channel_scales.as<float>();
        p.y = o.y.as<bf16>();
        p.y_stride = s.n;
        p.m = s.m;
        cuda::wgmma_linear_with(tile, p, launch());
      },
      calls_for(s));
}

int fit() {
  constexpr int64_t kM = 1024, kShortK = 2048, kLongK = 8192;
  constexpr int kRounds = 2;
  for (const auto& [type, name] : {std::pair{WeightType::kFp8Block, "fp8 block"},
                                   {WeightType::kFp8Channel, "fp8 channel"},
                                   {WeightType::kInt8Block, "int8 block"},
                                   {WeightType::kInt8Channel, "int8 channel"}}) {
    for (const cuda::LinearTile tile : cuda::kLinearTiles) {
      const cuda::LinearTileSize& size = cuda::linear_tile_size(tile);
      int64_t at_once = launch().num_sms / (size.cluster * size.splits);
      if (size.splits > 2) at_once = at_once * cuda::fitted::kTenthsOfClustersOfFour / 10;
      const int64_t n = kRounds * at_once / (kM / size.block_m) * size.block_n * size.cluster;
      const double short_us = time_of_tile(type, tile, {kM, n, kShortK});
      const double long_us = time_of_tile(type, tile, {kM, n, kLongK});
      const auto steps = [&](int64_t k) { return static_cast<double>(k / 128 / size.splits); };
      const double step = (long_us - short_us) / kRounds / (steps(kLongK) - steps(kShortK));
      fmt::print("{:<13} {:<40} step {:.3f}  tile {:.2f}\n", name, to_string(choice_of(tile)), step,
                 short_us / kRounds - steps(kShortK) * step);
    }
  }
  return 0;
}

int run(bool quick) {
  cuda::GemmLibrary library;
  fmt::print("{:<14} {:>7} {:>6} {:>6} {:>4}\n", "", "m", "n", "k", "E");
  struct Shape {
    int64_t n, k;
    double peer_128, peer_4096;
  };
  for (const Shape& shape :
       {Shape{2112, 7168, 299, 1278}, Shape{24576, 1536, 562, 1298}, Shape{32768, 512, 381, 1054},
        Shape{7168, 16384, 642, 1436}, Shape{4096, 7168, 515, 1405}, Shape{7168, 2048, 338, 1290}}) {
    for (const int64_t m : {128, 512, 1024, 4096, 16384, 32768}) {
      if (quick && m != 512 && m != 4096) continue;
      bench_linear({m, shape.n, shape.k}, true,
                   m == 128    ? shape.peer_128
                   : m == 4096 ? shape.peer_4096
                               : 0,
                   library);
    }
  }
  for (const Shape& shape : {Shape{2816, 2048, 0, 774}, Shape{2048, 2048, 0, 751}, Shape{3648, 2048, 0, 0},
                             Shape{21888, 2048, 0, 0}, Shape{2048, 10944, 0, 0}, Shape{4096, 7168, 0, 800}}) {
    for (const int64_t m : {128, 1024, 4096, 32768}) {
      if (quick && m != 4096) continue;
      bench_linear({m, shape.n, shape.k}, false, m == 4096 ? shape.peer_4096 : 0, library);
    }
  }
  for (const int64_t tokens : {1024, 4096, 32768}) {
    if (quick && tokens == 1024) continue;
    for (const bool fp8 : {false, true}) {
      bench_grouped({tokens * 8, 2816, 2048, 66}, 2, 8, fp8);
      bench_grouped({tokens * 8, 2048, 1408, 66}, 2, 8, fp8);
    }
    bench_grouped({tokens * 9, 4096, 7168, 257}, 1, 9, true);
    bench_grouped({tokens * 9, 7168, 2048, 257}, 1, 9, true);
  }
  return 0;
}

}  // namespace
}  // namespace hadal

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "fit") == 0) return hadal::fit();
  return hadal::run(argc > 1 && std::strcmp(argv[1], "quick") == 0);
}
