// Constrains decoding by a grammar: it computes which tokens may come next so that the whole answer matches a
// JSON schema, a regular expression, an EBNF grammar or a structural tag. The library xgrammar does the
// parsing. This file provides the interface to the library (without its exceptions and types), the cache of
// compiled grammars and the rules about special tokens. In a build without xgrammar
// (cmake/HadalXgrammar.cmake) every entry point fails with kUnsupported.
//
// Special tokens: inside a grammar, a token that the tokenizer file lists as added ("<｜User｜>", "</think>",
// …) never represents its text, so no JSON string and no regex can contain one. A grammar requests one
// explicitly: a structural tag with {"type": "token", "token": "<｜tool▁sep｜>"}, or a structural tag or EBNF
// with its text in a literal; then that token represents its text in this grammar.
//
// Between the tokens of JSON that a schema describes, a grammar allows at most one blank, or one line break
// and the indentation of the depth (4 blanks or a tab for each level). More blanks are not allowed, because a
// model may repeat them until its answer reaches its maximum length. Inside values of any type, whose depth
// is unknown to the grammar, the indentation is that of 4 levels.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mask_limits.h"
#include "base/result.h"

namespace hadal {

class Tokenizer;

enum class GrammarKind {
  kJsonObject,     // any JSON object; text is ignored
  kJsonSchema,     // text: a JSON schema (text/grammar/grammar_schema.h lists what is enforced)
  kRegex,          // text: a regular expression that matches the whole answer
  kEbnf,           // text: rules `name ::= …` with the start rule `root`
  kStructuralTag,  // text: {"type": "structural_tag", "format": …}
};

struct GrammarSpec {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;
  std::string field;  // the name in errors, e.g. "response_format.json_schema.schema"; empty: the kind's name
};

const char* to_string(GrammarKind kind);  // json_object | json_schema | regex | ebnf | structural_tag

// Tells whether this build has xgrammar.
bool grammar_available();

// Replaces the rule about white space in JSON.
struct JsonSpaces {
  bool is_compact = false;  // allow only one blank after each comma and colon
  std::string pattern;      // otherwise: a regex for white space between tokens; empty: the rule above
};

// Limits the memory that one thread may hold. For a vocabulary of 129,280 tokens, compiling a usual grammar
// takes up to 25 MB. A position takes 20 to 70 KiB at the beginning of an answer and grows by some KiB with
// each token.
struct GrammarMemoryLimits {
  int64_t compile_bytes = 64LL << 20;    // a grammar that needs more to be compiled is an error,
  int64_t position_bytes = 128LL << 10;  // and so is one whose first position needs more
  int64_t walked_bytes = 64LL << 20;     // a position that has become larger ends its answer
};

struct GrammarCompilerOptions {
  int64_t vocab_size = 0;        // the model's, ≥ the tokenizer's; 0: the tokenizer's
  std::vector<int32_t> end_ids;  // tokens that end an answer; empty: the tokenizer's eos
  // Limits the memory of the cached grammars, and of the vocabularies that some grammars need; the least
  // recently used grammars are dropped first.
  int64_t cache_bytes = 256LL << 20;
  // Limits processor time. A grammar that takes longer to compile, with all its parts and with the search for
  // the broken one, is an error; if computing the next mask takes longer than masks.one_mask_s, only end
  // tokens are allowed from then on.
  double max_compile_seconds = 5.0;
  GrammarMemoryLimits memory;
  JsonSpaces json_spaces;
  MaskLimits masks;
};

// A CompiledGrammar is compiled for one vocabulary. It is immutable, shared by the matchers of any number of
// threads, and may outlive the compiler that made it.
class CompiledGrammar {
 public:
  CompiledGrammar() = default;
  virtual ~CompiledGrammar() = default;
  CompiledGrammar(const CompiledGrammar&) = delete;
  CompiledGrammar& operator=(const CompiledGrammar&) = delete;
  virtual int64_t size_bytes() const = 0;  // approximate memory of this object
  // These two return memory that this grammar shares with others, and its approximate size, which
  // size_bytes() does not count: the vocabulary of the grammars that need the same added tokens. The memory
  // is null if the grammar shares only the vocabulary that its compiler has anyway.
  virtual std::shared_ptr<const void> shared_part() const { return nullptr; }
  virtual int64_t shared_bytes() const { return 0; }
};

// Called before a grammar uses memory that it shares with others (CompiledGrammar::shared_part), and before
// that memory is made. An error refuses it.
using SharedPartHold = std::function<Result<void>(std::shared_ptr<const void> part, int64_t bytes)>;

struct GrammarCacheStats {
  int64_t entries = 0;
  int64_t size_bytes = 0;
  int64_t num_hits = 0;  // found in the cache, or by waiting for another thread's compile
  int64_t num_misses = 0;
};

// Compiles grammars for one tokenizer. Any thread may call; the work happens in the caller's thread and takes
// milliseconds to seconds, so it must run neither on the engine's thread nor on an I/O thread. Threads that
// request the same spec at the same time compile it once.
class GrammarCompiler {
 public:
  // Makes a compiler, which copies the data that it needs from the tokenizer. The errors are kUnsupported
  // (built without xgrammar) and kInvalidArgument (a vocab_size below the tokenizer's, an end id outside of
  // the vocabulary, no end id at all, or a json_spaces.pattern that is no regular expression).
  static Result<std::unique_ptr<GrammarCompiler>> create(const Tokenizer& tokenizer,
                                                         GrammarCompilerOptions options = {});
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // The error is kInvalidArgument with one line that names the field and the problem, which is one of these:
  // not JSON, a schema keyword that cannot be enforced (with its JSON pointer), a broken regex or grammar,
  // text over the limits (256 KiB, depth 64), and a grammar beyond the limits of time and memory. The last
  // of these errors are remembered. The error is kInternal if the library has failed, and kCancelled if this
  // thread's work was cancelled (base/cancel.h) while it compiled. Throws std::bad_alloc if there is no
  // memory. `hold`, if not empty, is called while this thread compiles a grammar that shares memory, and its
  // error becomes that of the call. Other threads that waited for this compilation get its error too. These
  // four are not remembered, so the next call compiles again.
  Result<std::shared_ptr<const CompiledGrammar>> compile(const GrammarSpec& spec,
                                                         const SharedPartHold& hold = {});

  const GrammarMemoryLimits& limits() const;
  GrammarCacheStats cache_stats() const;
  void clear_cache();

 private:
  struct Impl;
  explicit GrammarCompiler(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct GrammarMatcherOptions {
  // The grammar begins after this token (e.g. </think>); until then every token except the end tokens is
  // allowed. With -1 it begins at once.
  int32_t start_after_token = -1;
};

// A GrammarMatcher is the position of one answer in its grammar. One thread at a time uses it. Its first two
// functions are those of the engine's TokenConstraint.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar, GrammarMatcherOptions options = {});
  ~GrammarMatcher();
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;

  // Sets bit t of `allowed` ([ceil(vocab_size/32)] words, zero on entry) for every token that may come next.
  // End tokens are allowed when the grammar is complete. Only end tokens are allowed after the answer has
  // ended, or when no token can continue because the vocabulary cannot spell the required text. So at least
  // one bit is set. fill_mask and accept_token throw std::bad_alloc if there is no memory, and hadal::Error
  // if the library has failed. The position in the grammar is then lost, and every later call throws
  // hadal::Error.
  void fill_mask(std::span<uint32_t> allowed);
  // Returns false, and changes nothing, if the token was not allowed.
  bool accept_token(int32_t token_id);

  // Returns true once an end token was accepted.
  bool is_terminated() const;
  // Returns true if the accepted text is a complete text of the grammar, so the answer may end here.
  bool is_complete() const;

  // Returns true once a mask or a token took longer than one_mask_s, or the position needed more than
  // walked_bytes. From then on only end tokens are allowed.
  bool is_too_expensive() const;
  // Returns the limits of the compiler that made the grammar.
  const MaskLimits& limits() const;

  // Undoes the last `num_tokens` accepted tokens, 0 ≤ num_tokens ≤ the number accepted.
  void rollback(int64_t num_tokens);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal
