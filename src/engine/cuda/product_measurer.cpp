// Where `hadal tune` measures: products on GPU 0 as the engine runs them, in graphs, weights rotated past the
// L2, operands with the values of trained models. A card is let rest between measurements, for a hot one is
// slower by up to a third (bench/cuda/cool_timer.h).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <random>
#include <thread>

#include "engine/tuner.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/availability.h"
#include "kernels/cuda/gemm/variants.h"
#include "kernels/cuda/moe/variants.h"
#include "tensor/cuda.h"
#include "tensor/graph_timer.h"
#include "tensor/random_operands.h"

namespace hadal {
namespace {

constexpr int kDevice = 0;
constexpr int kCalls = 16;                      // of a graph, at most
constexpr double kMostGraphUs = 2500;           // of a graph: fewer calls of what is long
constexpr size_t kMostBytes = size_t{8} << 30;  // of rotated weights
constexpr int64_t kRows = 128;                  // rows of activations are a multiple of it

bool is_fp8(const KernelConfigName& name) {
  return name.type == WeightType::kFp8Block;
}

// A product's operands at one batch size, and what launches it with a choice.
class Operands {
 public:
  virtual ~Operands() = default;
  virtual void launch(const cuda::Choice& choice, int call, const cuda::Launch& launch) = 0;
  virtual int num_sets() const = 0;
};

// Matrices of [n, k] with their scales, `sets` times `count` of them.
struct Weights {
  Weights(const KernelConfigName& name, int64_t n, int64_t k, int64_t count, CudaStream& stream) {
    const bool fp8 = is_fp8(name);
    const int64_t row = fp8 ? cuda::round_up(k, cuda::kQuantGroup) : k;
    stride = n * row;
    bytes = static_cast<size_t>(count * stride * weight_element_bytes(name.type));
    sets = num_rotating_sets(bytes);
    while (sets > 1 && bytes * static_cast<size_t>(sets) > kMostBytes) --sets;
    const auto elements = static_cast<size_t>(sets * count * stride);
    scale_stride = row / cuda::kQuantGroup;
    matrix_scales = cuda::round_up(n, cuda::kQuantGroup) / cuda::kQuantGroup * scale_stride;
    if (fp8) {
      data = random_e4m3(elements, stream);
      scales =
          random_scales(static_cast<size_t>(count * matrix_scales), stream, std::sqrt(static_cast<float>(k)));
    } else if (name.type == WeightType::kF32) {
      data = random_scales(elements, stream, std::sqrt(static_cast<float>(k)));
    } else {
      data = random_bf16(elements, stream, 1.0F / std::sqrt(static_cast<float>(k)));
    }
    first = {.type = name.type, .n = n, .k = k, .row_stride = row};
  }
  MatrixWeight of_call(int call) const {
    MatrixWeight w = first;
    w.data = data.data() + static_cast<size_t>(call % sets) * bytes;
    if (scales.size() > 0) {
      w.scales = scales.as<float>();
      w.scale_stride = scale_stride;
    }
    return w;
  }

  DeviceBuffer data, scales;
  MatrixWeight first;
  int64_t stride = 0, scale_stride = 0, matrix_scales = 0;
  size_t bytes = 0;
  int sets = 1;
};

// Rows of activations in the weights' type.
struct Activations {
  Activations() = default;
  Activations(const KernelConfigName& name, int64_t rows, int64_t k, CudaStream& stream)
      : padded_rows(cuda::round_up(rows, kRows)), fp8(is_fp8(name)) {
    const int64_t width = cuda::round_up(k, cuda::kQuantGroup);
    stride = fp8 ? width : k;
    if (fp8) {
      data = random_e4m3(static_cast<size_t>(padded_rows * width), stream);
      scales = random_scales(static_cast<size_t>(padded_rows * width / cuda::kQuantGroup), stream);
    } else {
      data = random_bf16(static_cast<size_t>(padded_rows * k), stream);
    }
  }
  const bf16* bf16_rows() const { return fp8 ? nullptr : data.as<bf16>(); }
  cuda::Fp8Rows fp8_rows() const {
    if (!fp8) return {};
    return {.codes = data.as<fp8_e4m3>(),
            .scales = scales.as<float>(),
            .stride = stride,
            .scale_stride = padded_rows,
            .power_of_two = false};
  }

  DeviceBuffer data, scales;
  int64_t padded_rows = 0, stride = 0;
  bool fp8 = false;
};

class DenseOperands final : public Operands {
 public:
  DenseOperands(const ProductSpec& product, int64_t m, cuda::GemmLibrary& library, CudaStream& stream)
      : m_(m),
        f32_y_(product.f32_y),
        weights_(product.name, product.name.n, product.name.k, 1, stream),
        x_(product.name, m, product.name.k, stream),
        y_(static_cast<size_t>(m * cuda::round_up(product.name.n, 8)) * (product.f32_y ? 4 : 2)),
        library_(library) {}

  void launch(const cuda::Choice& choice, int call, const cuda::Launch& launch) override {
    cuda::LinearParams p{.x = x_.bf16_rows(), .x_stride = x_.stride, .x_fp8 = x_.fp8_rows()};
    p.w = weights_.of_call(call);
    p.y = f32_y_ ? nullptr : y_.as<bf16>();
    p.y_f32 = f32_y_ ? y_.as<float>() : nullptr;
    p.y_stride = cuda::round_up(p.w.n, 8);
    p.m = m_;
    cuda::launch_linear(choice, p, library_, launch);
  }
  int num_sets() const override { return weights_.sets; }

 private:
  int64_t m_;
  bool f32_y_;
  Weights weights_;
  Activations x_;
  DeviceBuffer y_;
  cuda::GemmLibrary& library_;
};

// Tokens spread evenly over the experts, shared ones (the last) getting all. A choice that wants sorted rows
// is measured with the sorting in front of it, as gate_up has it; down finds its rows sorted.
class ExpertOperands final : public Operands {
 public:
  ExpertOperands(const ProductSpec& product, int64_t tokens, CudaStream& stream)
      : product_(product),
        shape_(grouped_shape_of(product.name, product.hidden_size, product.rows(tokens), 0)),
        weights_(product.name, shape_.n, shape_.k, shape_.num_experts, stream) {
    const bool down = product.name.down;
    route(tokens, stream);
    x_ = Activations(product.name, down ? num_rows_ : tokens, shape_.k, stream);
    if (!down) sorted_ = Activations(product.name, num_rows_, shape_.k, stream);
    y_ = DeviceBuffer(static_cast<size_t>(num_rows_ * shape_.n) * 2);
  }

  void launch(const cuda::Choice& choice, int call, const cuda::Launch& launch) override {
    const bool gathers = !product_.name.down;
    const bool sorts = gathers && cuda::wants_sorted(choice);
    if (sorts) {
      cuda::permute_rows({.x = x_.bf16_rows(),
                          .x_fp8 = x_.fp8_rows(),
                          .token_of = token_of_.as<int32_t>(),
                          .y = sorted_.fp8 ? nullptr : sorted_.data.as<bf16>(),
                          .y_fp8 = sorted_.fp8_rows(),
                          .num_rows = num_rows_,
                          .n = shape_.k},
                         launch);
    }
    const Activations& x = sorts ? sorted_ : x_;
    cuda::launch_grouped_linear(choice,
                                {.x = x.bf16_rows(),
                                 .x_stride = x.stride,
                                 .x_fp8 = x.fp8_rows(),
                                 .token_of = gathers && !sorts ? token_of_.as<int32_t>() : nullptr,
                                 .expert_offsets = offsets_.as<int32_t>(),
                                 .num_rows = num_rows_,
                                 .num_experts = shape_.num_experts,
                                 .w = weights_.of_call(call),
                                 .expert_stride = weights_.stride,
                                 .expert_scale_stride = weights_.matrix_scales,
                                 .y = y_.as<bf16>(),
                                 .offsets_settled = !gathers},
                                launch);
  }
  int num_sets() const override { return weights_.sets; }

 private:
  void route(int64_t tokens, CudaStream& stream) {
    const int64_t routed = shape_.num_experts - product_.num_shared;
    const int64_t routed_rows = product_.rows(tokens) - product_.num_shared * tokens;
    std::vector<std::vector<int32_t>> rows(static_cast<size_t>(shape_.num_experts));
    std::mt19937_64 random(static_cast<uint64_t>(tokens));
    std::vector<int32_t> experts(static_cast<size_t>(routed));
    std::iota(experts.begin(), experts.end(), 0);
    // Every token's experts are different ones; as many for each token as it comes out even.
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
  DeviceBuffer offsets_, token_of_, y_;
  Activations x_, sorted_;
};

class GpuMeasurer final : public ChoiceMeasurer {
 public:
  GpuMeasurer(std::unique_ptr<Operands> operands, CudaStream& stream, int num_sms)
      : operands_(std::move(operands)), stream_(stream), num_sms_(num_sms) {}

  Result<double> measure(const cuda::Choice& choice, int replays) override {
    const cuda::Launch launch{.stream = stream_.handle(), .num_sms = num_sms_};
    const auto call = [&](int i) { operands_->launch(choice, i, launch); };
    const int most = std::max(kCalls, std::min(operands_->num_sets(), 2 * kCalls));
    const int calls = calls_ == 0 ? 2 : calls_;
    const auto begin = std::chrono::steady_clock::now();
    const double us = time_in_graph(stream_, call, calls, replays);
    if (calls_ == 0) {  // the first choice says how long the others are about
      calls_ = static_cast<int>(std::clamp(kMostGraphUs / std::max(us, 1.0), 2.0, static_cast<double>(most)));
      return measure(choice, replays);
    }
    // As long a rest as the card was busy at least.
    const double busy = us * 1e-6 * calls * (replays + 3);
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() - busy;
    std::this_thread::sleep_for(std::chrono::duration<double>(std::clamp(busy - took, 0.0, 0.1)));
    return us;
  }

 private:
  std::unique_ptr<Operands> operands_;
  CudaStream& stream_;
  int num_sms_;
  int calls_ = 0;
};

class GpuMeasurerSource final : public MeasurerSource {
 public:
  GpuMeasurerSource() : info_(cuda_device_info(kDevice)) {}
  std::string device_name() const override { return info_.name; }
  int num_sms() const override { return info_.num_sms; }
  Result<std::unique_ptr<ChoiceMeasurer>> measurer(const ProductSpec& product, int64_t batch) override {
    try {
      std::unique_ptr<Operands> operands;
      if (product.name.num_experts > 0)
        operands = std::make_unique<ExpertOperands>(product, batch, stream_);
      else
        operands = std::make_unique<DenseOperands>(product, batch, library_, stream_);
      return std::unique_ptr<ChoiceMeasurer>(
          std::make_unique<GpuMeasurer>(std::move(operands), stream_, info_.num_sms));
    } catch (const OutOfDeviceMemory& error) {
      return make_status(StatusCode::kResourceExhausted, "{} m {}: {}", product.label, batch, error.what());
    }
  }

 private:
  CudaDeviceInfo info_;
  CudaStream stream_;
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
