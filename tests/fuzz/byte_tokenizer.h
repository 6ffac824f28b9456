// Makes a small vocabulary for fuzzers of grammars.
#pragma once

#include <string>

#include "text/tokenizer/tokenizer.h"

namespace hadal::fuzz {

// Its tokens are every byte, some usual runs of JSON, and the markers of tool calls.
inline const Tokenizer& byte_tokenizer() {
  static const auto made = [] {
    std::string vocab;
    int id = 0;
    const auto add = [&](const std::string& token) {
      vocab += (id == 0 ? "\"" : ", \"") + token + "\": " + std::to_string(id);
      ++id;
    };
    // This is the byte-level alphabet: printable bytes represent themselves, the others are U+0100 and up.
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      const int code = is_own ? byte : next++;
      if (code == '"' || code == '\\')
        add(std::string("\\") + static_cast<char>(code));
      else if (code < 0x80)
        add(std::string(1, static_cast<char>(code)));
      else
        add({static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))});
    }
    for (const char* token : {"true", "null", "12", "{\\\"", "\\\":"}) add(token);
    std::string added;
    for (const char* token : {"<eos>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
                              "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"})
      added += (added.empty() ? "" : ", ") + std::string("{\"id\": ") + std::to_string(id++) +
               ", \"content\": \"" + token +
               "\", \"special\": false, \"normalized\": false, \"lstrip\": false, \"rstrip\": false, "
               "\"single_word\": false}";
    return Tokenizer::from_json("{\"added_tokens\": [" + added +
                                "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
                                "\"add_prefix_space\": false, "
                                "\"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": null, "
                                "\"decoder\": {\"type\": "
                                "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                                "\"use_regex\": false}, \"model\": "
                                "{\"type\": \"BPE\", \"vocab\": {" +
                                vocab + "}, \"merges\": []}}")
        .value();
  }();
  return *made;
}

}  // namespace hadal::fuzz
