// Measures grouped_linear for the experts of DeepSeek-V2-Lite (64 routed, 2 shared, top 6) and DeepSeek-V3
// (256, 1, top 8) under even random routing. It prints microseconds per call in a graph, and the rate at
// which the weights of the experts hit are read as a share of 4.3 TB/s.
//
//   cuda_experts_bench [--m 1,16,64] [--only v2|v3] [--sweep] [--tiled]
#include <fmt/format.h>

#include <cstdlib>
#include <numeric>
#include <random>
#include <string>

#include "bench/cuda/arguments.h"
#include "bench/cuda/device_fill.h"
#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/experts/variants.h"

namespace hadal::bench {
namespace {

using namespace hadal::cuda;

constexpr double kBytesAMicrosecond = 4.3e6;

struct Model {
  const char* name;
  int routed, shared, top_k;
  int64_t hidden, intermediate;
  WeightType type;
};
constexpr Model kModels[] = {
    {"v2 bf16", 64, 2, 6, 2048, 1408, WeightType::kBF16},
    {"v2 fp8", 64, 2, 6, 2048, 1408, WeightType::kFp8Block},
    {"v3 fp8", 256, 1, 8, 7168, 2048, WeightType::kFp8Block},
};

struct Routing {
  DeviceBuffer offsets, token_of;
  int64_t num_rows = 0;
  int hit = 0;
  int most = 0;

  Routing(const Model& model, int64_t m, CudaStream& stream) {
    std::mt19937_64 random(m);
    std::vector<std::vector<int32_t>> tokens(model.routed + model.shared);
    std::vector<int> experts(model.routed);
    for (int32_t token = 0; token < m; ++token) {
      std::iota(experts.begin(), experts.end(), 0);
      std::shuffle(experts.begin(), experts.end(), random);
      for (int i = 0; i < model.top_k; ++i) tokens[experts[i]].push_back(token);
      for (int i = 0; i < model.shared; ++i) tokens[model.routed + i].push_back(token);
    }
    std::vector<int32_t> starts{0};
    std::vector<int32_t> sorted;
    for (const auto& list : tokens) {
      sorted.insert(sorted.end(), list.begin(), list.end());
      starts.push_back(static_cast<int32_t>(sorted.size()));
      hit += list.empty() ? 0 : 1;
      most = std::max(most, static_cast<int>(list.size()));
    }
    num_rows = static_cast<int64_t>(sorted.size());
    offsets = DeviceBuffer(starts.size() * 4);
    token_of = DeviceBuffer(sorted.size() * 4);
    copy_to_device(offsets.data(), starts.data(), starts.size() * 4, stream.handle());
    copy_to_device(token_of.data(), sorted.data(), sorted.size() * 4, stream.handle());
    stream.synchronize();
  }
};

void run_product(const Model& model, const char* name, int64_t n, int64_t k, bool gathered,
                 const std::vector<int64_t>& rows, bool sweep, bool tiled, CudaStream& stream) {
  const bool fp8 = model.type == WeightType::kFp8Block;
  const int num_experts = model.routed + model.shared;
  const size_t expert_bytes = static_cast<size_t>(n * k) * (fp8 ? 1 : 2);
  const size_t bytes = expert_bytes * num_experts;
  const int sets = static_cast<int>(std::clamp<size_t>((size_t{5} << 30) / bytes, 1, 6));
  const int64_t scales_an_expert = (n + 127) / 128 * (k / 128);
  const DeviceBuffer w = random_device_buffer(bytes * sets, fp8 ? Fill::kE4m3 : Fill::kBf16, stream);
  const DeviceBuffer w_scales = random_device_buffer(scales_an_expert * num_experts * 4, Fill::kF32, stream);
  const int64_t most_rows = rows.empty() ? 128 : *std::max_element(rows.begin(), rows.end());
  const int64_t num_slots = model.top_k + model.shared;
  const int64_t x_rows = round_up(gathered ? most_rows : most_rows * num_slots, 4);
  const DeviceBuffer x = random_device_buffer(x_rows * k * 2, fp8 ? Fill::kE4m3 : Fill::kBf16, stream);
  const DeviceBuffer x_scales = random_device_buffer(k / 128 * x_rows * 4, Fill::kF32, stream);
  const DeviceBuffer y(static_cast<size_t>(most_rows * num_slots * n) * 2);
  const Launch launch{.stream = stream.handle()};
  fmt::print("{} {}: {} experts of {} x {}, {:.0f} MB\n", model.name, name, num_experts, n, k,
             static_cast<double>(bytes) * 1e-6);
  for (const int64_t m : rows) {
    const Routing routing(model, m, stream);
    const auto params = [&](int call) {
      GroupedLinearParams p;
      p.token_of = gathered ? routing.token_of.as<int32_t>() : nullptr;
      p.expert_offsets = routing.offsets.as<int32_t>();
      p.num_rows = routing.num_rows;
      p.num_experts = num_experts;
      p.w = {.data = w.data() + call % sets * bytes,
             .type = model.type,
             .n = n,
             .k = k,
             .row_stride = k,
             .scales = w_scales.as<float>(),
             .scale_stride = k / 128};
      p.expert_stride = n * k;
      p.expert_scale_stride = scales_an_expert;
      if (fp8) {
        p.x_quantized = {.codes = x.as<fp8_e4m3>(),
                         .scales = x_scales.as<float>(),
                         .stride = k,
                         .scale_stride = x_rows,
                         .power_of_two = false};
      } else {
        p.x = x.as<bf16>();
        p.x_stride = k;
      }
      p.y = y.as<bf16>();
      return p;
    };
    const double hit_bytes = static_cast<double>(expert_bytes) * routing.hit;
    const double floor = hit_bytes / kBytesAMicrosecond;
    const int calls = 12;
    if (sweep) {
      std::string line;
      const int k_blocks = static_cast<int>(k * (fp8 ? 1 : 2) / 128);
      for (const int tokens : {16, 64}) {
        if (tokens != (routing.num_rows <= 128 ? 16 : 64)) continue;
        for (const int groups : {1, 2}) {
          for (const int splits : {1, 2}) {
            for (const int64_t budget : {54, 72, 110}) {
              skinny::Schedule s{.tokens = tokens, .groups = groups, .splits = splits, .stages = 0};
              s.stages = skinny::stages_of(WeightType::kFp8Block, tokens, groups,
                                           (k_blocks + splits - 1) / splits, budget * 1024);
              const double us = time_in_graph(
                  stream, [&](int call) { grouped_skinny_linear(params(call), launch, s); }, calls, 5);
              line += fmt::format(" {}/{}/{}/{}:{:.1f}", tokens, groups, splits, s.stages, us);
            }
          }
        }
      }
      fmt::print("  m {:<4} floor {:.1f} tokens/groups/splits/stages:us{}\n", m, floor, line);
      continue;
    }
    const Choice streamed = skinny::choice_of(skinny::grouped_schedule_of(
        routing.num_rows, num_experts, n, blocks_of_k(model.type, k), launch.num_sms));
    const double us = time_in_graph(
        stream, [&](int call) { launch_grouped_linear(streamed, params(call), launch); }, calls);
    fmt::print("  m {:<4} experts hit {:>3}, most rows {:>3}: {:8.2f} us {:6.0f} GB/s {:5.1f} %", m,
               routing.hit, routing.most, us, hit_bytes * 1e-3 / us, floor / us * 100);
    const double settled = time_in_graph(
        stream,
        [&](int call) {
          GroupedLinearParams p = params(call);
          p.offsets_settled = true;
          launch_grouped_linear(streamed, p, launch);
        },
        calls);
    fmt::print("   offsets settled {:8.2f} us", settled);
    GroupedLinearParams sorted = params(0);
    sorted.token_of = nullptr;
    const GroupedShape shape = grouped_shape(sorted, launch.num_sms);
    if (tiled && m >= 32 && !gathered && supports(ProductKernel::kTiled, shape)) {
      const Choice tile = grouped_tile(choose_grouped_tile(shape));
      const double theirs = time_in_graph(
          stream, [&](int call) { launch_grouped_linear(tile, params(call), launch); }, calls);
      fmt::print("   tiled {:8.2f} us", theirs);
    }
    fmt::print("\n");
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  std::vector<int64_t> rows = {1, 2, 4, 8, 16, 32, 64, 128};
  std::string only;
  bool sweep = false;
  bool tiled = false;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--sweep")
      sweep = true;
    else if (arg == "--tiled")
      tiled = true;
    else if (arg == "--only" && i + 1 < argc)
      only = argv[++i];
    else if (arg == "--m" && i + 1 < argc)
      rows = numbers("--m", argv[++i]);
    else {
      fmt::print("usage: {} [--m 1,16,64] [--only v2|v3] [--sweep] [--tiled]\n", argv[0]);
      return 2;
    }
  }
  CudaStream stream;
  for (const Model& model : kModels) {
    if (std::string(model.name).find(only) == std::string::npos) continue;
    run_product(model, "gate_up", 2 * model.intermediate, model.hidden, true, rows, sweep, tiled, stream);
    run_product(model, "down", model.hidden, model.intermediate, false, rows, sweep, tiled, stream);
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::run(argc, argv);
}
