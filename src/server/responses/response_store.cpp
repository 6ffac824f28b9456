#include "server/responses/response_store.h"

#include <algorithm>
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

void ResponseStore::put(const std::string& id, std::string_view owner, std::string json, StoredTurns earlier,
                        std::vector<ChatMessage> messages) {
  const size_t own_bytes = kEntryBytes + json.size() + (earlier.size() + 1) * sizeof(earlier.front());
  const size_t turn_bytes = message_bytes(messages);
  if (own_bytes + turn_bytes > max_bytes()) return;
  auto turn = std::make_shared<StoredTurn>(
      StoredTurn{.messages = std::move(messages), .charge = MemoryCharge(memory_)});
  auto response = std::make_shared<Response>(
      Response{.json = std::move(json), .turns = std::move(earlier), .charge = MemoryCharge(memory_)});
  const std::lock_guard lock(mutex_);
  while (!memory_->has_room(own_bytes + turn_bytes))
    if (!evict_one()) return;  // what is left belongs to requests that still run
  if (!response->charge.try_add(MemoryKind::kOutput, own_bytes) ||
      !turn->charge.try_add(MemoryKind::kPrompt, turn_bytes))
    return;
  response->turns.push_back(std::move(turn));
  // What may throw comes first, so that the maps agree in any case.
  Owner& holder = owners_[std::string(owner)];
  std::list<std::string> place = {id};
  const bool is_new = entries_
                          .try_emplace(id, Entry{.response = std::move(response),
                                                 .owner = std::string(owner),
                                                 .place = place.begin(),
                                                 .bytes = own_bytes + turn_bytes})
                          .second;
  if (!is_new) return;
  holder.ids.splice(holder.ids.end(), place);
  holder.bytes += own_bytes + turn_bytes;
}

std::shared_ptr<const ResponseStore::Response> ResponseStore::find(const std::string& id,
                                                                   std::string_view owner) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  return entry != entries_.end() && entry->second.owner == owner ? entry->second.response : nullptr;
}

bool ResponseStore::erase(const std::string& id, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(id);
  if (entry == entries_.end() || entry->second.owner != owner) return false;
  remove(entry);
  return true;
}

void ResponseStore::remove(Entries::iterator entry) {
  const auto owner = owners_.find(entry->second.owner);
  owner->second.bytes -= entry->second.bytes;
  owner->second.ids.erase(entry->second.place);
  if (owner->second.ids.empty()) owners_.erase(owner);
  entries_.erase(entry);
}

// Forgets the oldest response of the owner that holds most.
bool ResponseStore::evict_one() {
  const auto most = std::max_element(owners_.begin(), owners_.end(), [](const auto& a, const auto& b) {
    return a.second.bytes < b.second.bytes;
  });
  if (most == owners_.end() || most->second.ids.empty()) return false;
  remove(entries_.find(most->second.ids.front()));
  return true;
}

}  // namespace hadal::server
