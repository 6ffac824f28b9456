#include "server/request_registry.h"

namespace hadal::server {

bool RequestRegistry::add(const std::string& rid, RequestId id) {
  const std::lock_guard lock(mutex_);
  return requests_.emplace(rid, id).second;
}

bool RequestRegistry::contains(const std::string& rid) const {
  const std::lock_guard lock(mutex_);
  return requests_.contains(rid);
}

void RequestRegistry::remove(const std::string& rid) {
  const std::lock_guard lock(mutex_);
  requests_.erase(rid);
}

std::vector<RequestId> RequestRegistry::find_prefix(std::string_view prefix) const {
  const std::lock_guard lock(mutex_);
  std::vector<RequestId> found;
  for (auto at = requests_.lower_bound(prefix); at != requests_.end() && at->first.starts_with(prefix);
       ++at) {
    found.push_back(at->second);
  }
  return found;
}

size_t RequestRegistry::size() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

}  // namespace hadal::server
