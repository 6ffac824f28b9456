// Measures V3.2's sparse attention, with its dimensions, on one H200. One part is the selection of keys (64
// index heads, 2,048 of all keys; scores and selection together), the other is decode attention over the
// selected records. A row is the time of one call inside a CUDA graph; keys, records and page tables are
// rotated so that a graph touches more than twice the L2. The floor is the time of the bytes that must be
// moved (each index key once for each sequence, each selected record once, queries and outputs) or of the
// products, whichever is longer, at the best rates measured on one H200.
//   cuda_dsa_bench                                 the table
//   cuda_dsa_bench --select ROWS,KEYS              one row of the choice, one token for each sequence
//   cuda_dsa_bench --prompt TOKENS,KEYS            the same for the last tokens of one sequence, by bits
//   cuda_dsa_bench --decode ROWS,HEADS,bf16|e4m3   one row of decode
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/gemm_goals.h"
#include "bench/cuda/mla_measure.h"
#include "kernels/cuda/indexer/indexer.h"

namespace hadal::bench {
namespace {

constexpr int kIndexHeads = 64;
constexpr int kTopk = kMaxIndexTopk;

cuda::Launch bench_launch() {
  return {.stream = stream().handle(), .num_sms = cuda_device_info(0).num_sms};
}

// Returns pages of random index keys.
std::vector<std::byte> random_index_pages(int count) {
  constexpr int64_t kPageBytes = int64_t{kPageSize} * kKvIndexBytesE4M3;
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  std::vector<std::byte> bytes(count * kPageBytes);
  for (int page = 0; page < count; ++page) {
    std::byte* codes = bytes.data() + page * kPageBytes;
    for (int i = 0; i < kPageSize * kIndexHeadDim; ++i)
      codes[i] = static_cast<std::byte>(to_fp8_e4m3(normal(random) * 100.0F).bits);
    const float scale = 1.0F / 64.0F;
    for (int i = 0; i < kPageSize; ++i)
      std::memcpy(codes + kKvIndexScalesOffset + i * sizeof(scale), &scale, sizeof(scale));
  }
  return bytes;
}

double time_call_us(const std::function<void(int)>& call, int sets) {
  call(0);
  CudaEvent begin(true);
  CudaEvent end(true);
  begin.record(stream().handle());
  call(1);
  end.record(stream().handle());
  end.wait();
  const double once_us = static_cast<double>(end.ms_since(begin)) * 1e3;
  return timer().time(stream(), call, cool_calls(once_us, sets), once_us).us;
}

void print_row(const std::string& what, double us, double bytes, double flop, double teraflops) {
  const double floor_us = std::max(bytes / kReadTerabytes, flop / teraflops) * 1e-6;
  fmt::print("{:<40} {:>9.1f} us {:>8.1f} floor {:>5.0f}% {:>6.2f} TB/s {:>7.0f} TFLOP/s\n", what, us,
             floor_us, 100.0 * floor_us / us, bytes / us * 1e-6, flop / us * 1e-6);
  std::fflush(stdout);
}

// If `prompt` is true, the rows are the last tokens of one sequence, and the selection is written as bits.
void select(int rows, int keys, bool prompt) {
  const int64_t seqs = prompt ? 1 : rows;
  const int64_t pages_each = (keys + kPageSize - 1) / kPageSize;
  const double key_bytes = static_cast<double>(seqs) * keys * kKvIndexBytesE4M3;
  const int sets =
      static_cast<int>(std::clamp(static_cast<double>(kRotatedBytes) / key_bytes + 1.0, 2.0, 64.0));
  const int64_t num_pages = sets * seqs * pages_each;
  const DeviceBuffer pool =
      filled(random_index_pages(256), static_cast<size_t>(num_pages) * kPageSize * kKvIndexBytesE4M3);
  std::vector<int32_t> table(num_pages);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937_64(11));
  std::vector<int32_t> seq_idx(rows, 0), kv_len(rows, keys);
  for (int i = 0; i < rows; ++i) {
    if (prompt) kv_len[i] = keys - rows + 1 + i;
    if (!prompt) seq_idx[i] = i;
  }
  std::mt19937_64 random(13);
  std::normal_distribution<float> normal;
  std::vector<fp8_e4m3> q(size_t{64} * kIndexHeads * kIndexHeadDim);
  for (fp8_e4m3& code : q) code = to_fp8_e4m3(normal(random) * 100.0F);
  std::vector<float> w(size_t{64} * kIndexHeads);
  for (float& weight : w) weight = normal(random) * 1e-4F;
  const auto repeated = [&](const auto& block, size_t count) {
    std::vector<std::byte> bytes(block.size() * sizeof(block[0]));
    std::memcpy(bytes.data(), block.data(), bytes.size());
    return filled(bytes, count * sizeof(block[0]));
  };
  const DeviceBuffer device_q = repeated(q, static_cast<size_t>(rows) * kIndexHeads * kIndexHeadDim);
  const DeviceBuffer device_w = repeated(w, static_cast<size_t>(rows) * kIndexHeads);
  const DeviceBuffer device_table = uploaded(table);
  const DeviceBuffer device_seq_idx = uploaded(seq_idx), device_kv_len = uploaded(kv_len);
  const cuda::IndexSelectShape shape{.num_rows = rows,
                                     .num_heads = kIndexHeads,
                                     .topk = kTopk,
                                     .most_keys = keys,
                                     .rows_share_keys = prompt};
  const DeviceBuffer workspace(std::max<size_t>(cuda::index_select_workspace_bytes(shape), 16));
  const DeviceBuffer slots(static_cast<size_t>(rows) * kTopk * 4), counts(static_cast<size_t>(rows) * 4);
  const DeviceBuffer bits(static_cast<size_t>(rows) * pages_each * 8);
  cuda::DeviceIndexSelectParams params{.shape = shape,
                                       .q = device_q.as<fp8_e4m3>(),
                                       .w = device_w.as<float>(),
                                       .pool = pool.data(),
                                       .page_table_stride = pages_each,
                                       .seq_idx = device_seq_idx.as<int32_t>(),
                                       .kv_len = device_kv_len.as<int32_t>(),
                                       .workspace = workspace.data()};
  if (prompt) {
    params.bits = bits.as<uint64_t>();
    params.bits_stride = pages_each;
  } else {
    params.slots = slots.as<int32_t>();
    params.counts = counts.as<int32_t>();
  }
  const double us = time_call_us(
      [&](int i) {
        params.page_table = device_table.as<int32_t>() + i % sets * seqs * pages_each;
        cuda::index_select(params, bench_launch());
      },
      sets);
  const double scored = std::accumulate(kv_len.begin(), kv_len.end(), 0.0);
  const double bytes = key_bytes + rows * (kIndexHeads * (kIndexHeadDim + 4.0) +
                                           (prompt ? static_cast<double>(pages_each) * 8 : kTopk * 4.0));
  print_row(
      fmt::format("{} {:>5} tokens of {:>6} keys", prompt ? "prompt, bits:" : "select:      ", rows, keys),
      us, bytes, 2.0 * kIndexHeads * kIndexHeadDim * scored, kFp8Teraflops);
}

void decode(int rows, int heads, const Format& format) {
  constexpr int kKeys = 32768;
  constexpr int64_t kPagesEach = kKeys / kPageSize;
  const double chosen_bytes = static_cast<double>(rows) * kTopk * format.layout.row_bytes();
  const int sets =
      static_cast<int>(std::clamp(static_cast<double>(kRotatedBytes) / chosen_bytes + 1.0, 2.0, 64.0));
  const int64_t num_pages = rows * kPagesEach;
  Pool pool(format.layout);
  const std::byte* pool_data = pool.of(num_pages);
  // Each set is a different selection of records from the same sequences.
  std::mt19937_64 random(11);
  std::vector<int32_t> slots(static_cast<size_t>(sets) * rows * kTopk);
  for (int64_t row = 0; row < int64_t{sets} * rows; ++row) {
    int32_t* of_row = slots.data() + row * kTopk;
    for (int i = 0; i < kTopk; ++i) {
      constexpr int kStep = kKeys / kTopk;
      of_row[i] =
          static_cast<int32_t>(row % rows * kKeys + i * kStep + static_cast<int64_t>(random() % kStep));
    }
  }
  const DeviceBuffer device_slots = uploaded(slots);
  const DeviceBuffer counts = uploaded(std::vector<int32_t>(rows, kTopk));
  const DeviceBuffer kv_len = uploaded(std::vector<int32_t>(rows, kKeys));
  std::vector<int32_t> table(num_pages), seq_idx(rows);
  std::iota(table.begin(), table.end(), 0);
  std::iota(seq_idx.begin(), seq_idx.end(), 0);
  const DeviceBuffer device_table = uploaded(table), device_seq_idx = uploaded(seq_idx);
  const size_t query_rows = static_cast<size_t>(rows) * heads;
  const DeviceBuffer q = filled(queries(format.layout.format), query_rows * kKvRowDim * 2);
  const DeviceBuffer out(query_rows * kKvLatentDim * 2);
  const cuda::Launch launch = bench_launch();
  const cuda::MlaPlanShape shape{.num_seqs = rows,
                                 .num_heads = heads,
                                 .num_sms = launch.num_sms,
                                 .layout = format.layout,
                                 .in_step = true,
                                 .index_topk = kTopk};
  const DeviceBuffer plan(cuda::mla_plan_bytes(shape)), scratch(cuda::mla_decode_scratch_bytes(shape));
  cuda::DeviceDecodeParams params{.shape = shape,
                                  .q = q.data(),
                                  .out = out.data(),
                                  .kv = {.pool = pool_data,
                                         .layout = format.layout,
                                         .page_table = device_table.as<int32_t>(),
                                         .page_table_stride = kPagesEach},
                                  .seq_idx = device_seq_idx.as<int32_t>(),
                                  .kv_len = kv_len.as<int32_t>(),
                                  .softmax_scale = 0.1147F,
                                  .plan = plan.data(),
                                  .scratch = scratch.data(),
                                  .selection = {.counts = counts.as<int32_t>()}};
  cuda::mla_decode_plan(shape, params.kv_len, plan.data(), launch);
  for (const bool all_rows : {false, true}) {
    params.selection.all_rows = all_rows;
    const double us = time_call_us(
        [&](int i) {
          params.selection.slots = device_slots.as<int32_t>() + int64_t{i % sets} * rows * kTopk;
          cuda::mla_decode(params, launch);
        },
        sets);
    const double bytes =
        chosen_bytes + static_cast<double>(query_rows) * 2 * (kKvRowDim + kKvLatentDim) + rows * kTopk * 4.0;
    const double flop = 2.0 * static_cast<double>(query_rows) * kTopk * (kKvRowDim + kKvLatentDim);
    print_row(fmt::format("decode: {:>4} rows, {:>3} heads, {}{}", rows, heads, format.name,
                          all_rows ? ", no plan" : ""),
              us, bytes, flop, kBf16Teraflops);
  }
}

const Format& format_of(const std::string& name) {
  for (const Format& format : kFormats) {
    if ((name == "bf16" || name == "e4m3") && name == format.name) return format;
  }
  fmt::print(stderr, "--decode: the format is '{}'; allowed: bf16, e4m3\n", name);
  std::exit(2);
}

int run(int argc, char** argv) {
  fmt::print("Ceilings: {} TB/s, {:.0f} TFLOP/s bf16, {:.0f} FP8; %: the floor's share of the time\n",
             kReadTerabytes, kBf16Teraflops, kFp8Teraflops);
  if (argc == 3) {
    const std::string option = argv[1];
    if (option == "--decode") {
      const std::string text = argv[2];
      const size_t comma = text.rfind(',');
      const auto sizes = numbers("--decode", text.substr(0, comma).c_str());
      if (sizes.size() == 2 && comma != std::string::npos && sizes[0] > 0) {
        decode(static_cast<int>(sizes[0]), static_cast<int>(sizes[1]), format_of(text.substr(comma + 1)));
        return EXIT_SUCCESS;
      }
    }
    if (option == "--select" || option == "--prompt") {
      const auto sizes = numbers(option.c_str(), argv[2]);
      if (sizes.size() == 2 && sizes[0] > 0) {
        select(static_cast<int>(sizes[0]), static_cast<int>(sizes[1]), option == "--prompt");
        return EXIT_SUCCESS;
      }
    }
  }
  if (argc != 1) {
    fmt::print(stderr,
               "allowed: nothing, --select ROWS,KEYS, --prompt TOKENS,KEYS or --decode ROWS,HEADS,FORMAT\n");
    return 2;
  }
  for (const int keys : {4096, 32768, 131072}) {
    for (const int rows : {1, 16, 64}) select(rows, keys, false);
  }
  for (const int keys : {8192, 32768, 131072}) select(1024, keys, true);
  for (const char* format : {"bf16", "e4m3"}) {
    for (const int heads : {16, 128}) {
      for (const int rows : {1, 16, 64}) decode(rows, heads, format_of(format));
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
