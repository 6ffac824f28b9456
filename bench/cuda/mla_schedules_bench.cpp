// Every schedule of MLA decode (kernel, rows a tile, blocks a cluster) on rows of the table: what the op's
// own choice (decode_schedule in mla/geometry.cpp) is fitted to. A line is a row; µs a call as cuda_mla_bench
// measures them, with settled inputs; * marks the op's choice, ! a schedule that is 5 % faster.
//   cuda_mla_schedules_bench [bf16|f16|e4m3|e4m3/128|e5m2] [--row BATCH,Q,KEYS,HEADS]…
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/mla_measure.h"

namespace hadal::bench {
namespace {

struct Row {
  int batch = 0, q_len = 0, keys = 0, heads = 0;
};

std::vector<Row> default_rows() {
  std::vector<Row> rows;
  for (const int heads : {16, 128}) {
    for (const int keys : {1024, 4096, 16384}) {
      for (const int batch : {1, 2, 4, 8, 16, 32, 64, 128}) {
        if (keys == 16384 && batch > 32) continue;
        rows.push_back({batch, 1, keys, heads});
      }
    }
  }
  for (const int heads : {32, 64}) {
    for (const int batch : {1, 4, 8, 16, 32, 128}) rows.push_back({batch, 1, 4096, heads});
  }
  return rows;
}

std::string name_of(const cuda::DecodeSchedule& schedule) {
  using cuda::DecodeKernel;
  if (schedule.kernel == DecodeKernel::kTiles) return "tiles";
  if (schedule.kernel == DecodeKernel::kTilesFp8) return "fp8";
  return fmt::format("{}x{}", schedule.tile_rows, schedule.cluster);
}

bool same(const cuda::DecodeSchedule& a, const cuda::DecodeSchedule& b) {
  return a.kernel == b.kernel && a.tile_rows == b.tile_rows && a.cluster == b.cluster;
}

// False: not all tiles of a part are resident at once, there are far more sequences than clusters, or the
// padding is more than the rows.
bool fits(const cuda::DecodeSchedule& schedule, int batch, int rows, const cuda::ClusterCapacity& capacity) {
  int i = 0;
  while ((1 << i) < schedule.cluster) ++i;
  const int tiles = (rows + schedule.tile_rows - 1) / schedule.tile_rows;
  if (schedule.cluster > 1 && batch * tiles > 2 * capacity.clusters[i]) return false;
  return tiles <= capacity.clusters[i] && (rows > 16 || schedule.tile_rows == 16 || schedule.cluster == 1);
}

void sweep(const Format& format, Pool& pool, const Row& row) {
  const int num_sms = cuda_device_info(0).num_sms;
  const cuda::ClusterCapacity capacity = cuda::device_capacity(num_sms);
  const cuda::MlaPlanShape shape{.num_seqs = row.batch,
                                 .q_len = row.q_len,
                                 .num_heads = row.heads,
                                 .num_sms = num_sms,
                                 .layout = format.layout,
                                 .most_keys = row.keys};
  const cuda::DecodeSchedule choice = cuda::decode_schedule(shape, capacity);
  const std::vector<int32_t> lengths(static_cast<size_t>(row.batch), row.keys);
  std::vector<std::pair<cuda::DecodeSchedule, double>> times;
  double chosen_us = 0.0;
  for (const cuda::DecodeSchedule& schedule : cuda::decode_schedules(format.layout)) {
    if (!fits(schedule, row.batch, row.q_len * row.heads, capacity)) continue;
    const double us = measure(pool, row.q_len, row.heads, lengths, true, schedule).us;
    times.emplace_back(schedule, us);
    if (same(schedule, choice)) chosen_us = us;
  }
  std::string line =
      fmt::format("{:8} {:>4} {} {:>6} {:>4}:", format.name, row.batch, row.q_len, row.keys, row.heads);
  for (const auto& [schedule, us] : times) {
    const char* mark = same(schedule, choice) ? "*" : us < chosen_us * 0.95 ? "!" : "";
    line += fmt::format(" {}{} {:.1f}", name_of(schedule), mark, us);
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  std::string wanted;
  std::vector<Row> rows;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word != "--row") {
      wanted = word;
      continue;
    }
    const std::vector<int64_t> values = numbers(i + 1 < argc ? argv[++i] : "");
    if (values.size() != 4) {
      fmt::print(stderr, "--row takes BATCH,Q,KEYS,HEADS\n");
      return 2;
    }
    rows.push_back({static_cast<int>(values[0]), static_cast<int>(values[1]), static_cast<int>(values[2]),
                    static_cast<int>(values[3])});
  }
  if (rows.empty()) rows = default_rows();
  const cuda::ClusterCapacity capacity = cuda::device_capacity(cuda_device_info(0).num_sms);
  fmt::print("clusters of 1, 2, 4, 8, 16 blocks held at once: {} {} {} {} {}\n", capacity.clusters[0],
             capacity.clusters[1], capacity.clusters[2], capacity.clusters[3], capacity.clusters[4]);
  fmt::print("format   batch q  keys head: schedule us …\n");
  for (const Format& format : kFormats) {
    if (!wanted.empty() && wanted != format.name) continue;
    Pool pool(format.layout);
    for (const Row& row : rows) sweep(format, pool, row);
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  try {
    return hadal::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
