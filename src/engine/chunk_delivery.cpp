#include "engine/chunk_delivery.h"

#include <exception>
#include <utility>

namespace hadal {

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
  if (group.chunks.empty()) dirty_.push_back(&group);
  TokenChunk& chunk = sequence.pending;
  chunk.request_id = sequence.id;
  chunk.prompt_tokens = sequence.prompt_len;
  chunk.completion_tokens = sequence.num_generated();
  chunk.cached_tokens = sequence.cached_tokens;
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
      group->sink->on_chunks(std::exchange(group->chunks, {}));
    } catch (const std::exception& error) {
      message = error.what();
      what = message.c_str();
    }
    if (what != nullptr) {
      for (Sequence* owner : owners_) on_failure(*owner, what);
    }
    owners_.clear();
  }
  dirty_.clear();
}

}  // namespace hadal
