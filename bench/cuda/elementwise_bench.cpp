// Measures the times of the row-wise ops and of routing at the sizes of V2-Lite (bf16) and V3 (FP8), in
// microseconds per call in a graph of calls, with the bytes that an op must move as GB/s. Inputs of more than
// 24 MB are rotated past the L2; smaller ones stay in it, as they do between the ops of a layer.
//
//   cuda_elementwise_bench [int8_tokens] [m …]
//
// int8_tokens gives both models INT8 linears with one scale per channel.
#include <fmt/core.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/experts/experts.h"

namespace hadal::bench {
namespace {

struct Dims {
  const char* name;
  int64_t hidden, q_width, heads, dense, expert;
  bool fp8;  // FP8 or, with int8_tokens, INT8
  int experts, shared, top_k, groups, topk_groups;
  GateKind gate;
};
const Dims kModels[] = {
    {"V2-Lite", 2048, 3072, 16, 10944, 1408, false, 64, 2, 6, 1, 1, GateKind::kSoftmaxGreedy},
    {"V3", 7168, 1536, 128, 18432, 2048, true, 256, 1, 8, 8, 4, GateKind::kSigmoidNoAuxTc},
};

// Holds device memory for one set of an op's arguments.
class Memory {
 public:
  // These return memory that holds small normal numbers (0.01 as bf16 and float32, because division by zeros
  // would take its slow path), zeros for indices, or the given values.
  template <typename T>
  T* numbers(int64_t count) {
    return filled<T>(count, 0x3c);
  }
  template <typename T>
  T* zeros(int64_t count) {
    return filled<T>(count, 0);
  }
  template <typename T>
  T* values(const std::vector<T>& host) {
    T* device = zeros<T>(static_cast<int64_t>(host.size()));
    copy_to_device(device, host.data(), host.size() * sizeof(T), stream_.handle());
    stream_.synchronize();
    return device;
  }
  cuda::QuantizedRows fp8(int64_t rows, int64_t width, cuda::RowFormat format) {
    const int64_t stride = cuda::round_up(width, cuda::kQuantGroup);
    const int64_t scale_stride = cuda::round_up(rows, 4);
    return {numbers<fp8_e4m3>(rows * stride),
            numbers<float>(stride / cuda::kQuantGroup * scale_stride),
            stride,
            scale_stride,
            false,
            format};
  }
  explicit Memory(CudaStream& stream) : stream_(stream) {}

 private:
  template <typename T>
  T* filled(int64_t count, int byte) {
    buffers_.emplace_back(static_cast<size_t>(count) * sizeof(T));
    fill_device(buffers_.back().data(), byte, buffers_.back().size(), stream_.handle());
    return buffers_.back().as<T>();
  }

  CudaStream& stream_;
  std::vector<DeviceBuffer> buffers_;
};

class Bench {
 public:
  Bench(const Dims& dims, cuda::RowFormat format, int64_t m) : d_(dims), format_(format), m_(m) {
    d_.fp8 |= format != cuda::RowFormat::kE4m3Groups;
    launch_.stream = stream_.handle();
    launch_.num_sms = cuda_device_info(0).num_sms;
  }

  void run_all() {
    norm(false);
    norm(true);
    elementwise();
    prologue();
    routing();
  }

 private:
  // prepare(memory) allocates a set and returns the op that uses it.
  template <typename Prepare>
  void time(const std::string& name, double bytes, Prepare prepare) {
    const int sets = bytes > 24e6 ? num_rotating_sets(static_cast<size_t>(bytes)) : 1;
    Memory memory(stream_);
    std::vector<std::function<void()>> ops;
    for (int i = 0; i < sets; ++i) ops.push_back(prepare(memory));
    stream_.synchronize();
    const double us = time_in_graph(
        stream_, [&](int i) { ops[i % ops.size()](); }, bytes > 24e6 ? 8 : 40, 5);
    fmt::print("{:8} {:>6}  {:34} {:9.2f} us {:7.0f} GB/s\n", d_.name, m_, name, us, bytes / us * 1e-3);
  }

  double out_bytes(int64_t width) const { return static_cast<double>(m_ * width) * (d_.fp8 ? 1.03 : 2.0); }

  void norm(bool combine) {
    const int slots = d_.top_k + d_.shared;
    const int64_t n = d_.hidden;
    const double in = static_cast<double>(m_ * n) * (8.0 + 2.0 * (combine ? slots : 1));
    time(combine ? fmt::format("add_rms_norm, {} experts' rows", slots) : "add_rms_norm", in + out_bytes(n),
         [&](Memory& mem) {
           cuda::AddRmsNormParams p{
               .residual = mem.numbers<float>(m_ * n), .weight = mem.numbers<float>(n), .m = m_, .n = n};
           if (combine) {
             std::vector<int32_t> rows(m_ * slots);
             for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
             std::shuffle(rows.begin(), rows.end(), std::mt19937(1));
             p.input = {.expert_rows = mem.numbers<bf16>(m_ * slots * n),
                        .row_of = mem.values(rows),
                        .weights = mem.numbers<float>(m_ * slots),
                        .top_k = slots};
           } else {
             p.input = {.dense = mem.numbers<bf16>(m_ * n), .x_stride = n};
           }
           if (d_.fp8) {
             p.y_quantized = mem.fp8(m_, n, format_);
           } else {
             p.y = mem.numbers<bf16>(m_ * n);
           }
           return [=, this] { add_rms_norm(p, launch_); };
         });
  }

  void silu(const char* name, int64_t rows, int64_t n) {
    const double bytes = static_cast<double>(rows * n) * (d_.fp8 ? 5.03 : 6.0);
    time(name, bytes, [&](Memory& mem) {
      cuda::SiluMulParams p{.x = mem.numbers<bf16>(rows * 2 * n), .m = rows, .n = n};
      if (d_.fp8) {
        p.y_quantized = mem.fp8(rows, n, format_);
      } else {
        p.y = mem.numbers<bf16>(rows * n);
      }
      return [=, this] { silu_mul(p, launch_); };
    });
  }

  void elementwise() {
    silu("silu_mul, dense MLP", m_, d_.dense);
    silu("silu_mul, experts", m_ * (d_.top_k + d_.shared), d_.expert);
    const int64_t wide = d_.heads * 128;
    time("quantize_rows, attention output", static_cast<double>(m_ * wide) * 3.03, [&](Memory& mem) {
      const cuda::QuantizeParams p{mem.numbers<bf16>(m_ * wide), wide, m_, wide, mem.fp8(m_, wide, format_)};
      return [=, this] { quantize_rows(p, launch_); };
    });
    time("q_rope", static_cast<double>(m_ * d_.heads) * 256.0, [&](Memory& mem) {
      bf16* q = mem.numbers<bf16>(m_ * d_.heads * 192);
      const cuda::QRopeParams p{.q = q + 128,
                                .q_row_stride = d_.heads * 192,
                                .q_head_stride = 192,
                                .y = q + 128,
                                .y_row_stride = d_.heads * 192,
                                .y_head_stride = 192,
                                .positions = mem.zeros<int32_t>(m_),
                                .cos_sin = mem.numbers<float>(64),
                                .m = m_,
                                .num_heads = static_cast<int>(d_.heads)};
      return [=, this] { q_rope(p, launch_); };
    });
    time("embedding", static_cast<double>(m_ * d_.hidden) * 6.0, [&](Memory& mem) {
      std::vector<int32_t> ids(m_);
      for (int64_t i = 0; i < m_; ++i) ids[i] = static_cast<int32_t>(i * 7919 % 32000);
      const cuda::EmbeddingParams p{mem.numbers<bf16>(32000 * d_.hidden),
                                    mem.values(ids),
                                    mem.numbers<float>(m_ * d_.hidden),
                                    m_,
                                    d_.hidden,
                                    32000};
      return [=, this] { embedding(p, launch_); };
    });
  }

  void prologue() {
    for (const KvLayout layout : {KvLayout{KvFormat::kBF16}, KvLayout{KvFormat::kFp8E4M3}}) {
      const double q_bytes = d_.fp8 ? static_cast<double>(m_ * d_.q_width) * 3.03 : 0.0;
      const double bytes = q_bytes + static_cast<double>(m_) * (1152.0 + layout.row_bytes());
      time(layout.format == KvFormat::kBF16 ? "mla_prologue, bf16 cache" : "mla_prologue, fp8_e4m3 cache",
           bytes, [&](Memory& mem) {
             std::vector<int64_t> slots(m_);
             for (int64_t i = 0; i < m_; ++i) slots[i] = i;
             cuda::MlaPrologueParams p{
                 .x = mem.numbers<bf16>(m_ * (d_.q_width + 576)),
                 .x_stride = d_.q_width + 576,
                 .m = m_,
                 .q_width = d_.q_width,
                 .kv_norm = mem.numbers<float>(512),
                 .positions = mem.zeros<int32_t>(m_),
                 .cos_sin = mem.numbers<float>(64),
                 .slots = mem.values(slots),
                 .pool = mem.zeros<std::byte>(cuda::round_up(m_, kPageSize) * layout.row_bytes()),
                 .layout = layout};
             if (d_.fp8) {
               p.q_norm = mem.numbers<float>(d_.q_width);
               p.q_quantized = mem.fp8(m_, d_.q_width, format_);
             }
             return [=, this] { mla_prologue(p, launch_); };
           });
    }
  }

  void routing() {
    const int slots = d_.top_k + d_.shared;
    const int experts = d_.experts + d_.shared;
    const double bytes = static_cast<double>(m_) * (d_.experts * 4.0 + slots * 16.0);
    time("route", bytes, [&](Memory& mem) {
      std::vector<float> logits(m_ * d_.experts);
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      for (float& v : logits) v = normal(random);
      const cuda::RouteParams p{
          .logits = mem.values(logits),
          .bias = mem.numbers<float>(d_.experts),
          .m = m_,
          .num_experts = d_.experts,
          .num_shared = d_.shared,
          .top_k = d_.top_k,
          .num_groups = d_.groups,
          .topk_groups = d_.topk_groups,
          .kind = d_.gate,
          .topk_ids = mem.zeros<int32_t>(m_ * slots),
          .topk_weights = mem.numbers<float>(m_ * slots),
          .expert_offsets = mem.zeros<int32_t>(experts + 1),
          .token_of = mem.zeros<int32_t>(m_ * slots),
          .row_of = mem.zeros<int32_t>(m_ * slots),
          .num_distinct = mem.zeros<int32_t>(1),
          .scratch = mem.zeros<std::byte>(static_cast<int64_t>(cuda::route_scratch_bytes(m_, experts))),
          .arrived = mem.zeros<int32_t>(1)};
      return [=, this] { route(p, launch_); };
    });
    const int64_t rows = m_ * slots;
    const int64_t n = d_.hidden;
    time("permute_rows", static_cast<double>(rows * n) * (d_.fp8 ? 2.06 : 4.0), [&](Memory& mem) {
      std::vector<int32_t> tokens(rows);
      for (int64_t i = 0; i < rows; ++i) tokens[i] = static_cast<int32_t>(i % m_);
      std::shuffle(tokens.begin(), tokens.end(), std::mt19937(1));
      cuda::PermuteRowsParams p{.token_of = mem.values(tokens), .num_rows = rows, .n = n};
      if (d_.fp8) {
        p.x_quantized = mem.fp8(m_, n, format_);
        p.y_quantized = mem.fp8(rows, n, format_);
      } else {
        p.x = mem.numbers<bf16>(m_ * n);
        p.y = mem.numbers<bf16>(rows * n);
      }
      return [=, this] { permute_rows(p, launch_); };
    });
  }

  Dims d_;
  cuda::RowFormat format_;
  int64_t m_;
  CudaStream stream_;
  cuda::Launch launch_;
};

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  std::vector<int64_t> sizes;
  auto format = hadal::cuda::RowFormat::kE4m3Groups;
  int first = 1;
  if (argc > 1 && std::string(argv[1]) == "int8_tokens") {
    format = hadal::cuda::RowFormat::kInt8Tokens;
    first = 2;
  }
  for (int i = first; i < argc; ++i) sizes.push_back(std::atoll(argv[i]));
  if (sizes.empty()) sizes = {1, 16, 64, 128, 4096, 32768};
  for (const auto& model : hadal::bench::kModels) {
    for (const int64_t m : sizes) hadal::bench::Bench(model, format, m).run_all();
  }
  return 0;
}
