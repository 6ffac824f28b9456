#include "server/request_registry.h"

namespace hadal::server {

bool RequestRegistry::reserve(const std::string& rid) {
  const std::lock_guard lock(mutex_);
  return requests_.emplace(rid, 0).second;
}

void RequestRegistry::set(const std::string& rid, RequestId id) {
  const std::lock_guard lock(mutex_);
  requests_[rid] = id;
}

void RequestRegistry::remove(const std::string& rid, RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto at = requests_.find(rid);
  if (at != requests_.end() && at->second == id) requests_.erase(at);
}

std::vector<RequestId> RequestRegistry::find_prefix(std::string_view prefix) const {
  const std::lock_guard lock(mutex_);
  std::vector<RequestId> found;
  for (auto at = requests_.lower_bound(prefix); at != requests_.end() && at->first.starts_with(prefix);
       ++at) {
    if (at->second != 0) found.push_back(at->second);
  }
  return found;
}

}  // namespace hadal::server
