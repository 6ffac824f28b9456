// Measures experts for many tokens, kernel by kernel and as chains: V2-Lite's layer in bf16 (64 experts of
// 1408 × 2048, top 6, two shared) from the router to the next norm, in several variants.
//   cuda_experts_large_bench [TOKENS [PASSES]]
// "kernel" rows are one kernel alone, on a cool card, and "chain" rows are all kernels of a layer. Both have
// the microseconds and TFLOP/s of each pass, and the clock of the last pass. Weights rotate over three sets.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/random_operands.h"
#include "bench/cuda/table_rows.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/experts/columns/columns.h"
#include "kernels/cuda/experts/variants.h"
#include "kernels/cuda/gemm/gemm.h"

namespace hadal::bench {
namespace {

constexpr int kRouted = 64, kShared = 2, kTopK = 6;
constexpr int kExperts = kRouted + kShared, kSlots = kTopK + kShared;
constexpr int64_t kHidden = 2048, kIntermediate = 1408;
constexpr int kSets = 3;

struct Layer {
  explicit Layer(int64_t tokens) : m(tokens), rows(tokens * kSlots) {
    launch = {.stream = stream.handle(), .num_sms = cuda_device_info(0).num_sms};
    const float sigma = 1.0F / std::sqrt(static_cast<float>(kHidden));
    gate = random_bf16(kSets * kRouted * kHidden, stream, sigma);
    gate_up = random_bf16(kSets * 2 * kExperts * kHidden * kIntermediate, stream, sigma);
    down = random_bf16(kSets * kExperts * kHidden * kIntermediate, stream,
                       1.0F / std::sqrt(static_cast<float>(kIntermediate)));
    norm = random_scales(kHidden, stream);
    x = random_bf16(2 * m * kHidden, stream);
    residual = DeviceBuffer(m * kHidden * 4);
    fill_device(residual.data(), 0, residual.size(), stream.handle());
    logits = DeviceBuffer(m * kRouted * 4);
    for (DeviceBuffer* b : {&ids, &weights, &token_of, &row_of}) *b = DeviceBuffer(rows * 4);
    offsets = DeviceBuffer((kExperts + 1) * 4);
    scratch = DeviceBuffer(cuda::route_scratch_bytes(m, kExperts));
    arrived = DeviceBuffer(4);
    fill_device(arrived.data(), 0, arrived.size(), stream.handle());
    sorted = DeviceBuffer(rows * kHidden * 2);
    wide = DeviceBuffer(rows * kIntermediate * 4);
    activated = DeviceBuffer(rows * kIntermediate * 2);
    out = DeviceBuffer(rows * kHidden * 2);
    y = DeviceBuffer(m * kHidden * 2);
  }
  const bf16* tokens(int i) const { return x.as<bf16>() + i % 2 * m * kHidden; }

  void router(int i) {
    cuda::linear({.x = tokens(i),
                  .x_stride = kHidden,
                  .w = {.data = gate.as<bf16>() + i % kSets * kRouted * kHidden,
                        .type = WeightType::kBF16,
                        .n = kRouted,
                        .k = kHidden,
                        .row_stride = kHidden},
                  .y_f32 = logits.as<float>(),
                  .y_stride = kRouted,
                  .m = m},
                 library, launch);
  }
  void route(int) {
    cuda::route({.logits = logits.as<float>(),
                 .m = m,
                 .num_experts = kRouted,
                 .num_shared = kShared,
                 .top_k = kTopK,
                 .kind = GateKind::kSoftmaxGreedy,
                 .renormalize = false,
                 .topk_ids = ids.as<int32_t>(),
                 .topk_weights = weights.as<float>(),
                 .expert_offsets = offsets.as<int32_t>(),
                 .token_of = token_of.as<int32_t>(),
                 .row_of = row_of.as<int32_t>(),
                 .scratch = scratch.data(),
                 .arrived = arrived.as<int32_t>()},
                launch);
  }
  void permute(int i, int64_t count) {
    cuda::permute_rows({.x = tokens(i),
                        .token_of = token_of.as<int32_t>(),
                        .y = sorted.as<bf16>(),
                        .num_rows = count,
                        .n = kHidden},
                       launch);
  }
  void spread(int i) {
    cuda::spread_rows({.x = tokens(i),
                       .row_of = row_of.as<int32_t>(),
                       .num_slots = kSlots,
                       .top_k = kTopK,
                       .y = sorted.as<bf16>(),
                       .m = m,
                       .n = kHidden},
                      launch);
  }
  void grouped(int i, bool first) {
    const int64_t n = first ? 2 * kIntermediate : kHidden;
    const int64_t k = first ? kHidden : kIntermediate;
    const DeviceBuffer& w = first ? gate_up : down;
    cuda::launch_grouped_linear(cuda::grouped_tile(cuda::GroupedTile::k128x128),
                                {.x = (first ? sorted : activated).as<bf16>(),
                                 .x_stride = k,
                                 .expert_offsets = offsets.as<int32_t>(),
                                 .num_rows = rows,
                                 .num_experts = kExperts,
                                 .w = {.data = w.as<bf16>() + i % kSets * kExperts * n * k,
                                       .type = WeightType::kBF16,
                                       .n = n,
                                       .k = k,
                                       .row_stride = k},
                                 .expert_stride = n * k,
                                 .y = (first ? wide : out).as<bf16>()},
                                launch);
  }
  void silu(int) {
    cuda::silu_mul({.x = wide.as<bf16>(), .m = rows, .n = kIntermediate, .y = activated.as<bf16>()}, launch);
  }
  void columns(int i, bool first) {
    const bool direct = first;
    const int64_t n = first ? kIntermediate : kHidden;
    const int64_t k = first ? kHidden : kIntermediate;
    const int64_t w_rows = first ? 2 * n : n;
    cuda::expert_columns({.x = (first ? sorted : activated).as<bf16>(),
                          .x_stride = k,
                          .num_x_rows = rows,
                          .tokens = direct ? tokens(i) : nullptr,
                          .tokens_stride = k,
                          .num_tokens = m,
                          .direct_from = kRouted,
                          .expert_offsets = offsets.as<int32_t>(),
                          .num_rows = rows,
                          .num_experts = kExperts,
                          .w = (first ? gate_up : down).as<bf16>() + i % kSets * kExperts * w_rows * k,
                          .w_row_stride = k,
                          .expert_stride = w_rows * k,
                          .n = n,
                          .k = k,
                          .y = (first ? activated : out).as<bf16>(),
                          .activated = first},
                         launch);
  }
  void add_norm(int) {
    cuda::add_rms_norm({.input = {.expert_rows = out.as<bf16>(),
                                  .row_of = row_of.as<int32_t>(),
                                  .weights = weights.as<float>(),
                                  .top_k = kSlots},
                        .residual = residual.as<float>(),
                        .weight = norm.as<float>(),
                        .y = y.as<bf16>(),
                        .m = m,
                        .n = kHidden},
                       launch);
  }
  double product_flop() const { return 6.0 * static_cast<double>(rows * kHidden * kIntermediate); }

  CudaStream stream;
  cuda::Launch launch;
  cuda::GemmLibrary library;
  int64_t m, rows;
  DeviceBuffer gate, gate_up, down, norm, x, residual, logits, ids, weights, token_of, row_of, offsets,
      scratch, arrived, sorted, wide, activated, out, y;
};

int run(int argc, char** argv) {
  const int64_t m = argc > 1 ? std::atoll(argv[1]) : 4096;
  const int passes = argc > 2 ? std::atoi(argv[2]) : 2;
  Layer l(m);
  CoolTimer timer;
  const double first = l.product_flop() * 2 / 3;
  const double second = l.product_flop() / 3;
  const double all = l.product_flop() + 2.0 * static_cast<double>(m * kRouted * kHidden);
  struct Row {
    std::string name;
    double flop, bytes;
    std::function<void(int)> call;
  };
  const auto d = [](int64_t v) { return static_cast<double>(v); };
  const double width = d(kHidden) * 2;
  std::vector<Row> rows = {
      {"kernel router", 0, 0, [&](int i) { l.router(i); }},
      {"kernel route", 0, 0, [&](int i) { l.route(i); }},
      {"kernel permute all", 0, d(l.rows + m) * width, [&](int i) { l.permute(i, l.rows); }},
      {"kernel permute routed", 0, d(m * kTopK + m) * width, [&](int i) { l.permute(i, m * kTopK); }},
      {"kernel spread routed", 0, d(m * kTopK + m) * width, [&](int i) { l.spread(i); }},
      {"kernel gate_up rows", first, 0, [&](int i) { l.grouped(i, true); }},
      {"kernel silu", 0, d(l.rows) * d(kIntermediate) * 6, [&](int i) { l.silu(i); }},
      {"kernel gate_up columns", first, 0, [&](int i) { l.columns(i, true); }},
      {"kernel down rows", second, 0, [&](int i) { l.grouped(i, false); }},
      {"kernel down columns", second, 0, [&](int i) { l.columns(i, false); }},
      {"kernel sum and norm", 0, d(l.rows) * width + d(m) * (2 * 2 * width + width),
       [&](int i) { l.add_norm(i); }},
      {"chain as before", all, 0,
       [&](int i) {
         l.router(i), l.route(i), l.permute(i, l.rows), l.grouped(i, true), l.silu(i), l.grouped(i, false);
         l.add_norm(i);
       }},
      {"chain columns", all, 0,
       [&](int i) {
         l.router(i), l.route(i), l.permute(i, m * kTopK), l.columns(i, true);
         l.columns(i, false), l.add_norm(i);
       }},
      {"chain columns, spread", all, 0,
       [&](int i) {
         l.router(i), l.route(i), l.spread(i), l.columns(i, true), l.columns(i, false);
         l.add_norm(i);
       }},
      {"  the same to gate_up", all, 0,
       [&](int i) { l.router(i), l.route(i), l.spread(i), l.columns(i, true); }},
      {"  the same to down", all, 0,
       [&](int i) { l.router(i), l.route(i), l.spread(i), l.columns(i, true), l.columns(i, false); }},
  };
  rows[rows.size() - 5].call(0);  // route a layer for the kernels that run alone
  l.stream.synchronize();
  std::vector<std::string> lines(rows.size());
  for (int pass = 0; pass < passes; ++pass) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& r = rows[i];
      const CoolTime t = time_call(l.stream, timer, r.call, kSets);
      lines[i] += fmt::format("  {:8.1f} us {:5.0f} MHz", t.us, t.mhz);
      if (r.flop > 0) lines[i] += fmt::format(" {:5.0f} TF/s", r.flop / t.us * 1e-6);
      if (r.bytes > 0) lines[i] += fmt::format(" {:5.2f} TB/s", r.bytes / t.us * 1e-6);
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) fmt::print("{:<40}{}\n", rows[i].name, lines[i]);
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
