// The requests that are being worked on, by the id their clients know: what /abort_request searches. Any
// thread.
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
  // Takes `rid` for a request that the engine has no id for yet. False, and nothing changed, when somebody
  // has it.
  bool reserve(const std::string& rid);
  // The id of a reserved rid's request.
  void set(const std::string& rid, RequestId id);
  // Frees the rid, if it is the one of request `id` (0: reserved).
  void remove(const std::string& rid, RequestId id);
  // Engine ids of all requests whose rid begins with `prefix`; not of those that are merely reserved.
  std::vector<RequestId> find_prefix(std::string_view prefix) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, RequestId, std::less<>> requests_;  // 0: reserved
};

}  // namespace hadal::server
