// Chunks on their way to the sinks: gathered during a turn of the engine thread, handed over at its end, one
// call for each sink. Engine thread only.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/sequence.h"

namespace hadal {

// A sink and what this turn has for it.
struct SinkGroup {
  std::shared_ptr<ChunkSink> sink;
  std::vector<TokenChunk> chunks;
  std::vector<Sequence*> owners;  // of `chunks`, in the same order
  int64_t num_sequences = 0;      // that still use the sink
};

class ChunkDelivery {
 public:
  // Called for every sequence with a chunk in a call that threw.
  using OnFailure = std::function<void(Sequence&, const char* what)>;

  // Must precede everything else for the sequence.
  void attach(Sequence& sequence);
  void detach(Sequence& sequence);

  // Hands on sequence.pending, with the counters of this moment.
  void push(Sequence& sequence);

  // Empties all groups.
  void deliver(const OnFailure& on_failure);

 private:
  std::unordered_map<ChunkSink*, std::unique_ptr<SinkGroup>> groups_;
  std::vector<SinkGroup*> dirty_;  // those with chunks
  std::vector<Sequence*> owners_;  // scratch
};

}  // namespace hadal
