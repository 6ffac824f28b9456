#include "server/generation/request_registry.h"

#include <algorithm>
#include <utility>

namespace hadal::server {

namespace {

// Returns how many characters all of the rids begin with in common.
size_t num_common_characters(const std::vector<std::string>& rids) {
  if (rids.empty()) return 0;
  std::string_view common = rids[0];
  for (const std::string_view rid : rids) {
    const auto end = std::mismatch(common.begin(), common.end(), rid.begin(), rid.end()).first;
    common = common.substr(0, static_cast<size_t>(end - common.begin()));
  }
  return common.size();
}

}  // namespace

bool RequestRegistry::reserve(const ClientRid& rid) {
  const std::lock_guard lock(mutex_);
  return requests_.emplace(rid, Entry{}).second;
}

void RequestRegistry::set(const ClientRid& rid, RequestId id) {
  const std::lock_guard lock(mutex_);
  requests_[rid] = {.id = id};
}

void RequestRegistry::remove(const ClientRid& rid, RequestId id) {
  const std::lock_guard lock(mutex_);
  const auto at = requests_.find(rid);
  if (at != requests_.end() && at->second.id == id) requests_.erase(at);
}

template <typename Registry, typename Visit>
void RequestRegistry::visit_locked(Registry& registry, std::string_view prefix, std::string_view key_name,
                                   Visit visit) {
  for (auto at = registry.requests_.lower_bound({.rid = std::string(prefix), .key_name = {}});
       at != registry.requests_.end() && at->first.rid.starts_with(prefix); ++at) {
    const bool is_meant = key_name.empty() || at->first.key_name == key_name;
    if (is_meant && at->second.id != 0) visit(at->second);
  }
}

std::vector<RequestId> RequestRegistry::find_prefix(std::string_view prefix,
                                                    std::string_view key_name) const {
  const std::lock_guard lock(mutex_);
  std::vector<RequestId> found;
  visit_locked(*this, prefix, key_name, [&](const Entry& entry) { found.push_back(entry.id); });
  return found;
}

RequestRegistry::Meant RequestRegistry::mark_prefix(std::string_view prefix, std::string_view key_name) {
  const std::lock_guard lock(mutex_);
  Meant meant;
  visit_locked(*this, prefix, key_name, [&](Entry& entry) {
    ++meant.count;
    if (entry.is_aborted) return;
    meant.started.push_back(entry.id);
    entry.is_aborted = true;
  });
  for (WaitingChoices* request : waiting_) {
    if (key_name.empty() || request->key_name_ == key_name) meant.count += request->mark_locked(prefix);
  }
  return meant;
}

WaitingChoices::WaitingChoices(RequestRegistry& registry, std::string key_name, std::vector<std::string> rids)
    : registry_(registry),
      key_name_(std::move(key_name)),
      rids_(std::move(rids)),
      num_common_(num_common_characters(rids_)),
      is_marked_(rids_.size()) {
  const std::lock_guard lock(registry_.mutex_);
  registry_.waiting_.insert(this);
}

WaitingChoices::~WaitingChoices() {
  const std::lock_guard lock(registry_.mutex_);
  registry_.waiting_.erase(this);
}

// An abort may be repeated all the time, and all clients wait for the lock. Therefore only an abort that
// means a part of the choices looks at each of them.
size_t WaitingChoices::mark_locked(std::string_view prefix) {
  size_t first = num_started_;
  if (first == rids_.size()) return 0;
  const std::string_view common = std::string_view(rids_[0]).substr(0, num_common_);
  const bool means_all = common.starts_with(prefix);
  if (!means_all && !prefix.starts_with(common)) return 0;
  // The first choice counts among the started ones already if it has just got its engine id.
  const auto entry = registry_.requests_.find({.rid = rids_[first], .key_name = key_name_});
  if (entry != registry_.requests_.end() && entry->second.id != 0) ++first;
  if (means_all) {
    if (!std::exchange(all_are_marked_, true)) is_marked_.assign(rids_.size(), true);
    return rids_.size() - first;
  }
  size_t count = 0;
  for (size_t i = first; i < rids_.size(); ++i) {
    if (!rids_[i].starts_with(prefix)) continue;
    is_marked_[i] = true;
    ++count;
  }
  return count;
}

bool WaitingChoices::set_started(size_t choice) {
  const std::lock_guard lock(registry_.mutex_);
  num_started_ = choice + 1;
  return is_marked_[choice];
}

}  // namespace hadal::server
