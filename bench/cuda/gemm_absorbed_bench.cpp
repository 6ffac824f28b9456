// Measures the absorbed products of MLA with the kernel for few tokens and with the tiled kernel, and marks
// which of them the op chooses. Each figure is in microseconds per call, in a graph of equal calls joined by
// programmatic launches, with weights rotated past the L2. It is the median of three rounds with rests
// between them.
//
//   cuda_gemm_absorbed_bench [--heads 8,16,32,64,128] [--m 1,16,64,…] [--weights bf16,fp8]
//
// absorb_query is measured with RoPE, and on the tiled kernel also through a map of rows (here the identity)
// and without RoPE. expand_value is measured to rows of the weights' type (FP8: quantised groups), and on the
// tiled kernel also to the other type. The column "bytes" is the time to move all bytes at 4.3 TB/s; smaller
// outputs never leave the L2. * marks the op's choice.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/device_fill.h"
#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/gemm/absorbed/choice.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::bench {
namespace {

using namespace hadal::cuda;

constexpr double kBytesAMicrosecond = 4.3e6;
constexpr int64_t kFewIsSlow = 1024;  // the kernel for few tokens is not measured with more tokens
constexpr int64_t kPositions = 4096;

class Products {
 public:
  Products(bool fp8, int heads, int64_t most, CudaStream& stream)
      : fp8_(fp8),
        heads_(heads),
        bytes_(static_cast<size_t>(heads) * 256 * 512 * (fp8 ? 1 : 2)),
        sets_(num_rotating_sets(bytes_ / 2)),
        stream_(stream),
        w_(random_device_buffer(bytes_ * sets_, fp8 ? Fill::kE4m3 : Fill::kBf16, stream)),
        scales_(random_device_buffer(static_cast<size_t>(heads) * 8 * 4, Fill::kF32, stream)),
        table_(random_device_buffer(kPositions * 64 * 4, Fill::kF32, stream)),
        x_(random_device_buffer(static_cast<size_t>(most) * heads * 512 * 2, Fill::kBf16, stream)),
        positions_(static_cast<size_t>(most) * 4),
        rows_(static_cast<size_t>(most) * 4),
        y_(static_cast<size_t>(most) * heads * 576 * 2),
        y_scales_(static_cast<size_t>(most + 4) * heads * 4) {
    std::vector<int32_t> positions(most);
    for (int64_t i = 0; i < most; ++i) positions[i] = static_cast<int32_t>(i % kPositions);
    copy_to_device(positions_.data(), positions.data(), positions.size() * 4, stream.handle());
    stream.synchronize();
    std::iota(positions.begin(), positions.end(), 0);
    copy_to_device(rows_.data(), positions.data(), positions.size() * 4, stream.handle());
    stream.synchronize();
  }

  void row(int64_t m) {
    const auto time = [&](const std::function<void(int)>& call) {
      std::vector<double> values;
      for (int round = 0; round < 3; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(m * heads_ >= 60000 ? 4 : 1));
        values.push_back(time_in_graph(stream_, call, m >= 512 ? 4 : 16, 3));
      }
      std::sort(values.begin(), values.end());
      return values[1];
    };
    const bool few = m <= kFewIsSlow;
    const WeightType type = fp8_ ? WeightType::kFp8Block : WeightType::kBF16;
    const auto mark = [](AbsorbedKernel chosen, AbsorbedKernel kernel) {
      return chosen == kernel ? '*' : ' ';
    };
    const AbsorbedKernel first = choose_absorb_query(type, m, heads_);
    const AbsorbedKernel second = choose_expand_value(type, m, heads_);
    const double half = static_cast<double>(bytes_) / 2;
    const auto pairs = static_cast<double>(m * heads_);
    fmt::print(
        "{} heads {:<3} m {:<4} absorb few {:7.2f}{} tiled {:7.2f}{} mapped {:7.2f} without RoPE {:7.2f} "
        "(bytes {:6.2f}, {:6.2f})",
        fp8_ ? "fp8 " : "bf16", heads_, m,
        few ? time([&](int i) { absorb_query_few(absorb(m, i, true), launch_); }) : 0.0,
        mark(first, AbsorbedKernel::kFew),
        time([&](int i) { absorb_query_tiled(absorb(m, i, true), launch_); }),
        mark(first, AbsorbedKernel::kTiled),
        time([&](int i) { absorb_query_tiled(absorb(m, i, true, true), launch_); }),
        time([&](int i) { absorb_query_tiled(absorb(m, i, false), launch_); }),
        (half + pairs * (192 + 576) * 2) / kBytesAMicrosecond,
        (half + pairs * (128 + 512) * 2) / kBytesAMicrosecond);
    fmt::print("  expand few {:7.2f}{} tiled {:7.2f}{} to {} {:7.2f} (bytes {:6.2f})\n",
               few ? time([&](int i) { expand_value_few(expand(m, i, fp8_), launch_); }) : 0.0,
               mark(second, AbsorbedKernel::kFew),
               time([&](int i) { expand_value_tiled(expand(m, i, fp8_), launch_); }),
               mark(second, AbsorbedKernel::kTiled), fp8_ ? "bf16" : "fp8 ",
               time([&](int i) { expand_value_tiled(expand(m, i, !fp8_), launch_); }),
               (half + pairs * (1024 + (fp8_ ? 128 : 256))) / kBytesAMicrosecond);
    std::fflush(stdout);
  }

  AbsorbQueryParams absorb(int64_t m, int call, bool rope, bool mapped = false) const {
    return {.q = x_.as<bf16>(),
            .q_row_stride = heads_ * 192,
            .q_head_stride = 192,
            .w_uk = weights(call, heads_ * 512, 128),
            .y = y_.as<bf16>(),
            .m = m,
            .num_heads = heads_,
            .positions = rope ? positions_.as<int32_t>() : nullptr,
            .cos_sin = table_.as<float>(),
            .rows = mapped ? rows_.as<int32_t>() : nullptr};
  }
  ExpandValueParams expand(int64_t m, int call, bool to_fp8) const {
    ExpandValueParams p{
        .o = x_.as<bf16>(), .kv_b = weights(call, heads_ * 256, 512), .m = m, .num_heads = heads_};
    if (to_fp8) {
      p.y_quantized = {.codes = y_.as<fp8_e4m3>(),
                       .scales = y_scales_.as<float>(),
                       .stride = heads_ * 128,
                       .scale_stride = round_up(m, 4),
                       .power_of_two = false};
    } else {
      p.y = y_.as<bf16>();
      p.y_stride = heads_ * 128;
    }
    return p;
  }

 private:
  MatrixWeight weights(int call, int64_t n, int64_t k) const {
    return {.data = w_.data() + call % sets_ * bytes_,
            .type = fp8_ ? WeightType::kFp8Block : WeightType::kBF16,
            .n = n,
            .k = k,
            .row_stride = k,
            .scales = scales_.as<float>(),
            .scale_stride = k / 128};
  }

  bool fp8_;
  int heads_;
  size_t bytes_;  // both halves of kv_b
  int sets_;
  CudaStream& stream_;
  DeviceBuffer w_, scales_, table_, x_, positions_, rows_, y_, y_scales_;
  Launch launch_{.stream = stream_.handle()};
};

int run(int argc, char** argv) {
  std::string heads = "8,16,32,64,128";
  std::string rows = "1,16,32,64,128,256,512,1024,4096";
  std::string weights = "bf16,fp8";
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string option = argv[i];
    std::string* value = option == "--heads"     ? &heads
                         : option == "--m"       ? &rows
                         : option == "--weights" ? &weights
                                                 : nullptr;
    if (value == nullptr) {
      fmt::print("usage: {} [--heads 16,128] [--m 1,64,4096] [--weights bf16,fp8]\n", argv[0]);
      return 2;
    }
    *value = argv[i + 1];
  }
  CudaStream stream;
  const std::vector<int64_t> counts = numbers("--m", rows.c_str());
  for (const int64_t num_heads : numbers("--heads", heads.c_str())) {
    for (const bool fp8 : {false, true}) {
      if (weights.find(fp8 ? "fp8" : "bf16") == std::string::npos) continue;
      Products products(fp8, static_cast<int>(num_heads), *std::max_element(counts.begin(), counts.end()),
                        stream);
      for (const int64_t m : counts) products.row(m);
    }
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
