// Measures sampling in microseconds per call in a graph, and compares it with reading the logits once.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/sampling/sampling.h"

namespace hadal::bench {
namespace {

template <typename T>
DeviceBuffer uploaded(const std::vector<T>& values, CudaStream& stream) {
  DeviceBuffer buffer(std::max<size_t>(values.size(), 1) * sizeof(T));
  copy_to_device(buffer.data(), values.data(), values.size() * sizeof(T), stream.handle());
  stream.synchronize();
  return buffer;
}

struct Kind {
  const char* name;
  cuda::SlotSampling slot;
};

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  auto add = [&](const char* name, auto&& set) {
    Kind kind{name, {}};
    set(kind.slot);
    all.push_back(kind);
  };
  add("greedy", [](auto& s) { s.temperature = 0.0F; });
  add("temperature", [](auto&) {});
  add("top-k 50", [](auto& s) { s.top_k = 50; });
  add("top-p 0.95", [](auto& s) { s.top_p = 0.95F; });
  add("top-k 50 top-p 0.95", [](auto& s) { s.top_k = 50, s.top_p = 0.95F; });
  add("penalties greedy",
      [](auto& s) { s.temperature = 0.0F, s.uses_counts = 1, s.frequency_penalty = 0.5F; });
  add("greedy, 5 logprobs", [](auto& s) { s.temperature = 0.0F, s.num_top_logprobs = 5; });
  return all;
}

void run(int64_t vocab, int rows, const Kind& kind, double bytes_per_us, CudaStream& stream) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal(0.0F, 2.5F);
  const int sets = std::min(num_rotating_sets(static_cast<size_t>(rows) * vocab * sizeof(float)), 24);
  std::vector<float> pool(1 << 20);
  for (float& x : pool) x = normal(random);
  std::vector<DeviceBuffer> logits;
  std::vector<float> values(static_cast<size_t>(rows) * vocab);
  for (int set = 0; set < sets; ++set) {
    for (size_t at = 0; at < values.size();) {  // pieces of the pool from random places
      const size_t from = random() % (pool.size() - 4096);
      const size_t count = std::min<size_t>(4096, values.size() - at);
      std::memcpy(values.data() + at, pool.data() + from, count * sizeof(float));
      at += count;
    }
    logits.push_back(uploaded(values, stream));
  }
  std::vector<cuda::SampleRow> row_values(rows);
  for (int i = 0; i < rows; ++i) row_values[i] = {.slot = i, .logit_row = i, .position = i};
  const DeviceBuffer device_rows = uploaded(row_values, stream);
  const DeviceBuffer slots = uploaded(std::vector<cuda::SlotSampling>(rows, kind.slot), stream);
  const DeviceBuffer counts = uploaded(std::vector<uint16_t>(static_cast<size_t>(rows) * vocab), stream);
  const DeviceBuffer last(rows * sizeof(int32_t));
  const DeviceBuffer results(rows * sizeof(cuda::SampleResult));
  const DeviceBuffer top_ids(static_cast<size_t>(rows) * cuda::kMaxTopLogprobs * 4);
  const DeviceBuffer top_logprobs(static_cast<size_t>(rows) * cuda::kMaxTopLogprobs * 4);
  auto call = [&](int i) {
    cuda::sample({.logits = logits[i % sets].as<float>(),
                  .vocab = vocab,
                  .rows = device_rows.as<cuda::SampleRow>(),
                  .num_rows = rows,
                  .slots = slots.as<cuda::SlotSampling>(),
                  .counts = counts.as<uint16_t>(),
                  .last_token = last.as<int32_t>(),
                  .results = results.as<cuda::SampleResult>(),
                  .top_ids = top_ids.as<int32_t>(),
                  .top_logprobs = top_logprobs.as<float>()},
                 {.stream = stream.handle()});
  };
  const double us = time_in_graph(stream, call, 24);
  const double floor = static_cast<double>(values.size()) * sizeof(float) / bytes_per_us;
  fmt::print("{:7} {:5} {:22} {:8.2f} {:8.2f}\n", vocab, rows, kind.name, us, floor);
}

}  // namespace
}  // namespace hadal::bench

int main() {
  using namespace hadal;
  CudaStream stream;
  fmt::print("  vocab  rows kind                         us    floor   (logits read once at 4.3 TB/s)\n");
  for (const int64_t vocab : {102400, 129280}) {
    for (const int rows : {1, 4, 16, 64, 128}) {
      for (const auto& kind : bench::kinds()) bench::run(vocab, rows, kind, 4.3e6, stream);
    }
  }
  return 0;
}
