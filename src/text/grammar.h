// Grammar-constrained decoding: which tokens may come next so that the whole answer is of a JSON schema, a
// regular expression, an EBNF grammar or a structural tag. The parsing is xgrammar's; this file owns the
// border to it (no exception and no type of the library crosses it), the cache of compiled grammars and the
// rules about special tokens. In a build without xgrammar (cmake/HadalXgrammar.cmake) every entry point fails
// with kUnsupported.
//
// Special tokens: a token that the tokenizer file lists as added ("<｜User｜>", "</think>", …) never stands
// for its text inside a grammar, so no JSON string and no regex can contain one. Where a grammar wants one it
// says so: a structural tag by {"type": "token", "token": "<｜tool▁sep｜>"}, or a structural tag or EBNF by
// having its text in a literal; then that token counts as its text in this grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace hadal {

class Tokenizer;

enum class GrammarKind {
  kJsonObject,     // any JSON object; text is ignored
  kJsonSchema,     // text: a JSON schema (text/grammar_schema.h says what of it is enforced)
  kRegex,          // text: a regular expression that matches the whole answer
  kEbnf,           // text: rules `name ::= …` with the start rule `root`
  kStructuralTag,  // text: {"type": "structural_tag", "format": …}
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  std::string
      field;  // what errors call it, e.g. "response_format.json_schema.schema"; empty: the kind's name
};

const char* to_string(GrammarKind kind);  // json_object | json_schema | regex | ebnf | structural_tag

// Whether this build has xgrammar.
bool grammar_available();

struct GrammarCompilerOptions {
  int64_t vocab_size = 0;        // the model's, ≥ the tokenizer's; 0: the tokenizer's
  std::vector<int32_t> end_ids;  // tokens that end an answer; empty: the tokenizer's eos
  // Of compiled grammars kept, and of the vocabularies that some of them need of their own; least recently
  // used go first.
  int64_t cache_bytes = 256LL << 20;
  // Of processor time; a grammar that takes longer is an error, and an answer whose next mask takes longer
  // than max_mask_seconds can only end.
  double max_compile_seconds = 5.0;
  double max_mask_seconds = 0.5;
};

// A grammar made ready for one vocabulary. Immutable; shared by the matchers of any number of threads.
// Outlives the compiler it came from.
class CompiledGrammar {
 public:
  CompiledGrammar() = default;
  virtual ~CompiledGrammar() = default;
  CompiledGrammar(const CompiledGrammar&) = delete;
  CompiledGrammar& operator=(const CompiledGrammar&) = delete;
  virtual int64_t size_bytes() const = 0;  // about what it holds in memory
};

struct GrammarCacheStats {
  int64_t entries = 0;
  int64_t size_bytes = 0;
  int64_t num_hits = 0;  // answered from the cache, or by waiting for another thread's compile
  int64_t num_misses = 0;
};

// Specs -> compiled grammars of one tokenizer. Any thread may call; the work happens in the caller's thread,
// takes milliseconds to seconds, and therefore belongs neither on the engine's nor on an I/O thread. Threads
// that ask for one spec at the same time compile it once.
class GrammarCompiler {
 public:
  // Copies what it needs of the tokenizer. Errors: kUnsupported (built without xgrammar), kInvalidArgument (a
  // vocab_size below the tokenizer's, an end id outside of the vocabulary, no end id at all).
  static Result<std::unique_ptr<GrammarCompiler>> create(const Tokenizer& tokenizer,
                                                         GrammarCompilerOptions options = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Errors: kInvalidArgument with one line that names the field and what is wrong: not JSON, a schema keyword
  // that cannot be enforced (with its JSON pointer), a broken regex or grammar, text over the bounds (256
  // KiB, depth 64), a grammar too large to compile. Failures are not cached.
  Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec);

  GrammarCacheStats cache_stats() const;
  void clear_cache();

 private:
  struct Impl;
  explicit GrammarCompiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct GrammarMatcherOptions {
  // The grammar begins after this token (e.g. </think>); until then every token but the end ones is allowed.
  // -1: it begins at once.
  int32_t start_after_token = -1;
};

// Where one answer stands in its grammar. One thread at a time. Its first two functions are those of the
// engine's TokenConstraint.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar, GrammarMatcherOptions options = {});
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Sets bit t of `allowed` ([ceil(vocab_size/32)] words, zero on entry) for every token that may come next.
  // End tokens are allowed when the grammar is complete, and alone after the answer has ended or where no
  // token can continue (a vocabulary that cannot spell what the grammar wants). So at least one bit is set.
  void fill_mask(std::span<uint32_t> allowed);
  // False, and nothing changed: the token was not allowed.
  bool accept_token(int32_t token_id);

  // An end token was accepted.
  bool is_terminated() const;
  // What was accepted is a whole text of the grammar: it may end here.
  bool is_complete() const;

  // Takes back the last `num_tokens` accepted tokens, 0 ≤ num_tokens ≤ those accepted.
  void rollback(int64_t num_tokens);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal
