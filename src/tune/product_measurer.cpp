// Measures products for `hadal tune` on GPU 0 as the engine runs them: in graphs, with several sets of
// weights in turn so that the L2 does not hold them, and with values like those of trained models.
// Preparation takes longer than the measured work, so memory is kept from product to product, and a choice's
// graph as long as its product is searched. A card that works on many rows is left idle between measurements,
// because a hot card is slower by up to a third (bench/cuda/cool_timer.h).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/availability.h"
#include "kernels/cuda/experts/variants.h"
#include "kernels/cuda/gemm/variants.h"
#include "tensor/cuda.h"
#include "tensor/graph_timer.h"
#include "tensor/random_operands.h"
#include "tune/tuner.h"

namespace hadal {
namespace {

constexpr int kDevice = 0;
constexpr int kCalls = 16;                      // least value of the limit of calls per graph (num_sets)
constexpr int kMostCalls = 64;                  // greatest value of that limit
constexpr double kGraphUs = 500;                // time of a graph: long calls are repeated less often
constexpr size_t kMostBytes = size_t{8} << 30;  // limit of rotated weights
constexpr int64_t kRows = 128;                  // the number of activation rows is a multiple of it
constexpr double kHotOperations = 200e6;        // operations per µs at which cards get hot
constexpr float kSpread = 64.0F;                // divisor of weights: near the root of a usual k

// OperandMemory holds the current product's operands. Its memory grows on demand and is filled only when it
// grows, because the same random values serve every shape.
class OperandMemory {
 public:
  explicit OperandMemory(CudaStream& stream) : stream_(stream) {}
  std::byte* weights(WeightType type, size_t bytes) {
    switch (type) {
      case WeightType::kFp8Block:
      case WeightType::kFp8Channel:
        return grown(weights_fp8_, bytes, [&] { return codes(type, bytes); });
      case WeightType::kInt8Block:
      case WeightType::kInt8Channel:
        return grown(weights_int8_, bytes, [&] { return codes(type, bytes); });
      case WeightType::kF32:
        return grown(weights_f32_, bytes, [&] { return random_.scales(bytes / 4, stream_, kSpread); });
      default:
        return grown(weights_bf16_, bytes,
                     [&] { return random_.bf16_values(bytes / 2, stream_, 1.0F / kSpread); });
    }
  }
  float* weight_scales(size_t count) {
    return floats(grown(weight_scales_, count * 4, [&] { return random_.scales(count, stream_, kSpread); }));
  }
  fp8_e4m3* x_codes(WeightType type, size_t count) {
    return reinterpret_cast<fp8_e4m3*>(
        grown(is_int8(type) ? x_int8_ : x_fp8_, count, [&] { return codes(type, count); }));
  }
  float* x_scales(size_t count) {
    return floats(grown(x_scales_, count * 4, [&] { return random_.scales(count, stream_); }));
  }
  bf16* x_bf16(size_t count) {
    return reinterpret_cast<bf16*>(
        grown(x_bf16_, count * 2, [&] { return random_.bf16_values(count, stream_); }));
  }
  // These return room for the output of sorting and for that of the product.
  std::byte* sorted(size_t bytes) {
    return grown(sorted_, bytes, [&] { return DeviceBuffer(bytes); });
  }
  std::byte* sorted_scales(size_t bytes) {
    return grown(sorted_scales_, bytes, [&] { return DeviceBuffer(bytes); });
  }
  std::byte* y(size_t bytes) {
    return grown(y_, bytes, [&] { return DeviceBuffer(bytes); });
  }

 private:
  template <typename Make>
  static std::byte* grown(DeviceBuffer& buffer, size_t bytes, const Make& make) {
    if (buffer.size() < bytes) {
      buffer = DeviceBuffer();  // frees its memory first
      buffer = make();
    }
    return buffer.data();
  }
  static float* floats(std::byte* data) { return reinterpret_cast<float*>(data); }

  DeviceBuffer codes(WeightType type, size_t count) {
    return is_int8(type) ? random_.int8_codes(count, stream_) : random_.e4m3_codes(count, stream_);
  }

  CudaStream& stream_;
  RandomOperands random_;
  DeviceBuffer weights_fp8_, weights_int8_, weights_bf16_, weights_f32_, weight_scales_;
  DeviceBuffer x_fp8_, x_int8_, x_bf16_, x_scales_, sorted_, sorted_scales_, y_;
};

// Holds a product's operands at one batch size, and launches the product with a choice.
class Operands {
 public:
  virtual ~Operands() = default;
  virtual void launch(const cuda::Choice& choice, int call, const cuda::Launch& launch) = 0;
  virtual int num_sets() const = 0;
  virtual double operations() const = 0;  // per call
};

// Weights holds `count` matrices of [n, k] with their scales, in `sets` sets.
struct Weights {
  Weights(const KernelConfigName& name, int64_t n, int64_t k, int64_t count, OperandMemory& memory) {
    const int64_t row = cuda::padded_k(name.type, k);
    stride = n * row;
    bytes = static_cast<size_t>(count * stride * weight_element_bytes(name.type));
    sets = num_rotating_sets(bytes);
    while (sets > 1 && bytes * static_cast<size_t>(sets) > kMostBytes) --sets;
    data = memory.weights(name.type, bytes * static_cast<size_t>(sets));
    first = {.type = name.type, .n = n, .k = k, .row_stride = row};
    if (!has_scales(name.type)) return;
    first.scale_stride = is_block_scaled(name.type) ? row / cuda::kQuantGroup : 0;
    matrix_scales = is_channel_scaled(name.type)
                        ? n
                        : cuda::round_up(n, cuda::kQuantGroup) / cuda::kQuantGroup * first.scale_stride;
    first.scales = memory.weight_scales(static_cast<size_t>(count * matrix_scales));
  }
  MatrixWeight of_call(int call) const {
    MatrixWeight w = first;
    w.data = data + static_cast<size_t>(call % sets) * bytes;
    return w;
  }

  std::byte* data = nullptr;
  MatrixWeight first;
  int64_t stride = 0, matrix_scales = 0;
  size_t bytes = 0;
  int sets = 1;
};

// Activations holds rows in the weights' type.
struct Activations {
  Activations() = default;
  Activations(const KernelConfigName& name, int64_t rows, int64_t k, OperandMemory& memory,
              bool to_sort_into = false) {
    const int64_t padded_rows = cuda::round_up(rows, kRows);
    stride = cuda::padded_k(name.type, k);
    const auto elements = static_cast<size_t>(padded_rows * stride);
    if (!has_scales(name.type)) {
      bf16_rows =
          to_sort_into ? reinterpret_cast<bf16*>(memory.sorted(elements * 2)) : memory.x_bf16(elements);
      return;
    }
    fp8_rows.format = cuda::row_format_of(name.type);
    fp8_rows.stride = stride;
    fp8_rows.scale_stride = padded_rows;
    const auto scales = static_cast<size_t>(padded_rows * fp8_rows.scale_runs());
    if (to_sort_into) {
      fp8_rows.codes = reinterpret_cast<fp8_e4m3*>(memory.sorted(elements));
      fp8_rows.scales = reinterpret_cast<float*>(memory.sorted_scales(scales * 4));
    } else {
      fp8_rows.codes = memory.x_codes(name.type, elements);
      fp8_rows.scales = memory.x_scales(scales);
    }
  }

  bf16* bf16_rows = nullptr;  // exactly one of the two is set
  cuda::QuantizedRows fp8_rows;
  int64_t stride = 0;
};

class DenseOperands final : public Operands {
 public:
  DenseOperands(const ProductSpec& product, int64_t m, cuda::GemmLibrary& library, OperandMemory& memory)
      : m_(m),
        f32_y_(product.f32_y),
        weights_(product.name, product.name.n, product.name.k, 1, memory),
        x_(product.name, m, product.name.k, memory),
        y_(memory.y(static_cast<size_t>(m * cuda::round_up(product.name.n, 8)) * (product.f32_y ? 4 : 2))),
        library_(library) {}

  void launch(const cuda::Choice& choice, int call, const cuda::Launch& launch) override {
    cuda::DenseLinearParams p{.x = x_.bf16_rows, .x_stride = x_.stride, .x_quantized = x_.fp8_rows};
    p.w = weights_.of_call(call);
    p.y = f32_y_ ? nullptr : reinterpret_cast<bf16*>(y_);
    p.y_f32 = f32_y_ ? reinterpret_cast<float*>(y_) : nullptr;
    p.y_stride = cuda::round_up(p.w.n, 8);
    p.m = m_;
    cuda::launch_linear(choice, p, library_, launch);
  }
  int num_sets() const override { return weights_.sets; }
  double operations() const override {
    return 2.0 * static_cast<double>(m_ * weights_.first.n * weights_.first.k);
  }

 private:
  int64_t m_;
  bool f32_y_;
  Weights weights_;
  Activations x_;
  std::byte* y_;
  cuda::GemmLibrary& library_;
};

// Tokens are spread uniformly at random over the experts, except that the shared experts, which are the last,
// get all tokens. For gate_up, a choice that needs sorted rows is measured together with the sorting before
// it. The rows of down are already sorted.
class ExpertOperands final : public Operands {
 public:
  ExpertOperands(const ProductSpec& product, int64_t tokens, OperandMemory& memory, CudaStream& stream)
      : product_(product),
        shape_(grouped_shape_of(product.name, product.hidden_size, product.rows(tokens), 0)),
        weights_(product.name, shape_.n, shape_.k, shape_.num_experts, memory) {
    const bool down = product.name.down;
    route(tokens, stream);
    x_ = Activations(product.name, down ? num_rows_ : tokens, shape_.k, memory);
    if (!down) sorted_ = Activations(product.name, num_rows_, shape_.k, memory, true);
    y_ = reinterpret_cast<bf16*>(memory.y(static_cast<size_t>(num_rows_ * shape_.n) * 2));
  }

  void launch(const cuda::Choice& choice, int call, const cuda::Launch& launch) override {
    const bool gathers = !product_.name.down;
    const bool sorts = gathers && cuda::wants_sorted(choice);
    if (sorts) {
      cuda::permute_rows({.x = x_.bf16_rows,
                          .x_quantized = x_.fp8_rows,
                          .token_of = token_of_.as<int32_t>(),
                          .y = sorted_.bf16_rows,
                          .y_quantized = sorted_.fp8_rows,
                          .num_rows = num_rows_,
                          .n = shape_.k},
                         launch);
    }
    const Activations& x = sorts ? sorted_ : x_;
    cuda::launch_grouped_linear(choice,
                                {.x = x.bf16_rows,
                                 .x_stride = x.stride,
                                 .x_quantized = x.fp8_rows,
                                 .token_of = gathers && !sorts ? token_of_.as<int32_t>() : nullptr,
                                 .expert_offsets = offsets_.as<int32_t>(),
                                 .num_rows = num_rows_,
                                 .num_experts = shape_.num_experts,
                                 .w = weights_.of_call(call),
                                 .expert_stride = weights_.stride,
                                 .expert_scale_stride = weights_.matrix_scales,
                                 .y = y_,
                                 .offsets_settled = !gathers},
                                launch);
  }
  int num_sets() const override { return weights_.sets; }
  double operations() const override { return 2.0 * static_cast<double>(num_rows_ * shape_.n * shape_.k); }

 private:
  void route(int64_t tokens, CudaStream& stream) {
    const int64_t routed = shape_.num_experts - product_.num_shared;
    const int64_t routed_rows = product_.rows(tokens) - product_.num_shared * tokens;
    std::vector<std::vector<int32_t>> rows(static_cast<size_t>(shape_.num_experts));
    std::mt19937_64 random(static_cast<uint64_t>(tokens));
    std::vector<int32_t> experts(static_cast<size_t>(routed));
    std::iota(experts.begin(), experts.end(), 0);
    // A token's experts are random and all differ. The number of experts per token is as equal as possible.
    for (int64_t token = 0; token < tokens; ++token) {
      const int64_t count = routed_rows * (token + 1) / tokens - routed_rows * token / tokens;
      for (int64_t i = 0; i < std::min(count, routed); ++i) {
        std::swap(experts[i], experts[i + static_cast<int64_t>(random() % (routed - i))]);
        rows[experts[i]].push_back(static_cast<int32_t>(token));
      }
      for (int64_t e = routed; e < shape_.num_experts; ++e) rows[e].push_back(static_cast<int32_t>(token));
    }
    std::vector<int32_t> offsets{0};
    std::vector<int32_t> token_of;
    for (const std::vector<int32_t>& expert : rows) {
      token_of.insert(token_of.end(), expert.begin(), expert.end());
      offsets.push_back(static_cast<int32_t>(token_of.size()));
    }
    num_rows_ = static_cast<int64_t>(token_of.size());
    offsets_ = DeviceBuffer(offsets.size() * 4);
    token_of_ = DeviceBuffer(std::max<size_t>(token_of.size(), 1) * 4);
    copy_to_device(offsets_.data(), offsets.data(), offsets.size() * 4, stream.handle());
    copy_to_device(token_of_.data(), token_of.data(), token_of.size() * 4, stream.handle());
    stream.synchronize();
  }

  const ProductSpec& product_;
  cuda::GroupedShape shape_;
  Weights weights_;
  int64_t num_rows_ = 0;
  DeviceBuffer offsets_, token_of_;
  bf16* y_ = nullptr;
  Activations x_, sorted_;
};

class GpuMeasurer final : public ChoiceMeasurer {
 public:
  GpuMeasurer(std::unique_ptr<Operands> operands, CudaStream& stream, int num_sms)
      : operands_(std::move(operands)), stream_(stream), num_sms_(num_sms) {}

  Result<double> measure(const cuda::Choice& choice, int replays) override {
    if (calls_ == 0) {  // the time of the first choice approximates those of the others
      calls_ = 2;
      const double us = time(graph_of(choice), 1);
      graphs_.clear();
      const int most = std::clamp(operands_->num_sets(), kCalls, kMostCalls);
      calls_ = static_cast<int>(std::clamp(kGraphUs / std::max(us, 1.0), 2.0, static_cast<double>(most)));
    }
    const double us = time(graph_of(choice), replays);
    // After work that heats the card, the card is left idle for as long as it was busy.
    if (operands_->operations() > kHotOperations * us) {
      const double busy = us * 1e-6 * calls_ * replays;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(busy, 0.1)));
    }
    return us;
  }

 private:
  // Builds the graph, and runs it once, if the choice is new.
  const CudaGraph& graph_of(const cuda::Choice& choice) {
    for (const auto& [made, graph] : graphs_) {
      if (made == choice) return graph;
    }
    const cuda::Launch launch{.stream = stream_.handle(), .num_sms = num_sms_};
    graphs_.emplace_back(choice, graph_of_calls(
                                     stream_, [&](int i) { operands_->launch(choice, i, launch); }, calls_));
    const CudaGraph& graph = graphs_.back().second;
    graph.launch(stream_.handle());
    return graph;
  }

  // Returns microseconds per call: the median of the replays, which run one after another.
  double time(const CudaGraph& graph, int replays) {
    while (events_.size() < 2 * static_cast<size_t>(replays)) events_.emplace_back(true);
    for (int i = 0; i < replays; ++i) {
      events_[2 * i].record(stream_.handle());
      graph.launch(stream_.handle());
      events_[2 * i + 1].record(stream_.handle());
    }
    stream_.synchronize();
    std::vector<double> times;
    for (int i = 0; i < replays; ++i) {
      times.push_back(static_cast<double>(events_[2 * i + 1].ms_since(events_[2 * i])) * 1e3 / calls_);
    }
    std::nth_element(times.begin(), times.begin() + replays / 2, times.end());
    return times[static_cast<size_t>(replays / 2)];
  }

  std::unique_ptr<Operands> operands_;
  CudaStream& stream_;
  int num_sms_;
  int calls_ = 0;  // calls per graph
  std::vector<std::pair<cuda::Choice, CudaGraph>> graphs_;
  std::vector<CudaEvent> events_;
};

class GpuMeasurerSource final : public MeasurerSource {
 public:
  GpuMeasurerSource() : info_(cuda_device_info(kDevice)), memory_(stream_) {}
  std::string device_name() const override { return info_.name; }
  int num_sms() const override { return info_.num_sms; }
  Result<std::unique_ptr<ChoiceMeasurer>> measurer(const ProductSpec& product, int64_t batch) override {
    try {
      std::unique_ptr<Operands> operands;
      if (product.name.num_experts > 0)
        operands = std::make_unique<ExpertOperands>(product, batch, memory_, stream_);
      else
        operands = std::make_unique<DenseOperands>(product, batch, library_, memory_);
      return std::unique_ptr<ChoiceMeasurer>(
          std::make_unique<GpuMeasurer>(std::move(operands), stream_, info_.num_sms));
    } catch (const OutOfDeviceMemory& error) {
      return make_status(StatusCode::kResourceExhausted, "{} m {}: {}", product.label, batch, error.what());
    }
  }

 private:
  CudaDeviceInfo info_;
  CudaStream stream_;
  OperandMemory memory_;
  cuda::GemmLibrary library_;
};

}  // namespace

Result<std::unique_ptr<MeasurerSource>> open_gpu_measurers() {
  const cuda::Availability cuda = cuda::availability();
  if (!cuda.usable) return make_status(StatusCode::kUnsupported, "tuning needs a GPU: {}", cuda.reason);
  cuda_set_device(kDevice);
  return std::unique_ptr<MeasurerSource>(std::make_unique<GpuMeasurerSource>());
}

}  // namespace hadal
