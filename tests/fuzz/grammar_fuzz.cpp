// Fuzzes clients' grammars. The first byte selects the kind of the rest, which may also be a list of tools. A
// spec compiles or gives a one-line error; for a compiled one a few masks are filled and walked. This also
// works in builds without the library, where only the checks before it run.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "text/grammar.h"
#include "text/grammar_schema.h"
#include "text/grammar_tools.h"
#include "text/tokenizer.h"

namespace {

using namespace hadal;

// Every byte, some usual runs of JSON, and the markers of tool calls.
const Tokenizer& tokenizer() {
  static const auto made = [] {
    std::string vocab;
    int id = 0;
    const auto add = [&](const std::string& token) {
      vocab += (id == 0 ? "\"" : ", \"") + token + "\": " + std::to_string(id);
      ++id;
    };
    // The byte-level alphabet: printable bytes represent themselves, the others are U+0100 and up.
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

void walk(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view choices) {
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> words((tokenizer().vocab_size() + 31) / 32);
  for (const char choice : choices.substr(0, 16)) {
    std::fill(words.begin(), words.end(), 0);
    matcher.fill_mask(words);
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < tokenizer().vocab_size(); ++t)
      if ((words[t / 32] >> (t % 32) & 1U) != 0) allowed.push_back(t);
    HADAL_CHECK(!allowed.empty());
    HADAL_CHECK(matcher.accept_token(allowed[static_cast<unsigned char>(choice) % allowed.size()]));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  GrammarSpec spec{
      .kind = static_cast<GrammarKind>(data[0] % 5), .text = std::string(rest), .field = "field"};
  if (data[0] % 6 == 5) {
    const auto made =
        tool_choice_grammar(data[0] % 12 == 5 ? ChatFormat::kV31 : ChatFormat::kV25, rest, "", true);
    if (!made.ok()) {
      HADAL_CHECK(!made.status().message.empty());
      return 0;
    }
    spec = *made;
  }
  (void)check_json_schema(rest, "schema");
  if (!grammar_available()) return 0;
  static const auto compiler = [] {
    GrammarCompilerOptions options;
    options.end_ids = {*tokenizer().token_to_id("<eos>")};
    options.max_compile_seconds = 1.0;
    options.cache_bytes = 1 << 20;
    return GrammarCompiler::create(tokenizer(), options).value();
  }();
  const auto compiled = compiler->compile(spec);
  if (!compiled.ok()) {
    HADAL_CHECK(compiled.status().message.find('\n') == std::string::npos, "{}", compiled.status().message);
    return 0;
  }
  walk(*compiled, rest);
  return 0;
}
