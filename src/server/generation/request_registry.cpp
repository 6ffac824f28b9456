#include "server/generation/request_registry.h"

#include <utility>

namespace hadal::server {

bool RequestRegistry::reserve(const ClientRid& rid) {
  const std::lock_guard lock(mutex_);
  return requests_.emplace(rid, 0).second;
}

void RequestRegistry::set(const ClientRid& rid, RequestId id) {
  const std::lock_guard lock(mutex_);
  requests_[rid] = id;
}

void RequestRegistry::remove(const ClientRid& rid, RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto at = requests_.find(rid);
  if (at != requests_.end() && at->second == id) requests_.erase(at);
}

std::vector<RequestId> RequestRegistry::find_locked(std::string_view prefix,
                                                    std::string_view key_name) const {
  std::vector<RequestId> found;
  for (auto at = requests_.lower_bound({.rid = std::string(prefix), .key_name = {}});
       at != requests_.end() && at->first.rid.starts_with(prefix); ++at) {
    const bool is_meant = key_name.empty() || at->first.key_name == key_name;
    if (is_meant && at->second != 0) found.push_back(at->second);
  }
  return found;
}

std::vector<RequestId> RequestRegistry::find_prefix(std::string_view prefix,
                                                    std::string_view key_name) const {
  const std::lock_guard lock(mutex_);
  return find_locked(prefix, key_name);
}

RequestRegistry::Meant RequestRegistry::mark_prefix(std::string_view prefix, std::string_view key_name) {
  const std::lock_guard lock(mutex_);
  Meant meant{.started = find_locked(prefix, key_name)};
  for (WaitingChoices* request : waiting_) {
    if (!key_name.empty() && request->key_name_ != key_name) continue;
    for (size_t i = request->num_started_; i < request->rids_.size(); ++i) {
      const std::string& rid = request->rids_[i];
      if (!rid.starts_with(prefix)) continue;
      // A choice that has just got its engine id is in `started` already.
      const auto entry = requests_.find({.rid = rid, .key_name = request->key_name_});
      if (entry != requests_.end() && entry->second != 0) continue;
      request->is_marked_[i] = true;
      ++meant.num_waiting;
    }
  }
  return meant;
}

WaitingChoices::WaitingChoices(RequestRegistry& registry, std::string key_name, std::vector<std::string> rids)
    : registry_(registry), key_name_(std::move(key_name)), rids_(std::move(rids)), is_marked_(rids_.size()) {
  const std::lock_guard lock(registry_.mutex_);
  registry_.waiting_.insert(this);
}

WaitingChoices::~WaitingChoices() {
  const std::lock_guard lock(registry_.mutex_);
  registry_.waiting_.erase(this);
}

bool WaitingChoices::set_started(size_t choice) {
  const std::lock_guard lock(registry_.mutex_);
  num_started_ = choice + 1;
  return is_marked_[choice];
}

}  // namespace hadal::server
