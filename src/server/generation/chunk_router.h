// Carries chunks from the engine thread to the I/O threads of their requests. There is one mailbox per I/O
// thread: the engine thread appends a step's chunks and posts one task if none is pending. That task delivers
// every chunk to its receiver, so a step wakes each I/O thread once, whatever the number of streams. If
// delivery takes longer than a few milliseconds, the other tasks of the thread have their turn in between.
// Chunks that the engine makes meanwhile are delivered request by request, as one write to each stream's
// socket. A receiver whose events repeat the whole answer gets its waiting chunks joined, up to 256
// tokens at once, because its work for each chunk grows with the answer.
//
// A receiver divides work that may take longer for one chunk, such as turning log-probabilities into JSON.
// The router calls the receiver once in each turn, and several receivers one after another.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/engine.h"
#include "server/http/http.h"

namespace hadal::server {

// ChunkReceiver receives the chunks of one request. It is called on its I/O thread.
class ChunkReceiver {
 public:
  virtual ~ChunkReceiver() = default;
  virtual void on_chunk(TokenChunk chunk) = 0;
  // Returns true if chunks that wait together are to be delivered as one chunk with all of their tokens.
  virtual bool merges_chunks() const { return false; }
  // Does one part, of at most a few milliseconds, of the work for which ChunkRouter::continue_later was
  // called. Returns true if it must be called again.
  virtual bool proceed() { return false; }
};

class ChunkRouter {
 public:
  // I/O threads have indices [0, num_io_threads).
  explicit ChunkRouter(int num_io_threads);
  ~ChunkRouter();
  ChunkRouter(const ChunkRouter&) = delete;
  ChunkRouter& operator=(const ChunkRouter&) = delete;

  // The following four are called on the I/O thread `io` only.

  // Returns the sink for requests of this thread (GenerateRequest::sink).
  std::shared_ptr<ChunkSink> sink(IoThread& io);
  // Sends chunks of request `id` from now on to `receiver`, which the router keeps alive until its last chunk
  // or remove(). Call it right after Engine::submit, in the same task, because no chunk can be delivered
  // before that task ends.
  void add(IoThread& io, RequestId id, std::shared_ptr<ChunkReceiver> receiver);
  // Drops later chunks of the request.
  void remove(IoThread& io, RequestId id);

  // Calls receiver->proceed() in later tasks until that returns false. The router keeps the receiver alive
  // until then. sink() has been called on this thread before.
  void continue_later(IoThread& io, std::shared_ptr<ChunkReceiver> receiver);

  // Posts nothing after this call, which must precede the end of the I/O threads. Any thread may call it.
  void close();

 private:
  class Mailbox;
  std::vector<std::shared_ptr<Mailbox>> mailboxes_;
};

}  // namespace hadal::server
