#include "scheduler/fair_line.h"

#include <algorithm>

#include "base/check.h"

namespace hadal {

void FairLine::add(uint64_t client_id, uint64_t arrival, RequestState* request) {
  const auto [at, is_new] = clients_.try_emplace(client_id);
  Client& client = at->second;
  ++size_;
  if (is_new) {
    client.round = round_ + (served_.contains(client_id) ? 1 : 0);
  } else if (arrival > client.requests.begin()->first) {  // the first one stays the same
    client.requests.emplace_hint(client.requests.end(), arrival, request);
    return;
  } else {
    heads_.erase(head_of(client_id, client));
  }
  client.requests.emplace(arrival, request);
  heads_.insert(head_of(client_id, client));
}

void FairLine::remove(uint64_t client_id, uint64_t arrival, bool served) {
  const auto at = clients_.find(client_id);
  HADAL_CHECK(at != clients_.end(), "client {} has no waiting request", client_id);
  Client& client = at->second;
  const bool changes_head = served || client.requests.begin()->first == arrival;
  if (changes_head) heads_.erase(head_of(client_id, client));
  HADAL_CHECK_EQ(client.requests.erase(arrival), 1U);
  --size_;
  if (served) {
    if (client.round > round_) {
      round_ = client.round;
      served_.clear();
    }
    served_.insert(client_id);
    client.round = round_ + 1;
  }
  if (client.requests.empty()) {
    clients_.erase(at);
    if (size_ == 0) served_.clear();  // nobody waits for a turn
  } else if (changes_head) {
    heads_.insert(head_of(client_id, client));
  }
}

RequestState* FairLine::Walk::next() {
  if (following_) visited_.push(*following_);
  following_.reset();
  // A client that was visited may have a new first request, which comes from visited_ instead.
  const auto was_visited = [this](const Turn& turn) {
    return line_.clients_.at(std::get<2>(turn)).walk == line_.num_walks_;
  };
  while (head_ != line_.heads_.end() && was_visited(*head_)) ++head_;
  Turn turn;
  if (head_ != line_.heads_.end() && (visited_.empty() || *head_ < visited_.top())) {
    turn = *head_++;
    // The caller may remove the request; then head_ must not point to the same client's next request.
    line_.clients_.at(std::get<2>(turn)).walk = line_.num_walks_;
    while (head_ != line_.heads_.end() && was_visited(*head_)) ++head_;
  } else if (!visited_.empty()) {
    turn = visited_.top();
    visited_.pop();
  } else {
    return nullptr;
  }
  const auto& [round, arrival, id] = turn;
  const Client& client = line_.clients_.at(id);
  const auto found = client.requests.find(arrival);
  if (const auto following = std::next(found); following != client.requests.end()) {
    following_ = {std::max(round, line_.round_) + 1, following->first, id};
  }
  return found->second;
}

int64_t FairLine::check_integrity() const {
  int64_t count = 0;
  HADAL_CHECK_EQ(heads_.size(), clients_.size());
  for (const auto& [id, client] : clients_) {
    HADAL_CHECK(
        !client.requests.empty() && heads_.contains(head_of(id, client)) && client.round <= round_ + 1,
        "client {} is in the line under a wrong turn", id);
    count += static_cast<int64_t>(client.requests.size());
  }
  HADAL_CHECK_EQ(count, size_);
  return count;
}

}  // namespace hadal
