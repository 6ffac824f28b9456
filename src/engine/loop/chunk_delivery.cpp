#include "engine/loop/chunk_delivery.h"

#include <chrono>
#include <exception>
#include <new>
#include <thread>
#include <utility>

#include "base/memory_reserve.h"

namespace hadal {
namespace {

// A sink that throws std::bad_alloc is called again, because without its last chunk a request never ends for
// its client. After a second the sink counts as broken.
constexpr int kAttempts = 100;
constexpr std::chrono::milliseconds kPause{10};

template <typename T>
void make_room_for_one(std::vector<T>& list) {
  if (list.size() == list.capacity()) list.reserve(2 * list.size() + 1);
}

void hand_over(SinkGroup& group) {
  for (int attempt = 1;; ++attempt) {
    try {
      return group.sink->on_chunks(group.chunks);
    } catch (const std::bad_alloc&) {
      if (attempt == kAttempts) throw;
    }
    MemoryReserve::refill();
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

void ChunkDelivery::attach(Sequence& sequence) {
  std::unique_ptr<SinkGroup>& group = groups_[sequence.request.sink.get()];
  if (!group) {
    group = std::make_unique<SinkGroup>();
    group->sink = sequence.request.sink;
  }
  ++group->num_sequences;
  sequence.sink = group.get();
}

void ChunkDelivery::detach(Sequence& sequence) {
  if (--sequence.sink->num_sequences == 0) groups_.erase(sequence.sink->sink.get());
  sequence.sink = nullptr;
}

void ChunkDelivery::push(Sequence& sequence) {
  SinkGroup& group = *sequence.sink;
  make_room_for_one(group.chunks);
  make_room_for_one(group.owners);
  if (group.chunks.empty()) dirty_.push_back(&group);
  // From here on nothing can fail.
  TokenChunk& chunk = sequence.pending;
  chunk.request_id = sequence.id;
  chunk.prompt_tokens = sequence.prompt_len;
  chunk.completion_tokens = sequence.num_generated();
  chunk.cached_tokens = sequence.cached_tokens;
  chunk.speculation = sequence.speculation;
  group.chunks.push_back(std::exchange(chunk, {}));
  group.owners.push_back(&sequence);
}

void ChunkDelivery::deliver(const OnFailure& on_failure) {
  for (SinkGroup* group : dirty_) {
    if (group->chunks.empty()) continue;  // delivered before a failure ended that round
    owners_.swap(group->owners);
    group->owners.clear();
    const char* what = nullptr;
    std::string message;
    try {
      hand_over(*group);
    } catch (const std::exception& error) {
      message = error.what();
      what = message.c_str();
    }
    group->chunks.clear();
    if (what != nullptr) {
      for (Sequence* owner : owners_) on_failure(*owner, what);
    }
    owners_.clear();
  }
  dirty_.clear();
}

}  // namespace hadal
