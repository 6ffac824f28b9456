// Lists the running requests by the ids that clients know, which /abort_request searches. Any thread may call
// it.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/request_id.h"

namespace hadal::server {

class RequestRegistry {
 public:
  // Reserves `rid` for a request that has no engine id yet. Returns false, and changes nothing, if it is in
  // use.
  bool reserve(const std::string& rid);
  // Sets the engine id of a reserved rid.
  void set(const std::string& rid, RequestId id);
  // Frees the rid if it belongs to request `id` (0: reserved).
  void remove(const std::string& rid, RequestId id);
  // Returns the engine ids of all requests whose rid begins with `prefix`, except reserved ones.
  std::vector<RequestId> find_prefix(std::string_view prefix) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, RequestId, std::less<>> requests_;  // 0: reserved
};

}  // namespace hadal::server
