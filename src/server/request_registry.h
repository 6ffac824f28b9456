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
  // False, and nothing changed, when `rid` is there already.
  bool add(const std::string& rid, RequestId id);
  bool contains(const std::string& rid) const;
  void remove(const std::string& rid);
  // Engine ids of all requests whose rid begins with `prefix`.
  std::vector<RequestId> find_prefix(std::string_view prefix) const;
  size_t size() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, RequestId, std::less<>> requests_;
};

}  // namespace hadal::server
