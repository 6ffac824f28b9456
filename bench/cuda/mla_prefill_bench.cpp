// Measures un-absorbed prefill attention and the gathering of its keys, and prints a table of times in a
// graph. FLOPs are those of visible (query, key) pairs. Inputs are in the L2 as far as they fit, as earlier
// kernels leave them. Beside the times are the rates of cuDNN 9.19's causal attention (TFLOP/s, one H200,
// another run); prefill_cudnn.py measures both in one run.
//   cuda_mla_prefill_bench                                the table
//   cuda_mla_prefill_bench --row heads,sequences,q_len,prefix    one row, as a JSON line
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/mla/mla.h"
#include "tensor/cuda.h"

namespace hadal::bench {
namespace {

constexpr int kQk = 192;
constexpr int kKvRow = 256;
constexpr int kValue = 128;

// Returns random bf16 values: one random block, repeated.
DeviceBuffer random_buffer(size_t count, CudaStream& stream) {
  static const std::vector<bf16> block = [] {
    std::mt19937_64 random(11);
    std::normal_distribution<float> normal;
    std::vector<bf16> values(size_t{3} << 20);
    for (bf16& value : values) value = to_bf16(normal(random));
    return values;
  }();
  DeviceBuffer buffer(count * sizeof(bf16));
  size_t done = std::min(block.size(), count);
  copy_to_device(buffer.data(), block.data(), done * sizeof(bf16), stream.handle());
  while (done < count) {
    const size_t part = std::min(done, count - done);
    copy_on_device(buffer.as<bf16>() + done, buffer.data(), part * sizeof(bf16), stream.handle());
    done += part;
  }
  stream.synchronize();
  return buffer;
}

template <typename T>
DeviceBuffer upload(const std::vector<T>& values, CudaStream& stream) {
  DeviceBuffer buffer(values.size() * sizeof(T));
  copy_to_device(buffer.data(), values.data(), values.size() * sizeof(T), stream.handle());
  stream.synchronize();
  return buffer;
}

struct Row {
  int heads;
  int segments;
  int q_len;
  int prefix;
  double cudnn;  // TFLOP/s, 0: not measured
  bool accumulate = false;
};

void attention(const Row& row, CudaStream& stream, const cuda::Launch& launch, bool json = false) {
  std::vector<cuda::PrefillSegmentRun> runs;
  const int64_t k_len = row.prefix + row.q_len;
  double pairs = 0.0;
  for (int s = 0; s < row.segments; ++s) {
    runs.push_back({.q_begin = s * row.q_len,
                    .q_len = row.q_len,
                    .q_pos = row.prefix,
                    .k_begin = static_cast<int32_t>(s * k_len),
                    .k_len = static_cast<int32_t>(k_len),
                    .k_pos = 0});
    pairs += static_cast<double>(row.q_len) * (row.prefix + (row.q_len + 1) / 2.0);
  }
  const int64_t m = int64_t{row.segments} * row.q_len;
  const int64_t num_keys = row.segments * k_len;
  const DeviceBuffer q = random_buffer(m * row.heads * kQk, stream);
  const DeviceBuffer kv = random_buffer(num_keys * row.heads * kKvRow, stream);
  const DeviceBuffer rope = random_buffer(num_keys * 64, stream);
  const DeviceBuffer device_runs = upload(runs, stream);
  const DeviceBuffer out = random_buffer(m * row.heads * kValue, stream);
  const DeviceBuffer lse = upload(std::vector<float>(m * row.heads, 1.0F), stream);
  const cuda::DevicePrefillParams params{.q = q.as<bf16>(),
                                         .q_row_stride = int64_t{row.heads} * kQk,
                                         .q_head_stride = kQk,
                                         .kv = kv.as<bf16>(),
                                         .k_rope = rope.as<bf16>(),
                                         .runs = device_runs.as<cuda::PrefillSegmentRun>(),
                                         .host_runs = runs.data(),
                                         .num_runs = row.segments,
                                         .num_keys = num_keys,
                                         .m = m,
                                         .num_heads = row.heads,
                                         .softmax_scale = 0.0722F,
                                         .out = out.as<bf16>(),
                                         .out_stride = int64_t{row.heads} * kValue,
                                         .lse = row.accumulate ? lse.as<float>() : nullptr,
                                         .accumulate = row.accumulate};
  const double flops = 2.0 * (kQk + kValue) * pairs * row.heads;
  const int calls = flops > 1e12 ? 3 : 12;
  const double us = time_in_graph(
      stream, [&](int) { cuda::mla_prefill(params, launch); }, calls, 5);
  if (json) {
    fmt::print(
        "{{\"heads\": {}, \"sequences\": {}, \"tokens\": {}, \"prefix\": {}, \"us\": {:.2f}, \"tflops\": "
        "{:.1f}}}\n",
        row.heads, row.segments, row.q_len, row.prefix, us, flops / us * 1e-6);
    return;
  }
  const std::string yardstick = row.cudnn > 0.0 ? fmt::format("{:8.0f}", row.cudnn) : std::string("       -");
  fmt::print("h{:<4} {} x {:<6} prefix {:<6}{} {:9.1f} us {:8.1f} TFLOP/s {}\n", row.heads, row.segments,
             row.q_len, row.prefix, row.accumulate ? " joined" : "       ", us, flops / us * 1e-6, yardstick);
  std::fflush(stdout);
}

void gather(KvFormat format, const char* name, int segments, int length, bool fp8, CudaStream& stream,
            const cuda::Launch& launch) {
  const KvLayout layout{format};
  const int pages = (length + kPageSize - 1) / kPageSize;
  std::vector<int32_t> table(static_cast<size_t>(segments) * pages);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i * 7919 % table.size());
  std::vector<cuda::KeyRun> runs;
  for (int s = 0; s < segments; ++s) runs.push_back({s, 0, length, s * length});
  const int64_t num_keys = int64_t{segments} * length;
  const DeviceBuffer pool = random_buffer(table.size() * layout.page_bytes() / 2, stream);
  const DeviceBuffer device_table = upload(table, stream);
  const DeviceBuffer device_runs = upload(runs, stream);
  const DeviceBuffer latent(num_keys * kKvLatentDim * 2);
  const DeviceBuffer rope(num_keys * kKvRopeDim * 2);
  const DeviceBuffer codes(num_keys * kKvLatentDim);
  const DeviceBuffer scales(num_keys * 4 * 4);
  cuda::GatherKeysParams params;
  params.kv = {.pool = pool.data(),
               .layout = layout,
               .page_table = device_table.as<int32_t>(),
               .page_table_stride = pages};
  params.runs = device_runs.as<cuda::KeyRun>();
  params.num_runs = segments;
  params.max_count = length;
  params.latent = fp8 ? nullptr : latent.as<bf16>();
  params.rope = rope.as<bf16>();
  if (fp8) {
    params.latent_fp8 = {.codes = codes.as<fp8_e4m3>(),
                         .scales = scales.as<float>(),
                         .stride = kKvLatentDim,
                         .scale_stride = num_keys};
  }
  const double bytes = static_cast<double>(num_keys) * (layout.row_bytes() + 128 + (fp8 ? 512 + 16 : 1024));
  const double us = time_in_graph(stream, [&](int) { cuda::gather_keys(params, launch); });
  fmt::print("gather {:<9} {} x {:<6} to {} {:9.1f} us {:8.0f} GB/s\n", name, segments, length,
             fp8 ? "fp8 " : "bf16", us, bytes / us * 1e-3);
}

int run(int argc, char** argv) {
  std::vector<int64_t> asked;
  if (argc == 3 && std::string(argv[1]) == "--row") asked = numbers("--row", argv[2]);
  if (argc > 1 && asked.size() != 4) {
    fmt::print(stderr, "usage: cuda_mla_prefill_bench [--row heads,sequences,q_len,prefix]\n");
    return 2;
  }
  CudaStream stream;
  cuda::Launch launch;
  launch.stream = stream.handle();
  launch.num_sms = cuda_device_info(0).num_sms;
  if (!asked.empty()) {
    attention({static_cast<int>(asked[0]), static_cast<int>(asked[1]), static_cast<int>(asked[2]),
               static_cast<int>(asked[3]), 0},
              stream, launch, true);
    return EXIT_SUCCESS;
  }
  fmt::print("un-absorbed prefill attention, qk 192, v 128, bf16                       cuDNN\n");
  const Row rows[] = {{16, 1, 512, 0, 0},     {16, 1, 1024, 0, 99},   {16, 1, 2048, 0, 0},
                      {16, 1, 4096, 0, 362},  {16, 1, 8192, 0, 503},  {16, 8, 1024, 0, 0},
                      {16, 8, 4096, 0, 588},  {16, 1, 2048, 6144, 0}, {16, 1, 2048, 6144, 0, true},
                      {128, 1, 1024, 0, 332}, {128, 1, 4096, 0, 578}, {128, 1, 8192, 0, 636},
                      {128, 8, 1024, 0, 0},   {128, 8, 4096, 0, 536}, {128, 1, 2048, 6144, 0}};
  for (const Row& row : rows) attention(row, stream, launch);
  for (const bool fp8 : {false, true}) {
    gather(KvFormat::kBF16, "bf16", 1, 16384, fp8, stream, launch);
    gather(KvFormat::kFp8E4M3, "fp8_e4m3", 1, 16384, fp8, stream, launch);
    gather(KvFormat::kFp8E5M2, "fp8_e5m2", 8, 2048, fp8, stream, launch);
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
