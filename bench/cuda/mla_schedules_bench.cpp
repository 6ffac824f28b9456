// Measures every schedule of MLA decode (kernel, rows per tile, blocks per cluster) on rows of the table. The
// op's own choice relies on times that are fitted to these (mla/plan/fitted.h). The program prints one line
// per row: µs per call, measured as by cuda_mla_bench, with settled inputs. * marks the op's choice, and ! a
// schedule that is 5 % faster.
//   cuda_mla_schedules_bench [bf16|f16|e4m3|e4m3/128|e5m2] [--splits|--cuts] [--row BATCH,Q,KEYS,HEADS]…
// --splits measures each schedule with the plan's own splits, with as many as possible, with none, and with
// the plan's own splits joined by the merge kernel. Keys 0 means lengths with uniform logarithms from 64 to
// 32k. --cuts measures the op's choice and the schedule of single blocks in two ways. First, every sequence
// is cut into 1, 2, 3 … splits of one length (printed as the number and its µs). Second, the batch is laid
// end to end and cut into equal shares, where a sequence is assumed to cost NS ns besides its pages (printed
// as bNS and its µs). = marks the plan's own cut. The plan's times are fitted to these.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "bench/cuda/arguments.h"
#include "bench/cuda/mla_measure.h"
#include "bench/cuda/mla_schedules.h"

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

std::vector<int32_t> lengths_of(const Row& row) {
  std::vector<int32_t> lengths(static_cast<size_t>(row.batch), row.keys);
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> logarithm(std::log(64.0), std::log(32768.0));
  for (int32_t& length : lengths) {
    if (row.keys == 0) length = static_cast<int32_t>(std::exp(logarithm(random)));
  }
  return lengths;
}

void sweep(const Format& format, Pool& pool, const Row& row, bool splits) {
  const int num_sms = cuda_device_info(0).num_sms;
  const std::vector<int32_t> lengths = lengths_of(row);
  const cuda::ClusterCapacity capacity = cuda::device_capacity(num_sms);
  const cuda::MlaPlanShape shape{.num_seqs = row.batch,
                                 .q_len = row.q_len,
                                 .num_heads = row.heads,
                                 .num_sms = num_sms,
                                 .layout = format.layout,
                                 .most_keys = *std::max_element(lengths.begin(), lengths.end())};
  const cuda::DecodeSchedule choice = cuda::decode_schedule(shape, capacity);
  struct Time {
    cuda::DecodeSchedule schedule;
    double us;
    std::string more;
  };
  std::vector<Time> times;
  double chosen_us = 0.0;
  for (const cuda::DecodeSchedule& schedule : cuda::decode_schedules(format.layout)) {
    if (!fits(schedule, row.batch, row.q_len * row.heads, capacity)) continue;
    const cuda::DecodeGeometry geometry = cuda::decode_geometry(shape, schedule, capacity);
    const auto us_of = [&](const cuda::DecodeGeometry& g) {
      return measure(pool, row.q_len, row.heads, lengths, true, g).us;
    };
    const double us = us_of(geometry);
    std::string more;
    if (splits) {
      cuda::DecodeGeometry other = geometry;
      other.merge_ns = other.split_ns = 0;
      const double most = us_of(other);
      other.merge_ns = 1 << 28;
      const double none = us_of(other);
      other = geometry;
      other.merge_inside = false;
      more = fmt::format("({:.1f},{:.1f},{:.1f})", most, none, us_of(other));
    }
    times.push_back({schedule, us, more});
    if (same(schedule, choice)) chosen_us = us;
  }
  std::string line =
      fmt::format("{:8} {:>4} {} {:>6} {:>4}:", format.name, row.batch, row.q_len, row.keys, row.heads);
  for (const auto& [schedule, us, more] : times) {
    const char* mark = same(schedule, choice) ? "*" : us < chosen_us * 0.95 ? "!" : "";
    line += fmt::format(" {}{} {:.1f}{}", name_of(schedule), mark, us, more);
  }
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void sweep_cuts(const Format& format, Pool& pool, const Row& row) {
  const int num_sms = cuda_device_info(0).num_sms;
  const std::vector<int32_t> lengths = lengths_of(row);
  const cuda::ClusterCapacity capacity = cuda::device_capacity(num_sms);
  const cuda::MlaPlanShape shape{.num_seqs = row.batch,
                                 .q_len = row.q_len,
                                 .num_heads = row.heads,
                                 .num_sms = num_sms,
                                 .layout = format.layout,
                                 .most_keys = *std::max_element(lengths.begin(), lengths.end())};
  const cuda::DecodeSchedule choice = cuda::decode_schedule(shape, capacity);
  std::vector<cuda::DecodeSchedule> schedules{choice};
  const cuda::DecodeSchedule single{cuda::DecodeKernel::kSwapped, 16, 1};
  if (!same(choice, single) && fits(single, row.batch, row.q_len * row.heads, capacity))
    schedules.push_back(single);
  for (const cuda::DecodeSchedule& schedule : schedules) {
    const cuda::DecodeGeometry geometry = cuda::decode_geometry(shape, schedule, capacity);
    const auto us_of = [&](const cuda::DecodeGeometry& g) {
      return measure(pool, row.q_len, row.heads, lengths, true, g).us;
    };
    std::string line =
        fmt::format("{:8} {:>4} {} {:>6} {:>4}: {} of {} parts: = {:.2f}", format.name, row.batch, row.q_len,
                    row.keys, row.heads, name_of(schedule), geometry.num_parts, us_of(geometry));
    const int most_splits = geometry.num_parts / row.batch;
    const int64_t strides =
        (shape.most_keys + kPageSize * schedule.cluster - 1) / (kPageSize * schedule.cluster);
    int64_t last_share = 0;
    for (int number = 0; number < 12 && most_splits > 0; ++number) {
      // All numbers of splits are measured if there are at most twelve. Otherwise twelve numbers are
      // measured, evenly spaced from about a fifth of the largest number up to the largest.
      const int wanted = most_splits <= 12 ? number + 1 : most_splits - number * most_splits / 14;
      if (wanted > most_splits) break;
      const int64_t share = (strides + wanted - 1) / wanted;
      if (share == last_share) continue;  // the same as the previous cut
      last_share = share;
      cuda::DecodeGeometry g = geometry;
      g.num_parts = wanted * row.batch;
      g.max_slots = int64_t{2} * g.num_parts;
      g.merge_ns = g.split_ns = 0;
      g.sequence_ns = 200'000;  // equal shares count it twice, so they are not chosen
      line += fmt::format(" {} {:.2f}", wanted, us_of(g));
    }
    for (const int sequence_ns : {100, 3000, 6000, 10000, 14000}) {
      cuda::DecodeGeometry g = geometry;
      g.lone_page_ns = 1 << 28;  // prevents even cuts and whole sequences
      g.sequence_ns = sequence_ns;
      if (row.batch > geometry.num_parts) continue;
      line += fmt::format(" b{} {:.2f}", sequence_ns, us_of(g));
    }
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  std::string wanted;
  bool splits = false;
  bool cuts = false;
  std::vector<Row> rows;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--splits" || word == "--cuts") {
      (word == "--cuts" ? cuts : splits) = true;
      continue;
    }
    if (word != "--row") {
      wanted = word;
      continue;
    }
    const std::vector<int64_t> values = numbers("--row", i + 1 < argc ? argv[++i] : "");
    if (values.size() != 4) {
      fmt::print(stderr, "--row needs BATCH,Q,KEYS,HEADS\n");
      return 2;
    }
    rows.push_back({static_cast<int>(values[0]), static_cast<int>(values[1]), static_cast<int>(values[2]),
                    static_cast<int>(values[3])});
  }
  if (rows.empty()) rows = default_rows();
  const cuda::ClusterCapacity capacity = cuda::device_capacity(cuda_device_info(0).num_sms);
  fmt::print("clusters of 1, 2, 4, 8, 16 blocks resident at once: {} {} {} {} {}\n", capacity.clusters[0],
             capacity.clusters[1], capacity.clusters[2], capacity.clusters[3], capacity.clusters[4]);
  fmt::print("format   batch q  keys head: schedule us …\n");
  for (const Format& format : kFormats) {
    if (!wanted.empty() && wanted != format.name) continue;
    Pool pool(format.layout);
    for (const Row& row : rows) {
      if (cuts) {
        sweep_cuts(format, pool, row);
      } else {
        sweep(format, pool, row, splits);
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
