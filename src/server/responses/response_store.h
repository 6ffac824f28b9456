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

// StoredTurn holds what one request added to a conversation: its input and its answer. Later responses of the
// conversation share it, and its memory is counted until the last of them is destroyed.
struct StoredTurn {
  std::vector<ChatMessage> messages;
  StoredCharge charge;
};

// Conversation is the history that a response continues, or that its successor will continue.
struct Conversation {
  std::vector<std::shared_ptr<const StoredTurn>> turns;  // without instructions
  CacheSalt cache_salt;  // of the last request; a request without a salt inherits it
};

// Returns the bytes that are counted for `messages`.
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
  // response's request) followed by `messages`. If there is no room, the oldest responses of the owner that
  // holds most are forgotten. An owner holds its responses and every turn that one of its responses or
  // running requests still shares, each once. So no owner can displace the responses of an owner that holds
  // less. A response is not stored if it would not fit into an empty store with its whole conversation, or if
  // its id exists already.
  // However many responses give way, a thread that waits for the store waits for the removal of one.
  void put(const std::string& id, std::string_view owner, std::string json, Conversation earlier,
           std::vector<ChatMessage> messages);
  // Returns a response of this owner, or null.
  std::shared_ptr<const Response> find(const std::string& id, std::string_view owner) const;
  // Forgets a response of this owner. Returns false if there is none.
  bool erase(const std::string& id, std::string_view owner);

 private:
  // TurnMutex lets a thread that waits go before one that has just released it and locks it again: the
  // waiting thread holds turn_, which the other needs first.
  class TurnMutex {
   public:
    void lock() {
      const std::lock_guard turn(turn_);
      mutex_.lock();
    }
    void unlock() { mutex_.unlock(); }

   private:
    std::mutex turn_;
    std::mutex mutex_;
  };
  // There are no more owners than named keys, plus one for all other clients, so none is removed.
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
  // Removed holds a response that the store has forgotten. Its destruction takes as long as its conversation
  // is large, so it is destroyed when the lock has been released.
  struct Removed {
    Entries::node_type entry;
    std::list<std::string> place;
  };
  Owner& owner_of(std::string_view name);
  bool count(StoredCharge& charge, const Owner& owner, MemoryKind kind, size_t bytes) const;
  Removed remove(Entries::iterator entry);
  Removed evict_one_for(Owner& owner);

  const std::shared_ptr<RequestMemory> memory_;  // a ledger of its own
  mutable TurnMutex mutex_;
  Entries entries_;  // guarded by mutex_
  Owners owners_;    // guarded by mutex_
};

}  // namespace hadal::server
