// Measures matrix products as an engine calls them. Every row has its floor, its goal (gemm_goals.h) and,
// with --peer, its peers in the same run (gemm_peers.py). The products are FP8 with block scales at
// DeepSeek-V3's shapes, bf16 at V2-Lite's shapes, INT8 with scales of rows and channels at both, grouped
// experts, and MLA's absorbed products with their error.
//   cuda_gemm_table_bench [--sections fp8,bf16,int8,grouped,absorbed] [--m 1,64] [--kernel-config-dir DIR]
//   [--json FILE] [--peer]
// --m: only rows of these numbers of tokens (grouped: per expert). --kernel-config-dir: measured choices of
// kernels, as an engine uses them; without it the heuristics choose.
//
// A row is one call inside a CUDA graph, with operands rotated so that a graph touches more than twice the
// L2; activations are quantised beforehand, because the previous norm or activation does that. The card rests
// before each measurement (cool_timer.h); a row's figure is the median of three rounds (table_rows.h). Each
// section is a separate function. INT8 products are compared with direct calls of cuBLASLt, too
// (library_int8.h).
//
// `cosine` compares sampled outputs with float64 sums over the same weights, and cosine_of_original with sums
// over the weights before they were rounded to the row's type.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/gemm_operands.h"
#include "bench/cuda/graph_timer.h"
#include "bench/cuda/library_int8.h"
#include "bench/cuda/measured_choices.h"
#include "bench/cuda/random_operands.h"
#include "bench/cuda/table_rows.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::bench {
namespace {

constexpr int64_t kLatent = 512, kNope = 128, kQueryStride = 192, kRecord = 576;

struct Choice {
  std::vector<std::string> sections = {"fp8", "bf16", "int8", "grouped", "absorbed"};
  std::vector<int64_t> rows;  // empty: all
  std::string json;
  std::filesystem::path kernel_configs;  // directory of measured choices; empty: none
  bool peer = false;

  bool has(const std::string& section) const {
    return std::find(sections.begin(), sections.end(), section) != sections.end();
  }
  bool wants(int64_t m) const { return rows.empty() || std::find(rows.begin(), rows.end(), m) != rows.end(); }
};

class Bench {
 public:
  explicit Bench(Choice choice) : choice_(std::move(choice)), table_(choice_.json, choice_.peer) {
    const CudaDeviceInfo info = cuda_device_info(0);
    launch_ = {.stream = stream_.handle(), .num_sms = info.num_sms};
    choices_ = measured_choices(choice_.kernel_configs, info);
  }

  int run() {
    table_.print_head();
    // Few rows come first, because a card lowers its clock under heavy rows and for some time after them.
    for (const int64_t m : {1, 16, 64, 128}) {
      if (choice_.has("fp8")) fp8(m);
    }
    for (const int64_t m : {1, 4, 8, 16, 64, 4096}) {
      if (choice_.has("bf16")) bf16_small(m);
    }
    for (const int64_t m : {1, 16, 64}) {
      if (choice_.has("int8")) int8(m);
    }
    for (const int64_t m : {1, 8, 32, 128}) {
      if (choice_.has("grouped")) grouped(m);
    }
    if (choice_.has("fp8")) fp8(4096);
    if (choice_.has("int8")) int8(4096);
    for (const int64_t m : {1, 16, 64, 256, 1024, 4096}) {
      if (choice_.has("absorbed")) absorbed(m);
    }
    table_.print_summary();
    return 0;
  }

 private:
  void dense(const char* kind, const ProductShape& shape, WeightType type, double teraflops,
             const Goal& goal) {
    table_.add(fmt::format("{} {} {} {}", kind, shape.m, shape.n, shape.k), [&] {
      const Operands o(shape, type, stream_);
      const auto params = [&](int i) {
        return cuda::DenseLinearParams{.x = o.x_bf16(i),
                                       .x_stride = shape.k,
                                       .x_quantized = o.x_quantized(i),
                                       .w = o.weight(i),
                                       .y = o.y.as<bf16>(),
                                       .y_stride = shape.n,
                                       .m = shape.m};
      };
      const auto call = [&](int i) { cuda::linear(params(i), library_, launch_, &choices_.linear); };
      std::vector<Contender> beside;
      std::optional<LibraryInt8> direct;
      if (choice_.peer && type == WeightType::kInt8Channel) {
        direct.emplace(shape, stream_);
        if (direct->found())
          beside.push_back({kDirectLibrary, [&](int i) { direct->multiply(i); }, direct->sets()});
      }
      const auto chosen = cuda::choose(cuda::linear_shape(params(0), launch_.num_sms), &choices_.linear);
      return TableRow{.kind = kind,
                      .shape = shape,
                      .time = table_.time(stream_, timer_, call, o.sets, beside),
                      .bytes = o.bytes(),
                      .flop = o.flop(),
                      .teraflops = teraflops,
                      .goal = goal,
                      .is_library = chosen.kernel == cuda::ProductKernel::kLibrary};
    });
  }

  void fp8(int64_t m) {
    if (!choice_.wants(m)) return;
    constexpr std::array<std::array<int64_t, 2>, 5> kShapes = {
        {{2112, 7168}, {24576, 1536}, {7168, 16384}, {4096, 7168}, {7168, 2048}}};
    for (const auto& [n, k] : kShapes)
      dense("fp8", {m, n, k}, WeightType::kFp8Block, kFp8Teraflops, fp8_goal({m, n, k}));
  }

  void bf16_small(int64_t m) {
    if (!choice_.wants(m)) return;
    for (const int64_t n : {2048, 2816})
      dense("bf16", {m, n, 2048}, WeightType::kBF16, kBf16Teraflops, bf16_goal({m, n, 2048}));
  }

  // V2-Lite's shapes come first, then V3's.
  void int8(int64_t m) {
    if (!choice_.wants(m)) return;
    constexpr std::array<std::array<int64_t, 2>, 7> kShapes = {
        {{2048, 2048}, {2816, 2048}, {3648, 2048}, {2112, 7168}, {24576, 1536}, {7168, 16384}, {4096, 7168}}};
    for (const auto& [n, k] : kShapes)
      dense("int8", {m, n, k}, WeightType::kInt8Channel, kInt8Teraops, kInt8Goal);
  }

  // Measures 32 experts with m rows each, sorted by expert, as in a step whose tokens were exchanged between
  // ranks.
  void grouped(int64_t m) {
    if (!choice_.wants(m)) return;
    constexpr int kExperts = 32;
    std::vector<int32_t> starts(kExperts + 1);
    for (int e = 0; e <= kExperts; ++e) starts[e] = static_cast<int32_t>(m * e);
    const DeviceBuffer offsets(starts.size() * 4);
    copy_to_device(offsets.data(), starts.data(), starts.size() * 4, stream_.handle());
    stream_.synchronize();
    for (const bool is_down : {false, true}) {
      const ProductShape shape{m, is_down ? 7168 : 4096, is_down ? 2048 : 7168, kExperts};
      table_.add(fmt::format("grouped_fp8 {} {} {} {}", shape.groups, m, shape.n, shape.k), [&] {
        const Operands o(shape, WeightType::kFp8Block, stream_);
        const auto call = [&](int i) {
          cuda::grouped_linear({.x_quantized = o.x_quantized(i),
                                .expert_offsets = offsets.as<int32_t>(),
                                .num_rows = o.rows,
                                .num_experts = kExperts,
                                .w = o.weight(i),
                                .expert_stride = shape.n * shape.k,
                                .expert_scale_stride = num_scales(WeightType::kFp8Block, shape.n, shape.k),
                                .y = o.y.as<bf16>(),
                                .offsets_settled = is_down},
                               launch_, &choices_.grouped);
        };
        return TableRow{.kind = "grouped_fp8",
                        .shape = shape,
                        .time = table_.time(stream_, timer_, call, o.sets),
                        .bytes = o.bytes(),
                        .flop = o.flop(),
                        .teraflops = kFp8Teraflops,
                        .goal = fp8_goal(shape)};
      });
    }
  }

  void absorbed(int64_t m) {
    if (!choice_.wants(m)) return;
    for (const int heads : {16, 128}) {
      for (const bool is_expand : {false, true}) {
        for (const bool is_fp8 : {false, true}) absorbed_row(m, heads, is_expand, is_fp8);
      }
    }
  }

  // Holds the random matrices of some heads, which the other heads repeat, in three forms: original, rounded
  // to the row's type, and as the device holds them. A head is [rows, columns]: [512, 128] for absorb_query,
  // or [256, 512] of kv_b, whose second half is used for expand_value.
  struct HeadWeights {
    static constexpr int kDistinct = 4;
    int64_t rows, columns;
    std::vector<float> original, rounded;  // [kDistinct, rows, columns]
    std::vector<std::byte> data;
    std::vector<float> scales;  // [kDistinct, rows / 128, columns / 128]

    HeadWeights(bool is_expand, bool is_fp8) : rows(is_expand ? 256 : 512), columns(is_expand ? 512 : 128) {
      const int64_t count = kDistinct * rows * columns;
      std::mt19937 random(11);
      std::normal_distribution<float> normal(0.0F, 0.05F);
      original.resize(count);
      for (float& value : original) value = normal(random);
      rounded.resize(count);
      data.resize(count * (is_fp8 ? 1 : 2));
      for (int64_t i = 0; i < count && !is_fp8; ++i) {
        const bf16 value = to_bf16(original[i]);
        rounded[i] = to_float(value);
        std::memcpy(data.data() + i * 2, &value, 2);
      }
      for (int64_t row = 0; row < kDistinct * rows && is_fp8; row += 128) {
        for (int64_t column = 0; column < columns; column += 128) round_block(row, column);
      }
    }

    void round_block(int64_t row, int64_t column) {
      float most = 0.0F;
      for (int64_t i = 0; i < 128 * 128; ++i)
        most = std::max(most, std::abs(original[(row + i / 128) * columns + column + i % 128]));
      const float scale = most / 448.0F;
      scales.push_back(scale);
      for (int64_t i = 0; i < 128 * 128; ++i) {
        const int64_t at = (row + i / 128) * columns + column + i % 128;
        const fp8_e4m3 code = to_fp8_e4m3(original[at] / scale);
        rounded[at] = to_float(code) * scale;
        std::memcpy(data.data() + at, &code, 1);
      }
    }
  };

  void absorbed_row(int64_t m, int heads, bool is_expand, bool is_fp8) {
    const char* name = is_expand ? "expand_value" : "absorb_query";
    table_.add(fmt::format("{} {} {}", name, m, heads), [&] {
      const HeadWeights head(is_expand, is_fp8);
      const size_t set_bytes = head.data.size() / HeadWeights::kDistinct * heads;
      const double read_bytes = static_cast<double>(heads * kLatent * kNope) * (is_fp8 ? 1.0 : 2.0);
      const int sets = num_rotating_sets(static_cast<size_t>(read_bytes));
      const DeviceBuffer w = repeated(head.data, set_bytes * sets, stream_);
      const DeviceBuffer scales = repeated(std::as_bytes(std::span(head.scales)),
                                           head.scales.size() / HeadWeights::kDistinct * heads * 4, stream_);
      const int64_t in_width = is_expand ? kLatent : kQueryStride;
      const DeviceBuffer x = random_bf16(m * heads * in_width, stream_);
      const DeviceBuffer y(m * heads * kRecord * 2);
      const DeviceBuffer y_scales(cuda::round_up(m, 4) * heads * 4);
      const auto weight = [&](int i) {
        return MatrixWeight{.data = w.data() + i % sets * set_bytes,
                            .type = is_fp8 ? WeightType::kFp8Block : WeightType::kBF16,
                            .n = heads * head.rows,
                            .k = head.columns,
                            .row_stride = head.columns,
                            .scales = is_fp8 ? scales.as<float>() : nullptr,
                            .scale_stride = is_fp8 ? head.columns / 128 : 0};
      };
      const auto run = [&](int i, bool to_fp8_rows) {
        if (!is_expand) {
          cuda::absorb_query({.q = x.as<bf16>(),
                              .q_row_stride = heads * kQueryStride,
                              .q_head_stride = kQueryStride,
                              .w_uk = weight(i),
                              .y = y.as<bf16>(),
                              .m = m,
                              .num_heads = heads},
                             launch_);
          return;
        }
        cuda::ExpandValueParams p{.o = x.as<bf16>(), .kv_b = weight(i), .m = m, .num_heads = heads};
        if (to_fp8_rows) {
          p.y_quantized = {.codes = y.as<fp8_e4m3>(),
                           .scales = y_scales.as<float>(),
                           .stride = heads * kNope,
                           .scale_stride = cuda::round_up(m, 4),
                           .power_of_two = false};
        } else {
          p.y = y.as<bf16>();
          p.y_stride = heads * kNope;
        }
        cuda::expand_value(p, launch_);
      };
      run(0, false);
      Figures cosines = sampled_cosines(head, x, y, m, heads, is_expand);
      if (is_expand && is_fp8)  // bmm's product without quantisation of the rows
        cosines.emplace_back("us_to_bf16", time_call(
                                               stream_, timer_, [&](int i) { run(i, false); }, sets)
                                               .us);
      const double out_bytes = is_expand ? kNope * (is_fp8 ? 1.0 : 2.0) : kLatent * 2.0;
      const double in_bytes = (is_expand ? kLatent : kNope) * 2.0;
      const auto pairs = static_cast<double>(m * heads);
      return TableRow{.kind = fmt::format("{}_{}", name, is_fp8 ? "fp8" : "bf16"),
                      .shape = {m, is_expand ? kNope : kLatent, is_expand ? kLatent : kNope, heads},
                      .time = table_.time(
                          stream_, timer_, [&](int i) { run(i, is_fp8); }, sets),
                      .bytes = read_bytes + pairs * (in_bytes + out_bytes),
                      .flop = 2.0 * pairs * static_cast<double>(kLatent * kNope),
                      .teraflops = kBf16Teraflops,  // codes are widened to bf16
                      .goal = {},
                      .more = std::move(cosines)};
    });
  }

  // Returns the cosines of some rows and heads of y, which is bf16.
  Figures sampled_cosines(const HeadWeights& head, const DeviceBuffer& x, const DeviceBuffer& y, int64_t m,
                          int heads, bool is_expand) {
    const int64_t in = is_expand ? kLatent : kNope;
    const int64_t out = is_expand ? kNope : kLatent;
    const int64_t in_stride = is_expand ? kLatent : kQueryStride;
    const int64_t out_stride = is_expand ? kNope : kRecord;
    const int64_t first_row = is_expand ? 128 : 0;  // within a head's matrix
    std::vector<bf16> values(in), results(out);
    std::mt19937 random(5);
    double yy = 0.0;
    std::array<double, 2> yr = {}, rr = {};  // for rounded and original weights
    for (int sample = 0; sample < 16; ++sample) {
      const int64_t row = sample == 0 ? m - 1 : static_cast<int64_t>(random() % m);
      const int64_t h = sample == 0 ? heads - 1 : static_cast<int64_t>(random() % heads);
      copy_to_host(values.data(), x.as<bf16>() + (row * heads + h) * in_stride, in * 2, stream_.handle());
      copy_to_host(results.data(), y.as<bf16>() + (row * heads + h) * out_stride, out * 2, stream_.handle());
      stream_.synchronize();
      for (int64_t o = 0; o < out; ++o) {
        const int64_t begin = ((h % HeadWeights::kDistinct) * head.rows + first_row + o) * head.columns;
        std::array<double, 2> sum = {};
        for (int64_t i = 0; i < in; ++i) {
          const double value = to_float(values[i]);
          sum[0] += value * head.rounded[begin + i];
          sum[1] += value * head.original[begin + i];
        }
        const double result = to_float(results[o]);
        yy += result * result;
        for (int i = 0; i < 2; ++i) {
          yr[i] += result * sum[i];
          rr[i] += sum[i] * sum[i];
        }
      }
    }
    return {{"cosine", yr[0] / std::sqrt(yy * rr[0])}, {"cosine_of_original", yr[1] / std::sqrt(yy * rr[1])}};
  }

  Choice choice_;
  Table table_;
  CudaStream stream_;
  CoolTimer timer_;
  cuda::GemmLibrary library_;
  cuda::Launch launch_;
  cuda::ProductChoices choices_;
};

int usage(const std::string& what) {
  fmt::print(stderr,
             "{}\ncuda_gemm_table_bench [--sections fp8,bf16,int8,grouped,absorbed] [--m 1,64] "
             "[--kernel-config-dir DIR] [--json FILE] [--peer]\n",
             what);
  return 2;
}

int run(int argc, char** argv) {
  Choice choice;
  const Choice all;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--peer") {
      choice.peer = true;
    } else if (arg == "--json" && i + 1 < argc) {
      choice.json = argv[++i];
    } else if (arg == "--kernel-config-dir" && i + 1 < argc) {
      choice.kernel_configs = argv[++i];
    } else if (arg == "--m" && i + 1 < argc) {
      choice.rows = numbers("--m", argv[++i]);
    } else if (arg == "--sections" && i + 1 < argc) {
      choice.sections = words_of(argv[++i]);
      for (const std::string& section : choice.sections) {
        if (!all.has(section)) return usage(fmt::format("unknown section '{}'", section));
      }
    } else {
      return usage(fmt::format("unknown argument, or one without its value: '{}'", arg));
    }
  }
  return Bench(std::move(choice)).run();
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
