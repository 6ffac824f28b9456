// Delivers chunks to sinks: chunks are collected during a turn of the engine thread and delivered at its end,
// with one call per sink. Only the engine thread uses it.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/loop/sequence.h"

namespace hadal {

// SinkGroup holds a sink and the chunks of this turn for it.
struct SinkGroup {
  std::shared_ptr<ChunkSink> sink;
  std::vector<TokenChunk> chunks;
  std::vector<Sequence*> owners;  // owners of `chunks`, in the same order
  int64_t num_sequences = 0;      // sequences that still use the sink
};

class ChunkDelivery {
 public:
  // Called for every sequence that has a chunk in a call that threw.
  using OnFailure = std::function<void(Sequence&, const char* what)>;

  // Must be called first for the sequence.
  void attach(Sequence& sequence);
  void detach(Sequence& sequence);

  // Queues sequence.pending for delivery, with the current counters.
  void push(Sequence& sequence);

  // Delivers and empties all groups.
  void deliver(const OnFailure& on_failure);

 private:
  std::unordered_map<ChunkSink*, std::unique_ptr<SinkGroup>> groups_;
  std::vector<SinkGroup*> dirty_;  // groups with chunks
  std::vector<Sequence*> owners_;  // scratch
};

}  // namespace hadal
