// MLA decode: µs, GB/s of cache read, TFLOP/s, beside FlashMLA dense on an H200 (docs/performance.md).
// Split-KV and merge are counted, the plan (made once a step) has a row of its own.
//   cuda_mla_bench [all] [bf16|e4m3|e5m2] [16|128]   all: also long contexts and several query tokens
#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/graph_timer.h"
#include "kernels/cuda/mla/mla.h"

namespace hadal::bench {
namespace {

struct Peer {
  int batch, q_len, keys, heads;
  double us;
};
// FlashMLA @9241ae3, bf16, one H200, inside a CUDA graph, inputs rotated past the L2.
constexpr Peer kFlashMla[] = {
    {1, 1, 1024, 128, 13.4},    {1, 1, 4096, 128, 19.7},    {1, 1, 16384, 128, 38.0},
    {8, 1, 1024, 128, 18.8},    {8, 1, 4096, 128, 33.0},    {8, 1, 16384, 128, 70.2},
    {32, 1, 1024, 128, 33.9},   {32, 1, 4096, 128, 68.6},   {32, 1, 16384, 128, 229.7},
    {128, 1, 1024, 128, 83.6},  {128, 1, 4096, 128, 252.9}, {128, 1, 16384, 128, 1027.3},
    {1, 2, 4096, 128, 25.8},    {8, 2, 4096, 128, 43.8},    {32, 2, 4096, 128, 117.1},
    {128, 2, 4096, 128, 473.1}, {128, 1, 1024, 64, 45.8},   {128, 1, 4096, 64, 149.4},
    {128, 2, 4096, 64, 226.6},  {1, 1, 1024, 16, 15.1},     {1, 1, 4096, 16, 28.5},
    {1, 1, 16384, 16, 47.8},    {8, 1, 1024, 16, 16.0},     {8, 1, 4096, 16, 24.4},
    {8, 1, 16384, 16, 48.7},    {32, 1, 1024, 16, 22.8},    {32, 1, 4096, 16, 47.9},
    {32, 1, 16384, 16, 148.6},  {128, 1, 1024, 16, 44.8},   {128, 1, 4096, 16, 148.9},
    {128, 1, 16384, 16, 574.5}, {1, 2, 4096, 16, 27.5},     {8, 2, 4096, 16, 24.7},
    {32, 2, 4096, 16, 47.9},    {128, 2, 4096, 16, 149.8},
};

CudaStream& stream() {
  static CudaStream s;
  return s;
}

// A device buffer filled with copies of `block`.
DeviceBuffer filled(const std::vector<std::byte>& block, size_t bytes) {
  DeviceBuffer buffer(std::max<size_t>(bytes, 16));
  const size_t first = std::min(bytes, block.size());
  copy_to_device(buffer.data(), block.data(), first, stream().handle());
  stream().synchronize();
  for (size_t done = first; done < bytes; done *= 2) {
    copy_on_device(buffer.data() + done, buffer.data(), std::min(done, bytes - done), stream().handle());
  }
  stream().synchronize();
  return buffer;
}
template <typename T>
DeviceBuffer uploaded(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return filled(bytes, bytes.size());
}

// Sixteen pages of random records.
std::vector<std::byte> random_records(const KvLayout& layout) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  const int64_t count = 16 * kPageSize;
  std::vector<std::byte> bytes(count * layout.row_bytes());
  for (int64_t r = 0; r < count; ++r) {
    std::byte* record = bytes.data() + r * layout.row_bytes();
    const auto store = [&](int offset, auto value) { std::memcpy(record + offset, &value, sizeof(value)); };
    if (layout.format == KvFormat::kBF16) {
      for (int i = 0; i < kKvRowDim; ++i) store(i * 2, to_bf16(normal(random)));
    } else if (layout.format == KvFormat::kFp8E5M2) {
      for (int i = 0; i < kKvRowDim; ++i) store(i, to_fp8_e5m2(normal(random)));
    } else {
      for (int i = 0; i < kKvLatentDim; ++i) store(i, to_fp8_e4m3(normal(random) * 128.0F));
      for (int i = 0; i < kKvNumScales; ++i) store(kKvFp8ScaleOffset + i * 4, 1.0F / 128.0F);
      for (int i = 0; i < kKvRopeDim; ++i) store(kKvFp8RopeOffset + i * 2, to_bf16(normal(random)));
    }
  }
  return bytes;
}

void decode_row(const KvLayout& layout, const std::vector<std::byte>& records, int batch, int q_len, int keys,
                int heads) {
  const int64_t pages = (keys + kPageSize - 1) / kPageSize;
  const size_t cache_bytes = static_cast<size_t>(batch) * keys * layout.row_bytes();
  const int sets = num_rotating_sets(cache_bytes);
  const DeviceBuffer pool = filled(records, static_cast<size_t>(sets * batch * pages * layout.page_bytes()));
  std::vector<int32_t> table(sets * batch * pages);
  std::iota(table.begin(), table.end(), 0);
  std::mt19937_64 random(11);
  std::shuffle(table.begin(), table.end(), random);
  const DeviceBuffer device_table = uploaded(table);
  std::vector<int32_t> seq_idx(batch);
  std::iota(seq_idx.begin(), seq_idx.end(), 0);
  const DeviceBuffer device_seq_idx = uploaded(seq_idx);
  const DeviceBuffer kv_len = uploaded(std::vector<int32_t>(batch, keys));
  std::normal_distribution<float> normal(0.0F, 0.3F);
  std::vector<bf16> q(int64_t{batch} * q_len * heads * kKvRowDim);
  for (bf16& v : q) v = to_bf16(normal(random));
  const DeviceBuffer device_q = uploaded(q);
  const DeviceBuffer out(q.size() * 2);

  const cuda::Launch launch{.stream = stream().handle(), .num_sms = cuda_device_info(0).num_sms};
  const cuda::MlaPlanShape shape{
      .num_seqs = batch, .q_len = q_len, .num_heads = heads, .num_sms = launch.num_sms, .layout = layout};
  const DeviceBuffer plan(cuda::mla_plan_bytes(shape));
  const DeviceBuffer scratch(cuda::mla_decode_scratch_bytes(shape));
  const auto make_plan = [&](int) {
    cuda::mla_decode_plan(shape, kv_len.as<int32_t>(), plan.data(), launch);
  };
  const double plan_us = time_in_graph(stream(), make_plan);
  const double us = time_in_graph(stream(), [&](int i) {
    cuda::mla_decode({.shape = shape,
                      .q = device_q.as<bf16>(),
                      .out = out.as<bf16>(),
                      .kv = {.pool = pool.data(),
                             .layout = layout,
                             .page_table = device_table.as<int32_t>() + i % sets * batch * pages,
                             .page_table_stride = pages},
                      .seq_idx = device_seq_idx.as<int32_t>(),
                      .kv_len = kv_len.as<int32_t>(),
                      .softmax_scale = 0.1147F,
                      .plan = plan.data(),
                      .scratch = scratch.data()},
                     launch);
  });
  const double bytes =
      static_cast<double>(cache_bytes) + static_cast<double>(q.size()) * 2 * (1.0 + 512.0 / 576.0);
  const double flop = 2.0 * batch * q_len * heads * keys * (kKvRowDim + kKvLatentDim);
  std::string peer = "";
  for (const Peer& p : kFlashMla) {
    if (layout.format == KvFormat::kBF16 && p.batch == batch && p.q_len == q_len && p.keys == keys &&
        p.heads == heads) {
      peer = fmt::format("{:7.1f} {:5.2f}x", p.us, p.us / us);
    }
  }
  const char* format = layout.format == KvFormat::kBF16      ? "bf16"
                       : layout.format == KvFormat::kFp8E4M3 ? "e4m3"
                                                             : "e5m2";
  fmt::print("{:4} {:5} {:2} {:6} {:4} {:8.1f} {:6.0f} {:6.0f} {:5.1f}  {}\n", format, batch, q_len, keys,
             heads, us, bytes / us * 1e-3, flop / us * 1e-6, plan_us, peer);
  std::fflush(stdout);
}

struct Choice {
  bool all = false;
  std::string format;  // empty: every one
  int heads = 0;       // 0: both
};

int run(const Choice& choice) {
  fmt::print(
      "MLA decode; FlashMLA is bf16\n fmt batch  q   keys head       us   GB/s TFLOPs  plan  FlashMLA us, "
      "ratio\n");
  const std::pair<const char*, KvLayout> layouts[] = {
      {"bf16", {KvFormat::kBF16}}, {"e4m3", {KvFormat::kFp8E4M3}}, {"e5m2", {KvFormat::kFp8E5M2}}};
  for (const auto& [name, layout] : layouts) {
    if (!choice.format.empty() && choice.format != name) continue;
    const std::vector<std::byte> records = random_records(layout);
    for (int heads : {16, 128}) {
      if (choice.heads != 0 && choice.heads != heads) continue;
      for (int keys : {1024, 4096, 16384}) {
        if (!choice.all && keys == 16384) continue;
        for (int batch : {1, 4, 8, 16, 32, 64, 128}) {
          if (!choice.all && (batch == 8 || batch == 16)) continue;
          if (layout.format == KvFormat::kFp8E5M2 && !choice.all && (batch != 128 || keys != 4096)) continue;
          decode_row(layout, records, batch, 1, keys, heads);
        }
      }
      if (choice.all) {
        for (int batch : {1, 8, 32, 128}) decode_row(layout, records, batch, 2, 4096, heads);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  hadal::bench::Choice choice;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "all") {
      choice.all = true;
    } else if (arg == "16" || arg == "128") {
      choice.heads = std::stoi(arg);
    } else {
      choice.format = arg;
    }
  }
  return hadal::bench::run(choice);
}
