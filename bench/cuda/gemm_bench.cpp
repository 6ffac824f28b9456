// Measures linear and the absorbed products at the shapes of DeepSeek-V2-Lite and DeepSeek-V3: microseconds
// per call in a graph with weights rotated past the L2, and the share of 4.3 TB/s, beside cuBLASLt (bf16) and
// published peers.
//
//   cuda_gemm_bench [--shapes v2,v3,head,router,absorbed] [--sweep] [--m 1,16,64]
// --sweep prints every schedule of the weight-streaming kernel instead.
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "bench/cuda/arguments.h"
#include "bench/cuda/device_fill.h"
#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/gemm/tiled/supports.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::bench {
namespace {

using namespace hadal::cuda;

constexpr double kBytesAMicrosecond = 4.3e6;
constexpr size_t kMostBytes = size_t{6} << 30;

struct Shape {
  const char* group;
  const char* name;
  int64_t n, k;
  WeightType type;
  bool f32_output;
  const char* peer;  // published or measured elsewhere, µs
};

constexpr Shape kShapes[] = {
    {"v2", "qkv_a", 3648, 2048, WeightType::kBF16, false, ""},
    {"v2", "o", 2048, 2048, WeightType::kBF16, false, "cuBLAS 7.4 m1, 7.5 m16, 7.7 m64, 8.3 m128"},
    {"v2", "dense gate_up", 22016, 2048, WeightType::kBF16, false, ""},
    {"v2", "dense down", 2048, 11008, WeightType::kBF16, false, ""},
    {"v2", "qkv_a", 3648, 2048, WeightType::kFp8Block, false, ""},
    {"v2", "o", 2048, 2048, WeightType::kFp8Block, false, "cuBLAS per tensor 6.0 m16, 6.1 m64, 6.6 m128"},
    {"v2", "dense gate_up", 22016, 2048, WeightType::kFp8Block, false, ""},
    {"v2", "dense down", 2048, 11008, WeightType::kFp8Block, false, ""},
    {"v3", "qkv_a", 2112, 7168, WeightType::kFp8Block, false, "DeepGEMM 15.7 m1, 12.2 m64, 13.0 m128"},
    {"v3", "q_b", 24576, 1536, WeightType::kFp8Block, false, "DeepGEMM 16.5 m1, 16.1 m64, 17.2 m128"},
    {"v3", "o", 7168, 16384, WeightType::kFp8Block, false, "DeepGEMM 39.5 m1, 38.9 m64, 46.8 m128"},
    {"v3", "dense gate_up", 36864, 7168, WeightType::kFp8Block, false, ""},
    {"v3", "dense down", 7168, 18432, WeightType::kFp8Block, false, ""},
    {"head", "V2-Lite head", 102400, 2048, WeightType::kBF16, true, ""},
    {"head", "V3 head", 129280, 7168, WeightType::kBF16, true, ""},
    {"router", "V2-Lite router", 64, 2048, WeightType::kF32, true, ""},
    {"router", "V3 router", 256, 7168, WeightType::kF32, true, ""},
    {"router", "V2-Lite router", 64, 2048, WeightType::kBF16, true, ""},
    {"router", "V3 router", 256, 7168, WeightType::kBF16, true, ""},
};

const char* type_name(WeightType type) {
  return type == WeightType::kFp8Block ? "fp8" : type == WeightType::kBF16 ? "bf16" : "f32";
}

// Holds several copies of a shape's weights, and activations for up to 128 rows.
struct Buffers {
  Shape shape;
  int sets;
  size_t weight_bytes, scale_count;
  DeviceBuffer w, w_scales, x, x_scales, y;

  Buffers(const Shape& s, CudaStream& stream) : shape(s) {
    const auto size = static_cast<size_t>(weight_element_bytes(s.type));
    weight_bytes = static_cast<size_t>(s.n * s.k) * size;
    scale_count = static_cast<size_t>((s.n + 127) / 128 * ((s.k + 127) / 128) + 3) / 4 * 4;
    sets = num_rotating_sets(weight_bytes);
    while (sets > 1 && weight_bytes * sets > kMostBytes) --sets;
    const Fill fill = size == 1 ? Fill::kE4m3 : size == 2 ? Fill::kBf16 : Fill::kF32;
    w = random_device_buffer(weight_bytes * sets, fill, stream);
    x = random_device_buffer(128 * s.k * 2, size == 1 ? Fill::kE4m3 : Fill::kBf16, stream);
    if (size == 1) {
      w_scales = random_device_buffer(scale_count * sets * 4, Fill::kF32, stream);
      x_scales = random_device_buffer((s.k + 127) / 128 * 128 * 4, Fill::kF32, stream);
    }
    y = DeviceBuffer(static_cast<size_t>(128 * s.n) * 4);
  }

  cuda::DenseLinearParams params(int64_t m, int call) const {
    const size_t set = call % sets;
    cuda::DenseLinearParams p;
    p.m = m;
    p.w = {.data = w.data() + set * weight_bytes,
           .type = shape.type,
           .n = shape.n,
           .k = shape.k,
           .row_stride = shape.k,
           .scales = nullptr,
           .scale_stride = (shape.k + 127) / 128};
    if (shape.type == WeightType::kFp8Block) {
      p.w.scales = w_scales.as<float>() + set * scale_count;
      p.x_quantized = {.codes = x.as<fp8_e4m3>(),
                       .scales = x_scales.as<float>(),
                       .stride = shape.k,
                       .scale_stride = 128,
                       .power_of_two = false};
    } else {
      p.x = x.as<bf16>();
      p.x_stride = shape.k;
    }
    if (shape.f32_output)
      p.y_f32 = y.as<float>();
    else
      p.y = y.as<bf16>();
    p.y_stride = shape.n;
    return p;
  }
};

void run_shape(const Shape& shape, const std::vector<int64_t>& rows, bool sweep, CudaStream& stream,
               GemmLibrary& library) {
  const Buffers buffers(shape, stream);
  const Launch launch{.stream = stream.handle()};
  const double floor = static_cast<double>(buffers.weight_bytes) / kBytesAMicrosecond;
  const int calls = std::max(16, std::min(buffers.sets, 40));
  fmt::print("{} {} {} x {}: {:.1f} MB, floor {:.2f} us. {}\n", type_name(shape.type), shape.name, shape.n,
             shape.k, static_cast<double>(buffers.weight_bytes) * 1e-6, floor, shape.peer);
  for (const int64_t m : rows) {
    if (sweep && skinny::supports(linear_shape(buffers.params(m, 0)))) {
      const int k_blocks = static_cast<int>(shape.k * (shape.type == WeightType::kFp8Block ? 1 : 2) / 128);
      const skinny::Schedule chosen = skinny::schedule_of(shape.type, m, shape.n, k_blocks, launch.num_sms);
      std::string line;
      for (const int groups : {1, 2}) {
        for (int splits = 1; splits <= skinny::kMaxSplits; ++splits) {
          if (k_blocks < splits * 4 || splits > 2 * chosen.splits || splits * 2 < chosen.splits) continue;
          for (const int64_t budget : {72, 88, 110, 200}) {
            skinny::Schedule s = chosen;
            s.splits = splits;
            s.groups = groups;
            s.stages = skinny::stages_of(shape.type, s.tokens, s.groups, (k_blocks + splits - 1) / splits,
                                         budget * 1024);
            const double us = time_in_graph(
                stream, [&](int call) { skinny_linear(buffers.params(m, call), launch, s); }, calls, 5);
            line += fmt::format(" {}/{}/{}:{:.2f}", groups, splits, s.stages, us);
          }
        }
      }
      fmt::print("  m {:<4} groups/splits/stages:us{}\n", m, line);
      continue;
    }
    const double ours = time_in_graph(
        stream, [&](int call) { linear(buffers.params(m, call), library, launch); }, calls);
    std::string line =
        fmt::format("  m {:<4} {:8.2f} us {:5.0f} GB/s {:5.1f} %", m, ours,
                    static_cast<double>(buffers.weight_bytes) * 1e-3 / ours, floor / ours * 100);
    const auto compare = [&](const char* name, const std::function<void(int)>& call) {
      line += fmt::format("   {} {:.2f}", name, time_in_graph(stream, call, calls));
    };
    if (thin::supports(linear_shape(buffers.params(m, 0))) && shape.n < 8000) {
      compare("thin", [&](int call) { thin_linear(buffers.params(m, call), launch); });
    }
    if (skinny::supports(linear_shape(buffers.params(m, 0)))) {
      compare("skinny", [&](int call) { skinny_linear(buffers.params(m, call), launch); });
    }
    if (shape.n <= 256 && shape.type == WeightType::kBF16) {
      compare("FMA", [&](int call) { router_linear(buffers.params(m, call), launch); });
    }
    if (shape.type == WeightType::kBF16) {
      compare("cuBLASLt", [&](int call) { cublaslt_linear(buffers.params(m, call), library, launch); });
    } else if (shape.type == WeightType::kFp8Block && m >= 32 &&
               tiled::supports(linear_shape(buffers.params(m, 0)))) {
      compare("tiled", [&](int call) { wgmma_linear(buffers.params(m, call), launch); });
    }
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
}

void run_absorbed(bool fp8, int heads, const std::vector<int64_t>& rows, CudaStream& stream) {
  const Launch launch{.stream = stream.handle()};
  const size_t bytes = static_cast<size_t>(heads) * 256 * 512 * (fp8 ? 1 : 2);  // both halves of kv_b
  const int sets = num_rotating_sets(bytes / 2);
  const DeviceBuffer w = random_device_buffer(bytes * sets, fp8 ? Fill::kE4m3 : Fill::kBf16, stream);
  const DeviceBuffer scales = random_device_buffer(static_cast<size_t>(heads) * 8 * 4, Fill::kF32, stream);
  const DeviceBuffer x =
      random_device_buffer(static_cast<size_t>(128) * heads * 512 * 2, Fill::kBf16, stream);
  const DeviceBuffer y(static_cast<size_t>(128) * heads * 576 * 2);
  const DeviceBuffer y_scales(static_cast<size_t>(128) * heads * 4);
  const double floor = static_cast<double>(bytes) / 2 / kBytesAMicrosecond;
  fmt::print("absorbed {} heads {}: {:.1f} MB each, floor {:.2f} us\n", fp8 ? "fp8" : "bf16", heads,
             static_cast<double>(bytes) / 2e6, floor);
  for (const int64_t m : rows) {
    const auto weights = [&](int call, int64_t n, int64_t k) {
      return MatrixWeight{.data = w.data() + call % sets * bytes,
                          .type = fp8 ? WeightType::kFp8Block : WeightType::kBF16,
                          .n = n,
                          .k = k,
                          .row_stride = k,
                          .scales = scales.as<float>(),
                          .scale_stride = k / 128};
    };
    const double absorb = time_in_graph(stream, [&](int call) {
      absorb_query({.q = x.as<bf16>(),
                    .q_row_stride = heads * 192,
                    .q_head_stride = 192,
                    .w_uk = weights(call, heads * 512, 128),
                    .y = y.as<bf16>(),
                    .m = m,
                    .num_heads = heads},
                   launch);
    });
    const double expand = time_in_graph(stream, [&](int call) {
      ExpandValueParams p{
          .o = x.as<bf16>(), .kv_b = weights(call, heads * 256, 512), .m = m, .num_heads = heads};
      if (fp8) {
        p.y_quantized = {.codes = y.as<fp8_e4m3>(),
                         .scales = y_scales.as<float>(),
                         .stride = heads * 128,
                         .scale_stride = 128,
                         .power_of_two = false};
      } else {
        p.y = y.as<bf16>();
        p.y_stride = heads * 128;
      }
      expand_value(p, launch);
    });
    fmt::print("  m {:<4} absorb_query {:6.2f} us {:5.1f} %   expand_value {:6.2f} us {:5.1f} %\n", m, absorb,
               floor / absorb * 100, expand, floor / expand * 100);
  }
}

int run(int argc, char** argv) {
  std::string groups = "v2,v3,head,router,absorbed";
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64, 128};
  bool sweep = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--sweep")
      sweep = true;
    else if (arg == "--shapes" && i + 1 < argc)
      groups = argv[++i];
    else if (arg == "--m" && i + 1 < argc)
      rows = numbers("--m", argv[++i]);
    else {
      fmt::print("usage: {} [--shapes v2,v3,head,router,absorbed] [--m 1,16,64] [--sweep]\n", argv[0]);
      return 2;
    }
  }
  CudaStream stream;
  GemmLibrary library;
  for (const Shape& shape : kShapes) {
    if (groups.find(shape.group) != std::string::npos) run_shape(shape, rows, sweep, stream, library);
  }
  if (groups.find("absorbed") != std::string::npos) {
    for (const bool fp8 : {false, true}) {
      for (const int heads : {16, 128}) run_absorbed(fp8, heads, rows, stream);
    }
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::run(argc, argv);
}
