// Experts as an engine runs them (model/cuda/device_feed_forward.cpp): router, gate and permutation, gathered
// or sorted products, activation, and the next norm, which sums the experts' rows into the residual. All
// these kernels form one call inside a CUDA graph. V3 at TP8 (256 experts of 256, top 8, one shared; FP8) and
// V2-Lite (64 of 1408, top 6, two shared; bf16; float16 on request).
//   cuda_experts_table_bench [--models v3_fp8,v2_bf16] [--m 1,64] [--no-stages] [--separate] [--splits N]
//       [--check] [--gate-up CHOICE] [--down CHOICE] [--kernel-config-dir DIR] [--json FILE]
// For few tokens, where few_experts is faster, its two kernels run: the router, then all of the experts.
// --separate runs the kernels for many tokens there too; --splits sets the splits of few tokens' gate_up;
// --check compares few tokens' rows with those of the separate kernels instead of measuring; a CHOICE is like
// "tiled 64x256 stages 5".
//
// The floor counts the weights of the distinct experts hit (`hit`, the mean over the calls of a graph, and
// the shared ones), router, inputs and residual, each read or written once. Router weights make tokens
// spread; each call of a graph has its own tokens and rotates over three sets of weights, so that no call
// finds data of another in the L2. Stages: the same chain cut off after each of its kernels; `us_to_gate_up`
// is the time from the beginning to the end of gate_up.
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/graph_timer.h"
#include "bench/cuda/measured_choices.h"
#include "bench/cuda/random_operands.h"
#include "bench/cuda/table_rows.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/experts/choice.h"
#include "kernels/cuda/experts/columns/columns.h"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/few/few_experts.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::bench {
namespace {

constexpr int kWeightSets = 3;

struct Model {
  const char* name;
  int routed, shared, top_k, num_groups, topk_groups;
  int64_t hidden, intermediate;
  bool is_fp8;
  GateKind kind;
  bool renormalize;
  float scaling_factor;
  std::vector<int64_t> rows;
  bool in_table = true;  // false: only with --models
  bool is_f16 = false;

  int experts() const { return routed + shared; }
  int slots() const { return top_k + shared; }
};
const std::array<Model, 5> kModels = {{
    {"v3_fp8", 256, 1, 8, 8, 4, 7168, 256, true, GateKind::kSigmoidNoAuxTc, true, 2.5F, {1, 4, 16, 64}},
    {"v2_bf16", 64, 2, 6, 1, 1, 2048, 1408, false, GateKind::kSoftmaxGreedy, false, 1.0F, {1, 16, 64, 4096}},
    {"v3_fp8_tp1",
     256,
     1,
     8,
     8,
     4,
     7168,
     2048,
     true,
     GateKind::kSigmoidNoAuxTc,
     true,
     2.5F,
     {1, 4, 16, 64},
     false},
    {"v2_bf16_tp8",
     64,
     2,
     6,
     1,
     1,
     2048,
     256,
     false,
     GateKind::kSoftmaxGreedy,
     false,
     1.0F,
     {1, 16, 64},
     false},
    {"v2_f16",
     64,
     2,
     6,
     1,
     1,
     2048,
     1408,
     false,
     GateKind::kSoftmaxGreedy,
     false,
     1.0F,
     {1, 16, 64, 4096},
     false,
     true},
}};

struct Choice {
  std::vector<std::string> models = {kModels[0].name, kModels[1].name};
  std::vector<int64_t> rows;  // empty: all
  bool stages = true;
  std::string json;
  std::filesystem::path kernel_configs;  // empty: there is none
  bool few = true;                       // run few tokens in two kernels (few_experts)
  int splits = 0;                        // splits of these kernels; 0: by shape
  std::string gate_up, down;             // forced choices; empty: there is none
  bool check = false;
};

// The chain, up to and including each stage.
enum class Stage { kRouter, kRoute, kPermute, kGateUp, kActivation, kDown, kCombine };
constexpr std::array<const char*, 6> kStageNames = {"us_to_router",  "us_to_route",      "us_to_permute",
                                                    "us_to_gate_up", "us_to_activation", "us_to_down"};

struct Weights {
  DeviceBuffer gate, bias, gate_up, gate_up_scales, down, down_scales, norm;

  Weights(const Model& model, CudaStream& stream) {
    const size_t per_product =
        static_cast<size_t>(model.experts() * kWeightSets) * model.hidden * model.intermediate;
    // Logits of N(0, 1): experts' scores differ, and none saturates.
    const float sigma = 1.0F / std::sqrt(static_cast<float>(model.hidden));
    const auto random_16_bit = [&](size_t count, float deviation) {
      return model.is_f16 ? random_f16(count, stream, deviation) : random_bf16(count, stream, deviation);
    };
    gate = random_16_bit(kWeightSets * model.routed * model.hidden, sigma);
    bias = DeviceBuffer(model.routed * 4);
    fill_device(bias.data(), 0, bias.size(), stream.handle());
    norm = random_scales(model.hidden, stream);
    if (model.is_fp8) {
      gate_up = random_e4m3(2 * per_product, stream);
      down = random_e4m3(per_product, stream);
      // Products of N(0, 1) rows with such weights are again about N(0, 1).
      gate_up_scales = random_scales(2 * per_product / (128 * 128), stream, 1.0F / sigma);
      down_scales =
          random_scales(per_product / (128 * 128), stream, std::sqrt(static_cast<float>(model.intermediate)));
    } else {
      gate_up = random_16_bit(2 * per_product, sigma);
      down = random_16_bit(per_product, 1.0F / std::sqrt(static_cast<float>(model.intermediate)));
    }
    stream.synchronize();
  }
};

// Inputs, results and workspace of m tokens.
class Chain {
 public:
  Chain(const Model& model, const Weights& weights, int64_t m, cuda::GemmLibrary& library, CudaStream& stream,
        const cuda::Launch& launch, const cuda::ProductChoices& choices, bool few, int splits)
      : model_(model),
        weights_(weights),
        m_(m),
        input_sets_(m <= 64 ? kInputSets : 2),
        num_rows_(m * model.slots()),
        library_(library),
        launch_(launch),
        choices_(choices) {
    const int64_t hidden = model.hidden;
    const int64_t wide = 2 * model.intermediate;
    x_ = model.is_f16 ? random_f16(input_sets_ * m * hidden, stream)
                      : random_bf16(input_sets_ * m * hidden, stream);
    residual_ = DeviceBuffer(m * hidden * 4);
    fill_device(residual_.data(), 0, residual_.size(), stream.handle());
    logits_ = DeviceBuffer(m * model.routed * 4);
    for (DeviceBuffer* buffer : {&topk_ids_, &topk_weights_, &token_of_, &row_of_})
      *buffer = DeviceBuffer(num_rows_ * 4);
    offsets_ = DeviceBuffer((model.experts() + 1) * 4);
    distinct_ = DeviceBuffer(kInputSets * 4);
    scratch_ = DeviceBuffer(cuda::route_scratch_bytes(m, model.experts()));
    arrived_ = DeviceBuffer(4);
    fill_device(arrived_.data(), 0, arrived_.size(), stream.handle());
    sorted_ = wants_sorted() ? DeviceBuffer(num_rows_ * hidden * 2) : DeviceBuffer();
    gate_up_ = DeviceBuffer(num_rows_ * wide * 2);
    activated_ = DeviceBuffer(num_rows_ * model.intermediate * 2);
    out_ = DeviceBuffer(num_rows_ * hidden * 2);
    y_ = DeviceBuffer(m * hidden * 2);
    y_scales_ = DeviceBuffer(hidden / 128 * stride(m) * 4);
    if (model.is_fp8) {
      x_codes_ = DeviceBuffer(input_sets_ * m * hidden);
      x_scales_ = DeviceBuffer(input_sets_ * hidden / 128 * stride(m) * 4);
      sorted_scales_ = DeviceBuffer(hidden / 128 * stride(num_rows_) * 4);
      activated_scales_ = DeviceBuffer(model.intermediate / 128 * stride(num_rows_) * 4);
      for (int i = 0; i < input_sets_; ++i)
        cuda::quantize_rows({.x = x(i), .x_stride = hidden, .m = m, .n = hidden, .y = x_quantized(i)},
                            launch_);
    }
    stream.synchronize();
    splits_ = splits;
    if (!few) return;
    const cuda::FewExpertsParams params = few_params(0, nullptr);
    const cuda::ExpertsShape shape = cuda::experts_shape(params, launch.num_sms);
    const int used = splits > 0 ? splits : cuda::few::splits_of(shape);
    few_ = cuda::few::is_faster(shape, used) && cuda::few::supports(shape, used);
    if (few_) few_scratch_ = DeviceBuffer(cuda::few::scratch_bytes(shape, used));
  }

  bool few() const { return few_; }
  // Copies the inputs of another chain of this model and m.
  void copy_inputs(const Chain& other, CudaStream& stream) const {
    copy_on_device(x_.data(), other.x_.data(), x_.size(), stream.handle());
    if (!model_.is_fp8) return;
    copy_on_device(x_codes_.data(), other.x_codes_.data(), x_codes_.size(), stream.handle());
    copy_on_device(x_scales_.data(), other.x_scales_.data(), x_scales_.size(), stream.handle());
  }
  std::vector<uint16_t> rows_of(int call, CudaStream& stream) const {
    fill_device(out_.data(), 0xff, out_.size(), stream.handle());
    run(call, Stage::kDown);
    std::vector<uint16_t> rows(num_rows_ * model_.hidden);
    copy_to_host(rows.data(), out_.data(), rows.size() * 2, stream.handle());
    stream.synchronize();
    return rows;
  }

  bool wants_sorted() const { return cuda::wants_sorted(first_shape(), &choices_.grouped); }

  // distinct: receives the number of routed experts hit; null: not wanted.
  void run(int call, Stage last, int32_t* distinct = nullptr) const {
    const int64_t hidden = model_.hidden;
    const size_t set = call % kWeightSets;
    if (few_) {
      const cuda::FewExpertsParams params = few_params(call, distinct);
      few_experts(params, cuda::FewStage::kRouter, launch_);
      if (distinct == nullptr && (last == Stage::kRouter || last == Stage::kRoute)) return;
      few_experts(params, cuda::FewStage::kExperts, launch_);
      if (last == Stage::kCombine) combine();
      return;
    }
    const auto* gate = weights_.gate.as<uint16_t>() + set * model_.routed * hidden;
    cuda::linear(
        {.x = x(call),
         .x_stride = hidden,
         .w = {.data = gate, .type = gate_type(), .n = model_.routed, .k = hidden, .row_stride = hidden},
         .y_f32 = logits_.as<float>(),
         .y_stride = model_.routed,
         .m = m_},
        library_, launch_);
    if (last == Stage::kRouter) return;
    route(distinct);
    if (last == Stage::kRoute) return;
    const uint16_t* rows = x(call);
    cuda::QuantizedRows fp8_rows = x_quantized(call);
    const int32_t* gather = token_of_.as<int32_t>();
    if (activates()) {
      run_in_columns(call, last);
      return;
    }
    if (wants_sorted()) {
      cuda::QuantizedRows sorted;
      if (model_.is_fp8) sorted = fp8(sorted_, sorted_scales_, num_rows_, hidden);
      uint16_t* sorted_rows = model_.is_fp8 ? nullptr : sorted_.as<uint16_t>();
      cuda::permute_rows({.x = model_.is_fp8 ? nullptr : rows,
                          .x_quantized = fp8_rows,
                          .token_of = gather,
                          .y = sorted_rows,
                          .y_quantized = sorted,
                          .num_rows = num_rows_,
                          .n = hidden},
                         launch_);
      rows = sorted_rows;
      fp8_rows = sorted;
      gather = nullptr;
    }
    if (last == Stage::kPermute) return;
    const int64_t wide = 2 * model_.intermediate;
    grouped(rows, fp8_rows, gather, weights_.gate_up, weights_.gate_up_scales, set, wide, hidden, gate_up_,
            false);
    if (last == Stage::kGateUp) return;
    cuda::QuantizedRows activated;
    if (model_.is_fp8) activated = fp8(activated_, activated_scales_, num_rows_, model_.intermediate);
    cuda::silu_mul({.x = gate_up_.as<uint16_t>(),
                    .m = num_rows_,
                    .n = model_.intermediate,
                    .y = model_.is_fp8 ? nullptr : activated_.as<uint16_t>(),
                    .y_quantized = activated,
                    .f16 = model_.is_f16},
                   launch_);
    if (last == Stage::kActivation) return;
    down_and_combine(set, activated, last);
  }

  // True if gate and up include their activation: for many rows in 16 bits.
  bool activates() const { return cuda::activates_in_columns(first_shape(), &choices_.grouped); }

  // Returns how many routed experts a call hits, the mean over `calls` calls.
  double mean_hit(int calls, CudaStream& stream) const {
    const int counted = std::min(calls, kInputSets);
    for (int i = 0; i < counted; ++i) run(i, Stage::kRoute, distinct_.as<int32_t>() + i);
    std::array<int32_t, kInputSets> hit = {};
    copy_to_host(hit.data(), distinct_.data(), counted * 4, stream.handle());
    stream.synchronize();
    double sum = 0.0;
    for (int i = 0; i < counted; ++i) sum += hit[i];
    return sum / counted;
  }

  double bytes(double hit) const {
    const auto hidden = static_cast<double>(model_.hidden);
    const double element = model_.is_fp8 ? 1.0 + 4.0 / (128 * 128) : 2.0;
    const double expert = 3.0 * hidden * static_cast<double>(model_.intermediate) * element;
    const double token =
        4.0 + 8.0;  // x and y (FP8: x in bf16 and codes, y in codes), residual read and written
    return (hit + model_.shared) * expert + 2.0 * model_.routed * hidden +
           static_cast<double>(m_) * hidden * token;
  }
  double flop() const {
    const auto rows = static_cast<double>(num_rows_);
    return 6.0 * rows * static_cast<double>(model_.hidden * model_.intermediate) +
           2.0 * static_cast<double>(m_ * model_.routed * model_.hidden);
  }

 private:
  static constexpr int kInputSets = 16;

  static int64_t stride(int64_t rows) { return cuda::round_up(rows, 4); }
  WeightType gate_type() const { return model_.is_f16 ? WeightType::kF16 : WeightType::kBF16; }
  WeightType type() const { return model_.is_fp8 ? WeightType::kFp8Block : gate_type(); }
  const uint16_t* x(int call) const { return x_.as<uint16_t>() + call % input_sets_ * m_ * model_.hidden; }
  cuda::QuantizedRows x_quantized(int call) const {
    if (!model_.is_fp8) return {};
    const int64_t set = call % input_sets_;
    return {.codes = x_codes_.as<fp8_e4m3>() + set * m_ * model_.hidden,
            .scales = x_scales_.as<float>() + set * (model_.hidden / 128) * stride(m_),
            .stride = model_.hidden,
            .scale_stride = stride(m_),
            .power_of_two = false};
  }
  static cuda::QuantizedRows fp8(const DeviceBuffer& codes, const DeviceBuffer& scales, int64_t rows,
                                 int64_t width) {
    return {.codes = codes.as<fp8_e4m3>(),
            .scales = scales.as<float>(),
            .stride = width,
            .scale_stride = stride(rows),
            .power_of_two = false};
  }

  cuda::GroupedShape first_shape() const {
    return {.type = type(),
            .num_rows = num_rows_,
            .rows_a_token = model_.slots(),
            .num_experts = model_.experts(),
            .n = 2 * model_.intermediate,
            .k = model_.hidden,
            .num_sms = launch_.num_sms};
  }

  // Runs the chain from the sorting of rows on.
  void run_in_columns(int call, Stage last) const {
    const int64_t hidden = model_.hidden;
    const size_t set = call % kWeightSets;
    cuda::spread_rows({.x = x(call),
                       .row_of = row_of_.as<int32_t>(),
                       .num_slots = model_.slots(),
                       .top_k = model_.top_k,
                       .y = sorted_.as<uint16_t>(),
                       .m = m_,
                       .n = hidden},
                      launch_);
    if (last == Stage::kPermute) return;
    const int64_t expert = 2 * model_.intermediate * hidden;
    cuda::expert_columns({.f16 = model_.is_f16,
                          .x = sorted_.as<uint16_t>(),
                          .x_stride = hidden,
                          .num_x_rows = m_ * model_.top_k,
                          .tokens = model_.shared > 0 ? x(call) : nullptr,
                          .tokens_stride = hidden,
                          .num_tokens = m_,
                          .direct_from = model_.routed,
                          .expert_offsets = offsets_.as<int32_t>(),
                          .num_rows = num_rows_,
                          .num_experts = model_.experts(),
                          .w = weights_.gate_up.as<uint16_t>() + set * model_.experts() * expert,
                          .w_row_stride = hidden,
                          .expert_stride = expert,
                          .n = model_.intermediate,
                          .k = hidden,
                          .y = activated_.as<uint16_t>(),
                          .activated = true},
                         launch_);
    if (last == Stage::kGateUp || last == Stage::kActivation) return;
    down_and_combine(set, {}, last);
  }

  void down_and_combine(size_t set, const cuda::QuantizedRows& activated, Stage last) const {
    const int64_t hidden = model_.hidden;
    grouped(activated_.as<uint16_t>(), activated, nullptr, weights_.down, weights_.down_scales, set, hidden,
            model_.intermediate, out_, true);
    if (last == Stage::kDown) return;
    combine();
  }

  void combine() const {
    const int64_t hidden = model_.hidden;
    cuda::QuantizedRows y;
    if (model_.is_fp8) y = fp8(y_, y_scales_, m_, hidden);
    cuda::add_rms_norm({.input = {.expert_rows = out_.as<uint16_t>(),
                                  .row_of = row_of_.as<int32_t>(),
                                  .weights = topk_weights_.as<float>(),
                                  .top_k = model_.slots()},
                        .residual = residual_.as<float>(),
                        .weight = weights_.norm.as<float>(),
                        .y = model_.is_fp8 ? nullptr : y_.as<uint16_t>(),
                        .y_quantized = y,
                        .m = m_,
                        .n = hidden,
                        .f16 = model_.is_f16},
                       launch_);
  }

  cuda::RouteParams route_params(int32_t* distinct) const {
    return {.logits = logits_.as<float>(),
            .bias = model_.kind == GateKind::kSigmoidNoAuxTc ? weights_.bias.as<float>() : nullptr,
            .m = m_,
            .num_experts = model_.routed,
            .num_shared = model_.shared,
            .top_k = model_.top_k,
            .num_groups = model_.num_groups,
            .topk_groups = model_.topk_groups,
            .kind = model_.kind,
            .renormalize = model_.renormalize,
            .scaling_factor = model_.scaling_factor,
            .topk_ids = topk_ids_.as<int32_t>(),
            .topk_weights = topk_weights_.as<float>(),
            .expert_offsets = offsets_.as<int32_t>(),
            .token_of = token_of_.as<int32_t>(),
            .row_of = row_of_.as<int32_t>(),
            .num_distinct = distinct,
            .scratch = scratch_.data(),
            .arrived = arrived_.as<int32_t>()};
  }
  void route(int32_t* distinct) const { cuda::route(route_params(distinct), launch_); }

  cuda::FewExpertsParams few_params(int call, int32_t* distinct) const {
    const size_t set = call % kWeightSets;
    const int64_t hidden = model_.hidden;
    const int64_t expert = 2 * model_.intermediate * hidden;
    const auto weights = [&](const DeviceBuffer& w, const DeviceBuffer& scales, int64_t n, int64_t k) {
      const size_t first = set * model_.experts() * n * k;
      return MatrixWeight{.data = w.data() + first * (model_.is_fp8 ? 1 : 2),
                          .type = type(),
                          .n = n,
                          .k = k,
                          .row_stride = k,
                          .scales = model_.is_fp8 ? scales.as<float>() + first / (128 * 128) : nullptr,
                          .scale_stride = model_.is_fp8 ? k / 128 : 0};
    };
    return {.x = x(call),
            .x_stride = hidden,
            .x_quantized = x_quantized(call),
            .gate = {.data = weights_.gate.as<uint16_t>() + set * model_.routed * hidden,
                     .type = gate_type(),
                     .n = model_.routed,
                     .k = hidden,
                     .row_stride = hidden},
            .route = route_params(distinct),
            .gate_up = weights(weights_.gate_up, weights_.gate_up_scales, 2 * model_.intermediate, hidden),
            .gate_up_stride = expert,
            .gate_up_scale_stride = model_.is_fp8 ? expert / (128 * 128) : 0,
            .down = weights(weights_.down, weights_.down_scales, hidden, model_.intermediate),
            .down_stride = expert / 2,
            .down_scale_stride = model_.is_fp8 ? expert / 2 / (128 * 128) : 0,
            .y = out_.as<uint16_t>(),
            .scratch = few_scratch_.data(),
            .splits = splits_};
  }

  void grouped(const uint16_t* rows, const cuda::QuantizedRows& fp8_rows, const int32_t* gather,
               const DeviceBuffer& w, const DeviceBuffer& scales, size_t set, int64_t n, int64_t k,
               const DeviceBuffer& y, bool offsets_settled) const {
    const int64_t scales_an_expert = (n / 128) * (k / 128);
    const size_t element = model_.is_fp8 ? 1 : 2;
    cuda::grouped_linear(
        {.x = model_.is_fp8 ? nullptr : rows,
         .x_stride = k,
         .x_quantized = fp8_rows,
         .token_of = gather,
         .expert_offsets = offsets_.as<int32_t>(),
         .num_rows = num_rows_,
         .rows_a_token = model_.slots(),
         .num_experts = model_.experts(),
         .w = {.data = w.data() + set * model_.experts() * n * k * element,
               .type = type(),
               .n = n,
               .k = k,
               .row_stride = k,
               .scales =
                   model_.is_fp8 ? scales.as<float>() + set * model_.experts() * scales_an_expert : nullptr,
               .scale_stride = model_.is_fp8 ? k / 128 : 0},
         .expert_stride = n * k,
         .expert_scale_stride = model_.is_fp8 ? scales_an_expert : 0,
         .y = y.as<uint16_t>(),
         .offsets_settled = offsets_settled},
        launch_, &choices_.grouped);
  }

  const Model& model_;
  const Weights& weights_;
  const int64_t m_;
  const int input_sets_;
  const int64_t num_rows_;
  cuda::GemmLibrary& library_;
  const cuda::Launch& launch_;
  const cuda::ProductChoices& choices_;
  DeviceBuffer x_, x_codes_, x_scales_, residual_, logits_, topk_ids_, topk_weights_, token_of_, row_of_,
      offsets_, distinct_, scratch_, arrived_, sorted_, sorted_scales_, gate_up_, activated_,
      activated_scales_, out_, y_, y_scales_, few_scratch_;
  bool few_ = false;
  int splits_ = 0;
};

double relative_error(const std::vector<uint16_t>& out, const std::vector<uint16_t>& ref, bool is_f16) {
  const auto value = [&](uint16_t bits) {
    return static_cast<double>(is_f16 ? to_float(f16{bits}) : to_float(bf16{bits}));
  };
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < ref.size(); ++i) {
    const double r = value(ref[i]);
    difference += std::pow(value(out[i]) - r, 2);
    norm += r * r;
  }
  return std::sqrt(difference / norm);
}

// Bound for two orders of float32 sums and one rounding to 16 bits, as in the products' tests.
constexpr double kMostDifference = 2.5e-3;

// Compares few tokens' rows with those of the separate kernels over some calls; returns false if they differ
// or contain NaN.
bool check(const Model& model, int64_t m, const Chain& chain, const Chain& separate, CudaStream& stream) {
  double worst = 0.0;
  separate.copy_inputs(chain, stream);
  for (int call = 0; call < 6; ++call) {
    const double error =
        relative_error(chain.rows_of(call, stream), separate.rows_of(call, stream), model.is_f16);
    if (!std::isnan(worst) && !(error <= worst)) worst = error;
  }
  const bool right = worst < kMostDifference;
  fmt::print("check {} m {}: {:.2e}{}\n", model.name, m, worst, right ? "" : "  WRONG");
  return right;
}

cuda::ProductChoices with_forced(const cuda::ProductChoices& loaded, const Choice& choice, const Model& model,
                                 int64_t m) {
  cuda::ProductChoices choices = loaded;
  const WeightType type = model.is_fp8   ? WeightType::kFp8Block
                          : model.is_f16 ? WeightType::kF16
                                         : WeightType::kBF16;
  const auto force = [&](const std::string& text, int64_t n, int64_t k) {
    if (text.empty()) return;
    choices.grouped.set(type, model.experts(), n, k, m * model.slots(), cuda::parse_choice(text).value());
  };
  force(choice.gate_up, 2 * model.intermediate, model.hidden);
  force(choice.down, model.hidden, model.intermediate);
  return choices;
}

int run_models(const Choice& choice) {
  Table table(choice.json, false);
  CudaStream stream;
  CoolTimer timer;
  cuda::GemmLibrary library;
  const CudaDeviceInfo info = cuda_device_info(0);
  const cuda::Launch launch{.stream = stream.handle(), .num_sms = info.num_sms};
  const cuda::ProductChoices loaded = measured_choices(choice.kernel_configs, info);
  table.print_head();
  bool right = true;
  for (const Model& model : kModels) {
    if (std::find(choice.models.begin(), choice.models.end(), model.name) == choice.models.end()) continue;
    const Weights weights(model, stream);
    for (const int64_t m : choice.rows.empty() ? model.rows : choice.rows) {
      const cuda::ProductChoices choices = with_forced(loaded, choice, model, m);
      const auto chain_of = [&](bool few) {
        return Chain(model, weights, m, library, stream, launch, choices, few, choice.splits);
      };
      if (choice.check) {
        const Chain chain = chain_of(true);
        const Chain separate = chain_of(false);
        if (chain.few() && !check(model, m, chain, separate, stream)) right = false;
        continue;
      }
      table.add("", [&] {
        const Chain chain = chain_of(choice.few);
        const auto time_to = [&](Stage last) {
          return time_call(
              stream, timer, [&](int i) { chain.run(i, last); }, kWeightSets);
        };
        const double hit = chain.mean_hit(16, stream);
        TableRow row{.kind = fmt::format("moe_{}", model.name),
                     .shape = {m, model.hidden, model.intermediate, model.experts()},
                     .time = time_to(Stage::kCombine),
                     .bytes = chain.bytes(hit),
                     .flop = chain.flop(),
                     .teraflops = model.is_fp8 ? kFp8Teraflops : kBf16Teraflops,
                     .goal = model.in_table ? moe_goal(model.is_fp8, m) : Goal{},
                     .more = {{"hit", hit}}};
        for (size_t i = 0; choice.stages && i < kStageNames.size(); ++i) {
          const auto stage = static_cast<Stage>(i);
          if (stage == Stage::kPermute && !chain.wants_sorted()) continue;
          if (stage == Stage::kActivation && chain.activates()) continue;
          if (stage != Stage::kRouter && stage != Stage::kDown && chain.few()) continue;
          row.more.emplace_back(kStageNames[i], time_to(stage).us);
        }
        return row;
      });
    }
  }
  table.print_summary();
  return right ? 0 : 1;
}

int usage(const std::string& what) {
  fmt::print(stderr,
             "{}\ncuda_experts_table_bench [--models v3_fp8,v2_bf16] [--m 1,64] [--no-stages] "
             "[--separate] [--splits N] [--check] [--gate-up CHOICE] [--down CHOICE] "
             "[--kernel-config-dir DIR] [--json FILE]\n",
             what);
  return 2;
}

int run(int argc, char** argv) {
  Choice choice;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--no-stages") {
      choice.stages = false;
    } else if (arg == "--separate") {
      choice.few = false;
    } else if (arg == "--check") {
      choice.check = true;
    } else if (arg == "--splits" && i + 1 < argc) {
      choice.splits = static_cast<int>(numbers("--splits", argv[++i]).front());
    } else if (arg == "--gate-up" && i + 1 < argc) {
      choice.gate_up = argv[++i];
    } else if (arg == "--down" && i + 1 < argc) {
      choice.down = argv[++i];
    } else if (arg == "--json" && i + 1 < argc) {
      choice.json = argv[++i];
    } else if (arg == "--kernel-config-dir" && i + 1 < argc) {
      choice.kernel_configs = argv[++i];
    } else if (arg == "--m" && i + 1 < argc) {
      choice.rows = numbers("--m", argv[++i]);
      if (*std::min_element(choice.rows.begin(), choice.rows.end()) < 1)
        return usage("--m: counts of tokens, from 1 on");
    } else if (arg == "--models" && i + 1 < argc) {
      choice.models = words_of(argv[++i]);
      for (const std::string& name : choice.models) {
        if (std::none_of(kModels.begin(), kModels.end(),
                         [&](const Model& model) { return name == model.name; }))
          return usage(fmt::format("unknown model '{}'", name));
      }
    } else {
      return usage(fmt::format("unknown argument, or one without its value: '{}'", arg));
    }
  }
  return run_models(choice);
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
