#include "engine/loop/mask_queue.h"

#include <algorithm>

namespace hadal {

MaskQueue::Place MaskQueue::push(std::shared_ptr<MaskTask> task, uint64_t client, double used_s) {
  const Place place{client, used_s, ++num_pushed_};
  forget_idle_clients();
  const auto found = clients_.try_emplace(client).first;
  Client& its = found->second;
  const bool was_idle = its.is_idle();
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
  num_busy_ += was_idle ? 1 : 0;
  return place;
}

void MaskQueue::erase(const Place& place) {
  const auto found = clients_.find(place.client);
  if (found == clients_.end() || found->second.waiting.erase({place.used_s, place.number}) == 0) return;
  if (found->second.waiting.empty() && std::exchange(found->second.is_ready, false))
    ready_.erase(rank_of(*found));
  note_idle(found);
}

void MaskQueue::clear() {
  clients_.clear();
  ready_.clear();
  chosen_s_ = 0.0;
  num_busy_ = 0;
  num_kept_ = 0;
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
  chosen_s_ += seconds / (2.0 * static_cast<double>(num_busy_));
  --its.num_running;
  its.is_ready = !its.waiting.empty();
  if (its.is_ready) ready_.insert(rank_of(*found));
  note_idle(found);
}

// The time of a client that has used more than the others is remembered until they have caught up, or there
// is nothing to do.
void MaskQueue::note_idle(Clients::iterator client) {
  if (!client->second.is_idle()) return;
  --num_busy_;
  if (num_busy_ == 0) {
    clear();
  } else if (client->second.used_s <= chosen_s_) {
    clients_.erase(client);
  }
}

// It looks at all clients only after their number has doubled.
void MaskQueue::forget_idle_clients() {
  if (std::ssize(clients_) <= 2 * num_kept_ + 16) return;
  std::erase_if(clients_, [this](const Clients::value_type& client) {
    return client.second.is_idle() && client.second.used_s <= chosen_s_;
  });
  num_kept_ = std::ssize(clients_);
}

}  // namespace hadal
