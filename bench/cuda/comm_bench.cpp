// Measures the collectives of ranks on GPUs in microseconds per call inside CUDA graphs, and prints beside
// them the times of the model by which an algorithm is chosen. With fewer GPUs than ranks, all ranks share
// GPU 0, and then the figures show the cost of the kernels but not that of the links. The row "norm" is what
// follows each half of a layer: an exchange and the kernel that adds the parts and the float32 residual,
// normalises, and writes FP8 codes.
//
//   cuda_comm_bench [ranks, 2,4,8 by default] [rows, 1,8,64,128,1024,8192 by default] [row width, 7168 by
//   default]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/check.h"
#include "bench/cuda/arguments.h"
#include "comm/collective_choice.h"
#include "comm/device_collectives.h"
#include "comm/peer_group.h"
#include "kernels/cuda/availability.h"
#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "tensor/cuda.h"

namespace hadal::bench {
namespace {

constexpr int kCalls = 20;  // calls in a graph
constexpr int kReplays = 9;

// Holds a rank's streams and buffers on its device, which must be the current device while they are used.
struct Rank {
  int device = 0;
  cuda::Launch launch;
  CudaStream stream;
  DeviceBuffer in;
  DeviceBuffer out;
};

class Ranks {
 public:
  Ranks(const std::vector<int>& devices, int64_t most_bytes)
      : group_(devices, (most_bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment,
               std::chrono::seconds(10)) {
    const auto num_ranks = static_cast<size_t>(devices.size());
    for (const int device : devices) {
      cuda_set_device(device);
      Rank& rank = ranks_.emplace_back();
      rank.device = device;
      rank.launch = {.stream = rank.stream.handle(), .num_sms = cuda_device_info(device).num_sms};
      rank.in = DeviceBuffer(static_cast<size_t>(most_bytes));
      rank.out = DeviceBuffer(static_cast<size_t>(most_bytes) * num_ranks);
      fill_device(rank.in.data(), 0x3f, rank.in.size(), rank.stream.handle());
      rank.stream.synchronize();
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& at(int i) { return ranks_[static_cast<size_t>(i)]; }

  // Returns microseconds per call, the median of replays. All ranks start a graph of calls. The graph that is
  // launched last, for which all others wait, is measured.
  double time(const std::function<void(DeviceCommunicator&, Rank&)>& call) {
    std::vector<CudaGraph> graphs;
    for (int i = 0; i < size(); ++i) {
      Rank& rank = ranks_[i];
      cuda_set_device(rank.device);
      DeviceCommunicator& end = group_.end(i);
      graphs.push_back(CudaGraph::capture(rank.stream, [&] {
        end.begin_step();
        for (int n = 0; n < kCalls; ++n) call(end, rank);
        end.end_step(rank.launch);
      }));
    }
    std::vector<double> times;
    for (int replay = -2; replay < kReplays; ++replay) {
      CudaEvent begin(true);  // on the last rank's device, which is current
      CudaEvent end(true);
      for (int i = 0; i < size(); ++i) {
        cuda_set_device(ranks_[i].device);
        const StreamHandle stream = ranks_[i].stream.handle();
        if (i == size() - 1) begin.record(stream);
        graphs[i].launch(stream);
        if (i == size() - 1) end.record(stream);
      }
      for (const Rank& rank : ranks_) rank.stream.synchronize();
      group_.end(0).check();
      if (replay >= 0) times.push_back(static_cast<double>(end.ms_since(begin)) * 1e3 / kCalls);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  PeerGroup group_;
  std::vector<Rank> ranks_;
};

void print(const char* name, int64_t bytes, int64_t received, double us, double modelled_us) {
  fmt::print("{:16} {:>11} {:>9.2f} {:>9.2f} {:>7.0f}\n", name, bytes, us, modelled_us,
             static_cast<double>(received) / us * 1e-3);
}

// Returns the time of an exchange with the norm that reads the parts.
double norm_us(Ranks& ranks, const PartialRows& rows) {
  const auto values = static_cast<size_t>(rows.m * rows.n);
  struct Buffers {
    DeviceBuffer residual, weight, codes, scales;
  };
  std::vector<Buffers> buffers;
  for (int i = 0; i < ranks.size(); ++i) {
    cuda_set_device(ranks.at(i).device);
    buffers.push_back({DeviceBuffer(values * 4), DeviceBuffer(static_cast<size_t>(rows.n) * 4),
                       DeviceBuffer(values),
                       DeviceBuffer(static_cast<size_t>((rows.m + 3) / 4 * 4 * rows.n / 128 * 4))});
    fill_device(buffers.back().residual.data(), 0, values * 4, ranks.at(i).stream.handle());
    fill_device(buffers.back().weight.data(), 0x3f, static_cast<size_t>(rows.n) * 4,
                ranks.at(i).stream.handle());
    ranks.at(i).stream.synchronize();
  }
  return ranks.time([&](DeviceCommunicator& end, Rank& rank) {
    const Buffers& own = buffers[static_cast<size_t>(end.rank())];
    void* const mine = end.partial(rows.m * rows.n * 2);
    cuda::NormInput input;
    if (cuda::norm_exchanges(rows.m, rows.n, false, end.num_ranks(), rank.launch))
      input.exchange = end.small_exchange(rank.launch, rows.m * rows.n * 2);
    if (input.exchange != nullptr) {
      input.part = mine;
    } else {
      input.exchanged = end.exchange(rank.launch, rows.m * rows.n * 2);
    }
    cuda::QuantizedRows codes;
    codes.codes = own.codes.as<fp8_e4m3>();
    codes.scales = own.scales.as<float>();
    codes.stride = rows.n;
    codes.scale_stride = (rows.m + 3) / 4 * 4;
    cuda::add_rms_norm({.input = input,
                        .residual = own.residual.as<float>(),
                        .weight = own.weight.as<float>(),
                        .y_quantized = codes,
                        .m = rows.m,
                        .n = rows.n},
                       rank.launch);
  });
}

// Measures all collectives of rows whose size on each rank is `rows`.
void measure(Ranks& ranks, const PartialRows& rows) {
  const int64_t bytes = rows.m * rows.n * 2;
  const int num_ranks = ranks.size();
  const auto received = [&](CollectiveOp op) {
    return choose_collective(op, bytes, num_ranks).bytes_received;
  };
  const auto sum = [&](auto collective) {
    return ranks.time([&](DeviceCommunicator& end, Rank& rank) {
      end.partial(bytes);
      collective(end, rows, rank.out.data(), rank.launch);
    });
  };
  print("norm", bytes, (num_ranks - 1) * bytes, norm_us(ranks, rows), exchange_us(bytes, num_ranks));
  const int64_t slice_bytes = slice_of_rows(rows.m, num_ranks, 0).count * rows.n * 2;
  print("one-shot", bytes, (num_ranks - 1) * bytes, sum(all_reduce_one_shot), exchange_us(bytes, num_ranks));
  if (bytes <= cuda::kMaxLinesBytes) {
    print("small", bytes, 2 * (num_ranks - 1) * bytes, sum(all_reduce_small),
          exchange_us(2 * bytes, num_ranks));
  }
  print("two-shot", bytes, 2 * (num_ranks - 1) * slice_bytes, sum(all_reduce_two_shot),
        2 * exchange_us(slice_bytes, num_ranks));
  print("reduce-scatter", bytes, received(CollectiveOp::kReduceScatter), sum(reduce_scatter),
        choose_collective(CollectiveOp::kReduceScatter, bytes, num_ranks).us);
  const std::vector<int64_t> sizes(num_ranks, bytes);
  const double gather_us = ranks.time([&](DeviceCommunicator& end, Rank& rank) {
    all_gather(end, rank.in.data(), sizes, rank.out.data(), rank.launch);
  });
  print("all-gather", bytes, received(CollectiveOp::kAllGather), gather_us,
        choose_collective(CollectiveOp::kAllGather, bytes, num_ranks).us);
  const std::vector<int64_t> messages(num_ranks * num_ranks, bytes / num_ranks);
  const double exchange_all_us = ranks.time([&](DeviceCommunicator& end, Rank& rank) {
    all_to_all(end, rank.in.data(), messages, rank.out.data(), rank.launch);
  });
  print("all-to-all", bytes, received(CollectiveOp::kAllToAll), exchange_all_us,
        choose_collective(CollectiveOp::kAllToAll, bytes, num_ranks).us);
}

int run(int argc, char** argv) {
  const auto rank_counts = numbers("ranks", argc > 1 ? argv[1] : "2,4,8");
  const auto row_counts = numbers("rows", argc > 2 ? argv[2] : "1,8,64,128,1024,8192");
  const int64_t width = numbers("row width", argc > 3 ? argv[3] : "7168").front();
  const cuda::Availability found = cuda::availability();
  HADAL_CHECK(found.usable, "{}", found.reason);
  for (const int64_t num_ranks : rank_counts) {
    const bool alone = found.num_devices >= num_ranks;
    std::vector<int> devices(num_ranks, 0);
    for (int r = 0; alone && r < num_ranks; ++r) devices[r] = r;
    fmt::print("{} ranks, {}\n", num_ranks, alone ? "a GPU each" : "all on GPU 0");
    Ranks ranks(devices, *std::max_element(row_counts.begin(), row_counts.end()) * width * 2);
    fmt::print("{:16} {:>11} {:>9} {:>9} {:>7}\n", "collective", "bytes", "us", "modelled", "GB/s");
    const double exchange =
        ranks.time([](DeviceCommunicator& end, Rank& rank) { end.exchange(rank.launch, 0); });
    print("exchange", 0, 0, exchange, exchange_us(0, static_cast<int>(num_ranks)));
    for (const int64_t m : row_counts) measure(ranks, {.m = m, .n = width});
  }
  return 0;
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  // All code is loaded now. Loading it at a kernel's first launch would wait for the running kernels, which
  // may in turn wait for the rank that launches.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
