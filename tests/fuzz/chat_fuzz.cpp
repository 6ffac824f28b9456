// Fuzzes chat encodings. The input is cut at zero bytes: a byte of options, tools as JSON, a chat template,
// then messages, whose first byte selects their kind. Rendering must return a text or a one-line error.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/chat/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hadal;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next = [&] {
    const size_t zero = rest.find('\0');
    const std::string_view part = rest.substr(0, zero);
    rest.remove_prefix(zero == rest.npos ? rest.size() : zero + 1);
    return std::string(part);
  };
  const std::string flags = next();
  const int bits = flags.empty() ? 0 : static_cast<unsigned char>(flags[0]);
  ChatOptions options{.thinking = (bits & 1) != 0,
                      .tools_json = next(),
                      .add_generation_prompt = (bits & 2) != 0,
                      .continue_final_message = (bits & 4) != 0};
  const auto detected = detect_chat_format(next());
  std::vector<ChatMessage> messages;
  while (!rest.empty()) {
    const std::string part = next();
    const int kind = part.empty() ? 0 : static_cast<unsigned char>(part[0]);
    const char* const roles[] = {"user", "assistant", "system", "tool", "other", "developer"};
    ChatMessage message{.role = roles[kind % 6], .content = part};
    if ((kind & 8) != 0) message.reasoning_content = part;
    if ((kind & 16) != 0) message.tool_calls = {{.name = part, .arguments = part}, {.name = "f"}};
    if ((kind & 32) != 0) message.tool_calls = {{.name = "f", .arguments = part.substr(1)}};
    messages.push_back(std::move(message));
  }
  for (const ChatFormat format : {ChatFormat::kV2, ChatFormat::kV25, ChatFormat::kR1, ChatFormat::kV31,
                                  ChatFormat::kV32, detected.ok() ? *detected : ChatFormat::kV2}) {
    const auto rendered = render_chat(format, messages, options);
    if (rendered.ok())
      HADAL_CHECK(rendered->starts_with("<｜begin▁of▁sentence｜>"));
    else
      HADAL_CHECK(!rendered.status().message.empty());
  }
  return 0;
}
