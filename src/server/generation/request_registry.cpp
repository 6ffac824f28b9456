#include "server/generation/request_registry.h"

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

std::vector<RequestId> RequestRegistry::find_prefix(std::string_view prefix,
                                                    std::string_view key_name) const {
  const std::lock_guard lock(mutex_);
  std::vector<RequestId> found;
  for (auto at = requests_.lower_bound({.rid = std::string(prefix), .key_name = {}});
       at != requests_.end() && at->first.rid.starts_with(prefix); ++at) {
    const bool is_meant = key_name.empty() || at->first.key_name == key_name;
    if (is_meant && at->second != 0) found.push_back(at->second);
  }
  return found;
}

}  // namespace hadal::server
