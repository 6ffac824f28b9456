// Keeps the chunks of requests without a sink until stream() or poll() takes them. Any thread may call it.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"

namespace hadal {

class Mailboxes final : public ChunkSink {
 public:
  using Deadline = std::optional<std::chrono::steady_clock::time_point>;

  void open(RequestId id);

  // Chunks that have not been taken yet are joined into one.
  void on_chunks(std::vector<TokenChunk>& chunks) override;

  // Waits for the next chunk of `id` until `deadline` (none: without limit). Returns nullopt when there is
  // none by then, after the final chunk, and for an unknown id.
  std::optional<TokenChunk> take(RequestId id, Deadline deadline);

 private:
  struct Box {
    std::optional<TokenChunk> chunk;
    bool closed = false;
    std::condition_variable changed;
  };
  std::mutex mutex_;
  std::unordered_map<RequestId, std::shared_ptr<Box>> boxes_;
};

}  // namespace hadal
