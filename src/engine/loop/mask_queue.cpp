#include "engine/loop/mask_queue.h"

#include <algorithm>

namespace hadal {

MaskQueue::Place MaskQueue::push(std::shared_ptr<MaskTask> task, uint64_t client, double used_s) {
  const Place place{client, used_s, ++num_pushed_};
  const auto found = clients_.try_emplace(client).first;
  Client& its = found->second;
  const bool was_idle = its.waiting.empty() && its.num_running == 0;
  const auto added = its.waiting.emplace(std::pair(used_s, place.number), std::move(task)).first;
  if (was_idle) {
    its.used_s = std::max(its.used_s, chosen_s_);
    its.turn = ++num_turns_;
  }
  if (!its.is_ready && its.num_running < client_limit_) {
    try {
      ready_.insert(rank_of(*found));
    } catch (...) {
      its.waiting.erase(added);
      throw;
    }
    its.is_ready = true;
  }
  ++num_tasks_;
  return place;
}

void MaskQueue::erase(const Place& place) {
  const auto found = clients_.find(place.client);
  if (found == clients_.end() || found->second.waiting.erase({place.used_s, place.number}) == 0) return;
  --num_tasks_;
  if (found->second.waiting.empty() && std::exchange(found->second.is_ready, false))
    ready_.erase(rank_of(*found));
  forget_if_idle(found);
}

void MaskQueue::clear() {
  clients_.clear();
  ready_.clear();
  chosen_s_ = 0.0;
  num_tasks_ = 0;
}

std::shared_ptr<MaskTask> MaskQueue::pop() {
  if (ready_.empty()) return nullptr;
  auto node = ready_.extract(ready_.begin());
  const auto found = clients_.find(std::get<2>(node.value()));
  Client& its = found->second;
  const auto first = its.waiting.begin();
  std::shared_ptr<MaskTask> task = std::move(first->second);
  its.waiting.erase(first);
  ++its.num_running;
  its.turn = ++num_turns_;
  chosen_s_ = std::max(chosen_s_, its.used_s);
  its.is_ready = !its.waiting.empty() && its.num_running < client_limit_;
  if (its.is_ready) {
    node.value() = rank_of(*found);
    ready_.insert(std::move(node));
  }
  return task;
}

void MaskQueue::finish(uint64_t client, double seconds) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return;  // the queue was cleared
  Client& its = found->second;
  if (its.is_ready) ready_.erase(rank_of(*found));
  its.used_s += seconds;
  --its.num_running;
  --num_tasks_;
  its.is_ready = !its.waiting.empty();
  if (its.is_ready) ready_.insert(rank_of(*found));
  forget_if_idle(found);
}

// The time of a client that has used more than the others is remembered until there is nothing to do.
void MaskQueue::forget_if_idle(Clients::iterator client) {
  if (num_tasks_ == 0) {
    clear();
  } else if (const Client& its = client->second;
             its.waiting.empty() && its.num_running == 0 && its.used_s <= chosen_s_) {
    clients_.erase(client);
  }
}

}  // namespace hadal
