// Lists the running requests by the ids that clients know, which /abort_request searches. Each key that has a
// name has a name space of its own, so keys neither see nor occupy each other's ids; all other clients share
// one. Any thread may call it.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/request_id.h"

namespace hadal::server {

// ClientRid is a request's id as its client knows it.
struct ClientRid {
  std::string rid;
  std::string key_name;  // empty: the client has no named key
  // All ids with a common beginning follow each other, whosever they are.
  bool operator<(const ClientRid& other) const {
    return std::tie(rid, key_name) < std::tie(other.rid, other.key_name);
  }
};

class WaitingChoices;

class RequestRegistry {
 public:
  // Reserves `rid` for a request that has no engine id yet. Returns false, and changes nothing, if it is in
  // use.
  bool reserve(const ClientRid& rid);
  // Sets the engine id of a reserved rid.
  void set(const ClientRid& rid, RequestId id);
  // Frees the rid if it belongs to request `id` (0: reserved).
  void remove(const ClientRid& rid, RequestId id);
  // Returns the engine ids of all requests whose rid begins with `prefix`, except reserved ones: those of the
  // key `key_name`, or of all clients if that is empty.
  std::vector<RequestId> find_prefix(std::string_view prefix, std::string_view key_name = {}) const;

  struct Meant {
    std::vector<RequestId> started;  // as find_prefix() returns them
    size_t num_waiting = 0;
  };
  // Finds whom an abort means, and marks those of them that wait to be started (WaitingChoices).
  Meant mark_prefix(std::string_view prefix, std::string_view key_name);

 private:
  friend class WaitingChoices;
  std::vector<RequestId> find_locked(std::string_view prefix, std::string_view key_name) const;

  mutable std::mutex mutex_;
  std::map<ClientRid, RequestId> requests_;  // 0: reserved; guarded by mutex_
  std::set<WaitingChoices*> waiting_;        // guarded by mutex_, and so is what they hold
};

// WaitingChoices are the choices of one request that have no engine id yet. An abort finds them as long as
// this lives, and whoever starts a choice that it has marked must abort it then. It belongs to one thread.
class WaitingChoices {
 public:
  // `rids` has the id of each choice; only an abort of everything finds an empty one.
  WaitingChoices(RequestRegistry& registry, std::string key_name, std::vector<std::string> rids);
  ~WaitingChoices();
  WaitingChoices(const WaitingChoices&) = delete;
  WaitingChoices& operator=(const WaitingChoices&) = delete;

  const std::string& rid(size_t choice) const { return rids_[choice]; }
  // Records that `choice` now has its engine id. Choices are started in order. Returns true if an abort has
  // marked it while it waited.
  bool set_started(size_t choice);

 private:
  friend class RequestRegistry;
  RequestRegistry& registry_;
  const std::string key_name_;
  const std::vector<std::string> rids_;
  size_t num_started_ = 0;       // guarded by the registry's mutex
  std::vector<bool> is_marked_;  // guarded by the registry's mutex
};

}  // namespace hadal::server
