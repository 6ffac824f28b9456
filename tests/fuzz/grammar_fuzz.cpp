// Fuzzes clients' grammars. The first byte selects the kind of the rest, which may also be a list of tools. A
// spec compiles or gives a one-line error. For a compiled spec, a few masks are filled and walked. This also
// works in builds without the library, where only the checks before it run.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "byte_tokenizer.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_schema.h"
#include "text/grammar/grammar_tools.h"

namespace {

using namespace hadal;

void walk(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view choices) {
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> words((fuzz::byte_tokenizer().vocab_size() + 31) / 32);
  for (const char choice : choices.substr(0, 16)) {
    std::fill(words.begin(), words.end(), 0);
    matcher.fill_mask(words);
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < fuzz::byte_tokenizer().vocab_size(); ++t)
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
    constexpr ChatFormat kFormats[] = {ChatFormat::kV31, ChatFormat::kV25, ChatFormat::kV32};
    const auto made = tool_choice_grammar(kFormats[data[0] / 6 % 3], rest, "", true);
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
    options.end_ids = {*fuzz::byte_tokenizer().token_to_id("<eos>")};
    options.max_compile_seconds = 1.0;
    options.cache_bytes = 1 << 20;
    return GrammarCompiler::create(fuzz::byte_tokenizer(), options).value();
  }();
  const auto compiled = compiler->compile(spec);
  if (!compiled.ok()) {
    HADAL_CHECK(compiled.status().message.find('\n') == std::string::npos, "{}", compiled.status().message);
    return 0;
  }
  walk(*compiled, rest);
  return 0;
}
