#include "cli/chat/transcript.h"

#include <nlohmann/json.hpp>

namespace hadal::cli {
namespace {

using nlohmann::ordered_json;

Result<ChatMessage> parse_message(const ordered_json& message, const std::string& where) {
  const auto text_of = [&](const char* name) -> Result<std::string> {
    const auto field = message.is_object() ? message.find(name) : message.end();
    if (!message.is_object() || field == message.end() || !field->is_string())
      return data_loss("{}.{}: must be a text", where, name);
    return field->get<std::string>();
  };
  ChatMessage out;
  HADAL_ASSIGN_OR_RETURN(out.role, text_of("role"));
  HADAL_ASSIGN_OR_RETURN(out.content, text_of("content"));
  return out;
}

}  // namespace

std::vector<ChatMessage> Transcript::messages() const {
  std::vector<ChatMessage> out;
  if (!system.empty()) out.push_back({.role = "system", .content = system});
  out.insert(out.end(), turns.begin(), turns.end());
  return out;
}

ChatMessage* Transcript::last_question() {
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn)
    if (turn->role == "user") return &*turn;
  return nullptr;
}

void Transcript::drop_answer() {
  if (!turns.empty() && turns.back().role == "assistant") turns.pop_back();
}

std::string transcript_json(const Transcript& transcript) {
  ordered_json out;
  out["messages"] = ordered_json::array();
  for (const ChatMessage& message : transcript.messages())
    out["messages"].push_back({{"role", message.role}, {"content", message.content}});
  out["thinking"] = transcript.thinking;
  return out.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

Result<Transcript> parse_transcript(std::string_view text, std::string_view source) {
  const ordered_json in = ordered_json::parse(text, nullptr, false);
  if (!in.is_object() || !in.contains("messages") || !in["messages"].is_array())
    return data_loss("{}: must be a JSON object with a list `messages`, as /save writes it", source);
  Transcript out;
  if (const auto thinking = in.find("thinking"); thinking != in.end()) {
    if (!thinking->is_boolean()) return data_loss("{}: thinking: must be true or false", source);
    out.thinking = thinking->get<bool>();
  }
  for (size_t i = 0; i < in["messages"].size(); ++i) {
    const std::string where = fmt::format("{}: messages[{}]", source, i);
    HADAL_ASSIGN_OR_RETURN(ChatMessage message, parse_message(in["messages"][i], where));
    if (i == 0 && message.role == "system") {
      out.system = std::move(message.content);
      continue;
    }
    const std::string_view allowed = out.turns.size() % 2 == 0 ? "user" : "assistant";
    if (message.role != allowed)
      return data_loss("{}.role: is \"{}\"; must be \"{}\" here", where, message.role, allowed);
    out.turns.push_back(std::move(message));
  }
  return out;
}

}  // namespace hadal::cli
