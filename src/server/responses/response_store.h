// Keeps the responses of /v1/responses that clients may read again or continue, in a bounded part of the
// memory. Any thread may call it.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/admission/request_memory.h"
#include "text/chat/chat_template.h"

namespace hadal::server {

// StoredTurn holds what one request added to a conversation: its input and its answer. The responses after it
// share it, and its memory is counted until the last of them has gone.
struct StoredTurn {
  std::vector<ChatMessage> messages;
  MemoryCharge charge;
};
using StoredTurns = std::vector<std::shared_ptr<const StoredTurn>>;

// Returns the bytes that are counted for messages.
size_t message_bytes(const std::vector<ChatMessage>& messages);

class ResponseStore {
 public:
  struct Response {
    std::string json;   // the response object
    StoredTurns turns;  // the conversation up to and including its answer, without instructions
    MemoryCharge charge;
  };

  // With 0 bytes nothing is stored.
  explicit ResponseStore(size_t max_bytes);
  ResponseStore(const ResponseStore&) = delete;
  ResponseStore& operator=(const ResponseStore&) = delete;

  size_t max_bytes() const { return memory_->limit(); }
  size_t bytes() const { return memory_->total(); }

  // Stores a response of `owner`, whose conversation is `earlier` and then `messages`. If there is no room,
  // the oldest responses of the owner that holds most give way, so that no owner can displace all the others.
  // What does not fit into an empty store is not stored, and neither is an id that is there.
  void put(const std::string& id, std::string_view owner, std::string json, StoredTurns earlier,
           std::vector<ChatMessage> messages);
  // Returns a response of this owner, or null.
  std::shared_ptr<const Response> find(const std::string& id, std::string_view owner) const;
  // Forgets a response of this owner; returns false if there is none.
  bool erase(const std::string& id, std::string_view owner);

 private:
  struct Owner {
    std::list<std::string> ids;  // the oldest first
    size_t bytes = 0;
  };
  struct Entry {
    std::shared_ptr<const Response> response;
    std::string owner;
    std::list<std::string>::iterator place;  // in its owner's list
    size_t bytes = 0;
  };
  using Entries = std::unordered_map<std::string, Entry>;
  void remove(Entries::iterator entry);
  bool evict_one();

  const std::shared_ptr<RequestMemory> memory_;  // a ledger of its own
  mutable std::mutex mutex_;
  Entries entries_;                                // guarded by mutex_
  std::unordered_map<std::string, Owner> owners_;  // guarded by mutex_
};

}  // namespace hadal::server
