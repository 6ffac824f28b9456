// Fuzzes the way from a client's JSON schema to the masks of its answer. The input up to the first zero byte
// is the schema, the rest selects tokens. A schema compiles or gives a one-line error that names the field.
// Every mask allows something, and a text that the grammar calls complete is JSON. Each step has a limit of
// time.
#include <cstddef>
#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "byte_tokenizer.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_schema.h"
#include "unit_limit.h"

namespace {

using namespace hadal;

constexpr size_t kMaxTokens = 64;
// These limits are lower than the server's (5 s and 0.5 s), so that slow schemas are found earlier.
constexpr double kMaxCompileSeconds = 1.0;
constexpr double kMaxMaskSeconds = 0.25;

GrammarCompiler& compiler() {
  static const auto made = [] {
    GrammarCompilerOptions options;
    options.end_ids = {*fuzz::byte_tokenizer().token_to_id("<eos>")};
    options.max_compile_seconds = kMaxCompileSeconds;
    options.masks.one_mask_s = kMaxMaskSeconds;
    options.cache_bytes = 1 << 20;
    return GrammarCompiler::create(fuzz::byte_tokenizer(), options).value();
  }();
  return *made;
}

void walk(const std::shared_ptr<const CompiledGrammar>& grammar, std::string_view choices) {
  const Tokenizer& tokenizer = fuzz::byte_tokenizer();
  GrammarMatcher matcher(grammar);
  std::vector<uint32_t> words((tokenizer.vocab_size() + 31) / 32);
  std::vector<int32_t> ids;
  for (const char choice : choices.substr(0, kMaxTokens)) {
    if (matcher.is_terminated()) break;
    std::fill(words.begin(), words.end(), 0);
    {
      const fuzz::UnitLimit limit(4 * kMaxMaskSeconds);
      matcher.fill_mask(words);
    }
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < tokenizer.vocab_size(); ++t)
      if ((words[t / 32] >> (t % 32) & 1U) != 0) allowed.push_back(t);
    HADAL_CHECK(!allowed.empty());
    ids.push_back(allowed[static_cast<unsigned char>(choice) % allowed.size()]);
    HADAL_CHECK(matcher.accept_token(ids.back()));
  }
  if (!matcher.is_complete() || matcher.is_too_expensive()) return;
  if (matcher.is_terminated()) ids.pop_back();
  std::string text;
  for (const int32_t id : ids) text += tokenizer.token_bytes(id);
  // JSON allows any exponent, but this reader accepts only exponents that a double can hold.
  static const std::regex exponent("[eE][+-]?[0-9]+");
  HADAL_CHECK(nlohmann::json::accept(std::regex_replace(text, exponent, "e1")), "complete, but not JSON: {}",
              text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view schema = input.substr(0, zero);
  {
    const fuzz::UnitLimit limit(2.0);
    const auto checked = check_json_schema(schema, "schema");
    HADAL_CHECK(checked.ok() || (checked.status().message.starts_with("schema") &&
                                 checked.status().message.find('\n') == std::string::npos),
                "{}", checked.ok() ? "" : checked.status().message);
  }
  if (!grammar_available()) return 0;
  std::shared_ptr<const CompiledGrammar> grammar;
  {
    // A compile can be interrupted only at certain places, and never in the code that reads the schema.
    const fuzz::UnitLimit limit(4 * kMaxCompileSeconds);
    const auto compiled =
        compiler().compile({.kind = GrammarKind::kJsonSchema, .text = std::string(schema), .field = "field"});
    if (!compiled.ok()) {
      const std::string& message = compiled.status().message;
      HADAL_CHECK(message.find("field") != message.npos && message.find('\n') == message.npos, "{}", message);
      return 0;
    }
    grammar = *compiled;
  }
  walk(grammar, zero == input.npos ? std::string_view() : input.substr(zero + 1));
  return 0;
}
