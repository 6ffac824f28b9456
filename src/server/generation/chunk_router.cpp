#include "server/generation/chunk_router.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <iterator>
#include <list>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/memory_reserve.h"

namespace hadal::server {
namespace {

using Clock = std::chrono::steady_clock;

// After this time the other tasks of the I/O thread have their turn. A request may have thousands of choices
// that end in the same step.
constexpr std::chrono::milliseconds kRoutingTurn{5};

// At most this many chunks of several steps are sorted at once, which takes about a millisecond.
constexpr size_t kMostTaken = 8192;

// Chunks are merged while they have at most this many tokens together, so that one delivery stays short.
constexpr size_t kMostMergedTokens = 256;

template <typename T>
void make_room(std::vector<T>& in, size_t more) {
  if (in.capacity() - in.size() < more) in.reserve(std::max(in.size() + more, 2 * in.capacity()));
}

template <typename T>
void move_to_end(std::vector<T>& of, std::vector<T>& from) {
  of.insert(of.end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

// Makes one chunk of `chunk` and `next`, the following one of the same request, which may be its last. If
// that would be too large or there is no memory for it, it returns false and changes neither.
bool merge(TokenChunk& chunk, TokenChunk& next) {
  if (chunk.token_ids.size() + next.token_ids.size() > kMostMergedTokens) return false;
  try {
    make_room(chunk.token_ids, next.token_ids.size());
    make_room(chunk.logprobs, next.logprobs.size());
    make_room(chunk.prompt_logprobs, next.prompt_logprobs.size());
  } catch (const std::bad_alloc&) {
    return false;
  }
  move_to_end(chunk.token_ids, next.token_ids);
  move_to_end(chunk.logprobs, next.logprobs);
  move_to_end(chunk.prompt_logprobs, next.prompt_logprobs);
  // All other fields are the newest: counts so far, timings, and how the request ended.
  next.token_ids.swap(chunk.token_ids);
  next.logprobs.swap(chunk.logprobs);
  next.prompt_logprobs.swap(chunk.prompt_logprobs);
  chunk = std::move(next);
  return true;
}

}  // namespace

class ChunkRouter::Mailbox final : public ChunkSink, public std::enable_shared_from_this<Mailbox> {
 public:
  // Runs on the I/O thread.
  void bind(IoThread& io) {
    if (bound_) return;
    bound_ = true;
    const std::lock_guard lock(mutex_);
    if (!closed_) io_ = &io;
  }

  void on_chunks(std::vector<TokenChunk>& chunks) override {  // engine thread
    const std::lock_guard lock(mutex_);
    if (io_ == nullptr) return;
    // If an earlier task could not be posted, this call posts it, even without chunks.
    if (!chunks.empty()) pending_.emplace_back().swap(chunks);
    post_task();
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    io_ = nullptr;
    pending_.clear();
  }

  void continue_later(std::shared_ptr<ChunkReceiver> receiver) {  // I/O thread
    unfinished_.push_back(std::move(receiver));
    const std::lock_guard lock(mutex_);
    post_task();
  }

  std::unordered_map<RequestId, std::shared_ptr<ChunkReceiver>> receivers;  // I/O thread

 private:
  // The caller holds the lock, because close() must not return during a call of io_->post(), which never
  // waits for the I/O thread.
  void post_task() {
    if (task_posted_ || io_ == nullptr) return;
    io_->post([self = shared_from_this()] { self->take_turn(); });
    task_posted_ = true;
  }

  void take_turn() {
    {
      const std::lock_guard lock(mutex_);
      task_posted_ = false;
      if (next_ == order_.size()) take_pending();
    }
    const Clock::time_point end = Clock::now() + kRoutingTurn;
    while (next_ < order_.size()) {
      deliver_next();
      if (Clock::now() >= end) break;
    }
    const bool has_more = next_ < order_.size();
    if (!has_more) taken_.clear();
    proceed_with_one();  // in every turn, because chunks alone may fill every turn
    const std::lock_guard lock(mutex_);
    if (has_more || !unfinished_.empty() || !pending_.empty()) post_task();
  }

  // Takes the chunks of the oldest steps. When this thread is behind the engine, it takes several steps. It
  // then delivers the chunks request by request, so that each stream's data is one write to its socket. If
  // there is no memory for that, it takes nothing, and the next turn tries again. The caller holds the lock.
  void take_pending() {
    next_ = 0;
    order_.clear();
    size_t count = 0;
    auto end = pending_.begin();
    while (end != pending_.end() && (count == 0 || count + end->size() <= kMostTaken))
      count += (end++)->size();
    try {
      const MemoryReserve::Scope reserve;  // the chunks belong to many requests
      order_.reserve(count);
    } catch (const std::bad_alloc&) {
      return;
    }
    taken_.splice(taken_.end(), pending_, pending_.begin(), end);
    for (std::vector<TokenChunk>& step : taken_) {
      for (TokenChunk& chunk : step) order_.push_back(&chunk);
    }
    if (taken_.size() == 1) return;
    std::stable_sort(order_.begin(), order_.end(),
                     [](const TokenChunk* a, const TokenChunk* b) { return a->request_id < b->request_id; });
  }

  void proceed_with_one() {
    if (unfinished_.empty()) return;
    const std::shared_ptr<ChunkReceiver> receiver = std::move(unfinished_.front());
    unfinished_.pop_front();
    try {
      if (!receiver->proceed()) return;
    } catch (const std::exception& error) {
      log_error("a part of an answer could not be made error=\"{}\"", error.what());
      return;
    }
    const MemoryReserve::Scope reserve;  // no later call would continue
    unfinished_.push_back(receiver);
  }

  // Delivers the next chunk. Later chunks of its request that wait already are merged into it if its receiver
  // merges chunks.
  void deliver_next() {
    TokenChunk chunk = std::move(*order_[next_++]);
    const auto at = receivers.find(chunk.request_id);
    if (at == receivers.end()) return;  // its client has gone
    const std::shared_ptr<ChunkReceiver> receiver = at->second;
    if (receiver->merges_chunks()) {
      const auto follows = [&] {
        return next_ < order_.size() && order_[next_]->request_id == chunk.request_id;
      };
      while (follows() && merge(chunk, *order_[next_])) ++next_;
    }
    if (chunk.finish_reason != FinishReason::kNone) receivers.erase(at);
    try {
      receiver->on_chunk(std::move(chunk));
    } catch (const std::exception& error) {
      log_error("delivering a chunk failed error=\"{}\"", error.what());
    }
  }

  std::mutex mutex_;
  std::list<std::vector<TokenChunk>> pending_;  // the chunks of steps
  bool task_posted_ = false;
  bool closed_ = false;
  IoThread* io_ = nullptr;
  std::list<std::vector<TokenChunk>> taken_;  // I/O thread: the chunks that are being delivered, step by step
  std::vector<TokenChunk*> order_;  // I/O thread: the chunks from next_ on are still to be delivered
  size_t next_ = 0;
  std::deque<std::shared_ptr<ChunkReceiver>> unfinished_;  // I/O thread: they take turns
  bool bound_ = false;                                     // I/O thread
};

ChunkRouter::ChunkRouter(int num_io_threads) {
  HADAL_CHECK(num_io_threads >= 1, "num_io_threads {}", num_io_threads);
  for (int i = 0; i < num_io_threads; ++i) mailboxes_.push_back(std::make_shared<Mailbox>());
}

ChunkRouter::~ChunkRouter() {
  close();
}

std::shared_ptr<ChunkSink> ChunkRouter::sink(IoThread& io) {
  const auto& mailbox = mailboxes_.at(static_cast<size_t>(io.index()));
  mailbox->bind(io);
  return mailbox;
}

void ChunkRouter::add(IoThread& io, RequestId id, std::shared_ptr<ChunkReceiver> receiver) {
  mailboxes_.at(static_cast<size_t>(io.index()))->receivers.emplace(id, std::move(receiver));
}

void ChunkRouter::remove(IoThread& io, RequestId id) {
  mailboxes_.at(static_cast<size_t>(io.index()))->receivers.erase(id);
}

void ChunkRouter::continue_later(IoThread& io, std::shared_ptr<ChunkReceiver> receiver) {
  mailboxes_.at(static_cast<size_t>(io.index()))->continue_later(std::move(receiver));
}

void ChunkRouter::close() {
  for (const auto& mailbox : mailboxes_) mailbox->close();
}

}  // namespace hadal::server
