#include "engine/loop/mailboxes.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hadal {
namespace {

template <typename T>
void append(std::vector<T>& to, std::vector<T>&& more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

template <typename T>
void make_room(std::vector<T>& list, size_t more) {
  if (list.capacity() - list.size() < more) list.reserve(std::max(list.size() + more, 2 * list.size()));
}

// Appends `later` to `chunk`, which then holds what a reader of both chunks would have: all tokens, and the
// state of the later one.
void join(TokenChunk& chunk, TokenChunk&& later) {
  make_room(chunk.token_ids, later.token_ids.size());
  make_room(chunk.logprobs, later.logprobs.size());
  make_room(chunk.prompt_logprobs, later.prompt_logprobs.size());
  // From here on nothing can fail.
  append(chunk.token_ids, std::move(later.token_ids));
  append(chunk.logprobs, std::move(later.logprobs));
  append(chunk.prompt_logprobs, std::move(later.prompt_logprobs));
  later.token_ids = std::move(chunk.token_ids);
  later.logprobs = std::move(chunk.logprobs);
  later.prompt_logprobs = std::move(chunk.prompt_logprobs);
  chunk = std::move(later);
}

}  // namespace

void Mailboxes::open(RequestId id) {
  const std::lock_guard lock(mutex_);
  boxes_.emplace(id, std::make_shared<Box>());
}

void Mailboxes::on_chunks(std::vector<TokenChunk>& chunks) {
  const std::lock_guard lock(mutex_);
  for (TokenChunk& chunk : chunks) {
    const auto found = boxes_.find(chunk.request_id);
    if (found == boxes_.end()) continue;
    Box& box = *found->second;
    if (box.chunk) {
      join(*box.chunk, std::move(chunk));
    } else {
      box.chunk = std::move(chunk);
    }
    chunk.request_id = 0;  // a second call after std::bad_alloc skips it
    box.changed.notify_all();
  }
}

std::optional<TokenChunk> Mailboxes::take(RequestId id, Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto found = boxes_.find(id);
  if (found == boxes_.end()) return std::nullopt;
  const std::shared_ptr<Box> box = found->second;
  const auto is_ready = [&] { return box->closed || box->chunk.has_value(); };
  if (deadline) {
    box->changed.wait_until(lock, *deadline, is_ready);
  } else {
    box->changed.wait(lock, is_ready);
  }
  if (!box->chunk) return std::nullopt;
  std::optional<TokenChunk> chunk = std::exchange(box->chunk, std::nullopt);
  if (chunk->finish_reason != FinishReason::kNone) {
    box->closed = true;
    box->changed.notify_all();
    boxes_.erase(id);
  }
  return chunk;
}

}  // namespace hadal
