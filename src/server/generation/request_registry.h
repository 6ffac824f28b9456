// Lists the running requests by the ids that clients know, which /abort_request searches. Each named key has
// a name space of its own, so that keys neither find nor occupy each other's ids. All other clients share one
// name space. Any thread may call it.
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
  // Orders ids by rid first, so that all ids with a common prefix are adjacent, whichever key they belong to.
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
  // Returns the engine ids of all requests whose rid begins with `prefix`, except reserved ones. They are
  // those of the key `key_name`, or of all clients if that is empty.
  std::vector<RequestId> find_prefix(std::string_view prefix, std::string_view key_name = {}) const;

  struct Meant {
    size_t count = 0;                // of all requests
    std::vector<RequestId> started;  // those that have an engine id, and that no earlier abort meant
  };
  // Finds the requests that an abort means: those of find_prefix(), and choices that wait to be started,
  // which it marks. However often an abort is repeated, each engine id is returned once.
  Meant mark_prefix(std::string_view prefix, std::string_view key_name);

 private:
  friend class WaitingChoices;
  struct Entry {
    RequestId id = 0;  // 0: reserved
    bool is_aborted = false;
  };
  // Calls visit(entry) for the entries that find_prefix() means.
  template <typename Registry, typename Visit>
  static void visit_locked(Registry& registry, std::string_view prefix, std::string_view key_name,
                           Visit visit);

  mutable std::mutex mutex_;
  std::map<ClientRid, Entry> requests_;  // guarded by mutex_
  std::set<WaitingChoices*> waiting_;    // guarded by mutex_, and so are the objects in it
};

// WaitingChoices are the choices of one request that have no engine id yet. An abort finds them during the
// lifetime of this object. A choice that the abort has marked must be aborted when it is started. The object
// belongs to one thread.
class WaitingChoices {
 public:
  // `rids` has the id of each choice. An empty id is found only by an abort of everything.
  WaitingChoices(RequestRegistry& registry, std::string key_name, std::vector<std::string> rids);
  ~WaitingChoices();
  WaitingChoices(const WaitingChoices&) = delete;
  WaitingChoices& operator=(const WaitingChoices&) = delete;

  const std::string& rid(size_t choice) const { return rids_[choice]; }
  // Records that `choice` now has its engine id. Choices are started in order. Returns true if an abort
  // marked the choice while it waited.
  bool set_started(size_t choice);

 private:
  friend class RequestRegistry;
  // Marks the choices whose rid begins with `prefix`, and returns how many of them there are.
  size_t mark_locked(std::string_view prefix);

  RequestRegistry& registry_;
  const std::string key_name_;
  const std::vector<std::string> rids_;
  const size_t num_common_;  // characters with which every rid begins
  // The others are guarded by the registry's mutex.
  size_t num_started_ = 0;
  bool all_are_marked_ = false;
  std::vector<bool> is_marked_;
};

}  // namespace hadal::server
