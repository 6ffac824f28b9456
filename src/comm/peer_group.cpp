#include "comm/peer_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"
#include "comm/reason.h"
#include "comm/wait.h"
#include "kernels/cuda/comm/comm.h"
#include "kernels/cuda/comm/symmetric_memory.h"
#include "tensor/cuda.h"

namespace hadal {
namespace {

// A rank's memory begins with its flags, which occupy this many bytes. The memory for lines and two places
// follows.
constexpr int64_t kFlagBytes = 4096;
static_assert(sizeof(cuda::ExchangeFlags) <= kFlagBytes &&
              (kFlagBytes + cuda::kLinesMemory) % kPlaceAlignment == 0);

// Holds the words through which the host and the devices communicate, in page-locked memory.
struct HostWords {
  uint32_t stop = 0;
  cuda::LateReport reports[cuda::kMaxRanks] = {};
};

bool all_differ(std::vector<int> devices) {
  std::sort(devices.begin(), devices.end());
  return std::adjacent_find(devices.begin(), devices.end()) == devices.end();
}

}  // namespace

struct PeerGroup::Shared {
  std::vector<int> devices;  // [num_ranks]
  std::chrono::milliseconds deadline;
  PinnedBuffer host_words{sizeof(HostWords)};
  std::vector<cuda::SymmetricMemory> memory;  // [num_ranks]
  std::vector<std::unique_ptr<End>> ends;     // [num_ranks]

  std::mutex mutex;  // guards `reason`, which is written before `stop`
  Reason reason;     // of the first fail()

  HostWords& words() const { return *host_words.as<HostWords>(); }
  bool stopped() const { return std::atomic_ref(words().stop).load(std::memory_order_acquire) != 0; }
  void fail(int rank, std::string_view why) noexcept;
  void check();
};

void PeerGroup::Shared::fail(int rank, std::string_view why) noexcept {
  std::lock_guard lock(mutex);
  if (stopped()) return;
  reason.append("rank {}: {}", rank, why);
  std::atomic_ref(words().stop).store(1, std::memory_order_release);
}

void PeerGroup::Shared::check() {
  // A failure that a rank has reported comes first, because others may be late because of it.
  if (stopped()) {
    std::lock_guard lock(mutex);
    throw RankFailed(std::string(reason.text()));
  }
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    cuda::LateReport& report = words().reports[rank];
    if (std::atomic_ref(report.is_late).load(std::memory_order_acquire) == 0) continue;
    throw RankLost(
        fmt::format("rank {} is lost: within {} ms it has not come to exchange {}, as rank {} has; {}",
                    report.missing, deadline.count(), report.expected, rank,
                    report.seen == 0 ? std::string("it has come to none")
                                     : fmt::format("the last exchange seen of it is {}", report.seen)));
  }
}

class PeerGroup::End final : public DeviceCommunicator {
 public:
  End(Shared& shared, int rank, const DevicePlaces& places)
      : DeviceCommunicator(rank, static_cast<int>(shared.devices.size()), places), shared_(shared) {
    params_.rank = rank;
    params_.num_ranks = num_ranks();
    for (int r = 0; r < num_ranks(); ++r) {
      params_.flags[r] = reinterpret_cast<cuda::ExchangeFlags*>(shared.memory[r].data());
      params_.lines[r] = shared.memory[r].data() + kFlagBytes;
    }
    params_.report = &shared.words().reports[rank];
    params_.stop = &shared.words().stop;
    params_.deadline_ns = std::chrono::nanoseconds(shared.deadline).count();
    params_.early_dependents = all_differ(shared.devices);
  }

  bool graphs() const override { return true; }
  void check() override { shared_.check(); }
  void fail(std::string_view why) noexcept override { shared_.fail(rank(), why); }
  void set_host(Communicator* host) { host_ = host; }

 private:
  void wait_for_all(const cuda::Launch& launch) override {
    const bool together = waits_for_threads(launch);
    if (together) host_->barrier();
    cuda::exchange_flags(params_, launch);
    if (together) host_->barrier();
  }
  const cuda::ExchangeParams* device_params(const cuda::Launch& launch) const override {
    return waits_for_threads(launch) ? nullptr : &params_;
  }
  bool waits_for_threads(const cuda::Launch& launch) const {
    return host_ != nullptr && !is_capturing(launch.stream);
  }

  Shared& shared_;
  Communicator* host_ = nullptr;
  cuda::ExchangeParams params_;
};

PeerGroup::PeerGroup(std::span<const int> devices, int64_t place_bytes, std::chrono::milliseconds deadline)
    : shared_(std::make_unique<Shared>()) {
  const int num_ranks = static_cast<int>(devices.size());
  HADAL_CHECK(num_ranks >= 1 && num_ranks <= cuda::kMaxRanks, "{} ranks, allowed are 1 to {}", num_ranks,
              cuda::kMaxRanks);
  check_deadline(deadline);
  HADAL_CHECK(place_bytes > 0, "a place of {} bytes", place_bytes);
  cuda::check_peer_access(devices);
  shared_->devices.assign(devices.begin(), devices.end());
  shared_->deadline = deadline;
  new (shared_->host_words.data()) HostWords;
  std::vector<int> distinct = shared_->devices;
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  DevicePlaces places{.memory = {}, .place_bytes = place_bytes};
  for (int rank = 0; rank < num_ranks; ++rank) {
    shared_->memory.emplace_back(devices[rank], distinct, bytes_per_rank(place_bytes));
    places.memory[rank] = shared_->memory[rank].data() + kFlagBytes + cuda::kLinesMemory;
  }
  for (const int device : distinct) cuda::load_comm_kernels(device);
  for (int rank = 0; rank < num_ranks; ++rank) {
    shared_->ends.push_back(std::make_unique<End>(*shared_, rank, places));
  }
}
PeerGroup::~PeerGroup() = default;

int64_t PeerGroup::bytes_per_rank(int64_t place_bytes) {
  return kFlagBytes + cuda::kLinesMemory + 2 * place_bytes;
}

int PeerGroup::num_ranks() const {
  return static_cast<int>(shared_->devices.size());
}

DeviceCommunicator& PeerGroup::end(int rank, Communicator* host) {
  HADAL_CHECK(rank >= 0 && rank < num_ranks(), "rank {} of {}", rank, num_ranks());
  End& end = *shared_->ends[rank];
  if (host != nullptr) end.set_host(host);
  return end;
}

}  // namespace hadal
