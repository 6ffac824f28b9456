#include "server/responses/response_store.h"

#include <limits>
#include <utility>

namespace hadal::server {
namespace {

constexpr size_t kEntryBytes = 1024;  // nodes of the lists and maps, and the objects that an entry points at

}  // namespace

size_t message_bytes(const std::vector<ChatMessage>& messages) {
  size_t bytes = 0;
  for (const ChatMessage& message : messages) {
    bytes += sizeof(message) + message.content.size() + message.reasoning_content.size() +
             message.tool_call_id.size();
    for (const ToolCall& call : message.tool_calls)
      bytes += sizeof(call) + call.id.size() + call.name.size() + call.arguments.size();
  }
  return bytes;
}

ResponseStore::ResponseStore(size_t max_bytes) : memory_(std::make_shared<RequestMemory>(max_bytes)) {}

void ResponseStore::put(const std::string& id, std::string_view owner, std::string json, Conversation earlier,
                        std::vector<ChatMessage> messages) {
  const size_t own_bytes =
      kEntryBytes + json.size() + (earlier.turns.size() + 1) * sizeof(earlier.turns.front());
  const size_t turn_bytes = message_bytes(messages);
  size_t earlier_bytes = 0;
  for (const auto& turn : earlier.turns) earlier_bytes += turn->charge.of_store.bytes(MemoryKind::kPrompt);
  if (own_bytes + turn_bytes + earlier_bytes > max_bytes()) return;
  earlier.turns.shrink_to_fit();
  earlier.turns.reserve(earlier.turns.size() + 1);  // exactly what is counted: push_back might double it
  auto turn = std::make_shared<StoredTurn>(StoredTurn{.messages = std::move(messages), .charge = {}});
  auto response = std::make_shared<Response>(
      Response{.json = std::move(json), .conversation = std::move(earlier), .charge = {}});
  std::unique_lock lock(mutex_);
  Owner& holder = owner_of(owner);
  while (!memory_->has_room(own_bytes + turn_bytes)) {
    Removed oldest = evict_one_for(holder);
    if (oldest.entry.empty()) return;
    lock.unlock();
    oldest = {};
    lock.lock();
  }
  if (!count(response->charge, holder, MemoryKind::kOutput, own_bytes) ||
      !count(turn->charge, holder, MemoryKind::kPrompt, turn_bytes))
    return;
  response->conversation.turns.push_back(std::move(turn));
  // Operations that may throw come first, so that the maps stay consistent.
  std::list<std::string> place = {id};
  const bool is_new =
      entries_
          .try_emplace(
              id, Entry{.response = std::move(response), .owner = std::string(owner), .place = place.begin()})
          .second;
  if (is_new) holder.ids.splice(holder.ids.end(), place);
}

std::shared_ptr<const ResponseStore::Response> ResponseStore::find(const std::string& id,
                                                                   std::string_view owner) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  return entry != entries_.end() && entry->second.owner == owner ? entry->second.response : nullptr;
}

bool ResponseStore::erase(const std::string& id, std::string_view owner) {
  Removed removed;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end() || entry->second.owner != owner) return false;
  removed = remove(entry);
  return true;
}

ResponseStore::Owner& ResponseStore::owner_of(std::string_view name) {
  const auto [owner, is_new] = owners_.try_emplace(std::string(name));
  if (owner->second.held == nullptr)
    owner->second.held = std::make_shared<RequestMemory>(std::numeric_limits<size_t>::max());
  return owner->second;
}

// Counts memory that is about to be allocated for an owner. Returns false if the store has no room for it.
bool ResponseStore::count(StoredCharge& charge, const Owner& owner, MemoryKind kind, size_t bytes) const {
  charge = {.of_store = MemoryCharge(memory_), .of_owner = MemoryCharge(owner.held)};
  return charge.of_store.try_add(kind, bytes) && charge.of_owner.try_add(kind, bytes);
}

ResponseStore::Removed ResponseStore::remove(Entries::iterator entry) {
  Removed removed;
  removed.place.splice(removed.place.end(), owners_.at(entry->second.owner).ids, entry->second.place);
  removed.entry = entries_.extract(entry);
  return removed;
}

// Removes the oldest response of the owner that holds most, to make room for `owner`. Removes none if `owner`
// has no response and no owner with a response holds more: the rest of the store belongs to running requests.
ResponseStore::Removed ResponseStore::evict_one_for(Owner& owner) {
  Owner* most = owner.ids.empty() ? nullptr : &owner;
  size_t held = owner.held->total();
  for (auto& [name, other] : owners_) {
    if (other.ids.empty() || other.held->total() <= held) continue;
    most = &other;
    held = other.held->total();
  }
  return most == nullptr ? Removed() : remove(entries_.find(most->ids.front()));
}

}  // namespace hadal::server
