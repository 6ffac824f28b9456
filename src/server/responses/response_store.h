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

#include "engine/engine.h"
#include "server/admission/request_memory.h"
#include "text/chat/chat_template.h"

namespace hadal::server {

// StoredCharge counts bytes for the whole store and for their owner.
struct StoredCharge {
  MemoryCharge of_store = MemoryCharge();
  MemoryCharge of_owner = MemoryCharge();
};

// StoredTurn holds what one request added to a conversation: its input and its answer. The responses after it
// share it, and its memory is counted until the last of them has gone.
struct StoredTurn {
  std::vector<ChatMessage> messages;
  StoredCharge charge;
};

// Conversation is what a response continues, or what continues a response.
struct Conversation {
  std::vector<std::shared_ptr<const StoredTurn>> turns;  // without instructions
  CacheSalt cache_salt;  // of the last request; one that goes on without a salt has this one
};

// Returns the bytes that are counted for messages.
size_t message_bytes(const std::vector<ChatMessage>& messages);

class ResponseStore {
 public:
  struct Response {
    std::string json;           // the response object
    Conversation conversation;  // up to and including its answer
    StoredCharge charge;
  };

  // With 0 bytes nothing is stored.
  explicit ResponseStore(size_t max_bytes);
  ResponseStore(const ResponseStore&) = delete;
  ResponseStore& operator=(const ResponseStore&) = delete;

  size_t max_bytes() const { return memory_->limit(); }
  size_t bytes() const { return memory_->total(); }

  // Stores a response of `owner`, whose conversation is `earlier` (turns of this owner, with the salt of this
  // response's request) and then `messages`. If there is no room, the oldest responses of the owner that
  // holds most give way. An owner holds its responses and every turn that one of them or one of its running
  // requests still shares, each once. So nobody can displace the responses of an owner that holds less. What
  // does not fit into an empty store with its whole conversation is not stored, and neither is an id that is
  // there.
  void put(const std::string& id, std::string_view owner, std::string json, Conversation earlier,
           std::vector<ChatMessage> messages);
  // Returns a response of this owner, or null.
  std::shared_ptr<const Response> find(const std::string& id, std::string_view owner) const;
  // Forgets a response of this owner; returns false if there is none.
  bool erase(const std::string& id, std::string_view owner);

 private:
  // There are no more owners than keys with names, and one for all other clients, so none is removed.
  struct Owner {
    std::list<std::string> ids;           // the oldest first
    std::shared_ptr<RequestMemory> held;  // a ledger without a limit of its own
  };
  using Owners = std::unordered_map<std::string, Owner>;
  struct Entry {
    std::shared_ptr<const Response> response;
    std::string owner;
    std::list<std::string>::iterator place;  // in its owner's list
  };
  using Entries = std::unordered_map<std::string, Entry>;
  Owner& owner_of(std::string_view name);
  bool count(StoredCharge& charge, const Owner& owner, MemoryKind kind, size_t bytes) const;
  void remove(Entries::iterator entry);
  bool evict_one_for(Owner& owner);

  const std::shared_ptr<RequestMemory> memory_;  // a ledger of its own
  mutable std::mutex mutex_;
  Entries entries_;  // guarded by mutex_
  Owners owners_;    // guarded by mutex_
};

}  // namespace hadal::server
