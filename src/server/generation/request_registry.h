// Lists the running requests by the ids that clients know, which /abort_request searches. Each key that has a
// name has a name space of its own, so keys neither see nor occupy each other's ids; all other clients share
// one. Any thread may call it.
#pragma once

#include <map>
#include <mutex>
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

 private:
  mutable std::mutex mutex_;
  std::map<ClientRid, RequestId> requests_;  // 0: reserved
};

}  // namespace hadal::server
