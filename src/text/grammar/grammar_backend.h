// Declares the implementation behind text/grammar/grammar.h: grammar_xgrammar.cpp or, in a build without the
// library, grammar_stub.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/thread_seconds.h"
#include "text/grammar/grammar.h"

namespace hadal {

// GrammarVocabulary holds the data of a tokenizer that a grammar needs.
struct GrammarVocabulary {
  int64_t size = 0;                  // the model's vocabulary; ids from texts.size() on have no token
  std::vector<std::string> texts;    // [tokenizer's vocab_size], the bytes of each token
  std::vector<uint8_t> is_added;     // [tokenizer's vocab_size], see grammar.h on special tokens
  std::vector<int32_t> end_ids;      // sorted, unique, at least one
  double max_compile_seconds = 0.0;  // see GrammarCompilerOptions
  GrammarMemoryLimits memory;
  MaskLimits masks;
  JsonSpaces json_spaces;
};

// A GrammarWalker is the position of one answer in its grammar. One thread at a time uses it.
class GrammarWalker {
 public:
  virtual ~GrammarWalker() = default;
  // Sets the bits of the tokens that may come next in all-zero words; end tokens are set when the grammar is
  // complete. This and accept() throw as GrammarMatcher::fill_mask does.
  virtual void fill(std::span<uint32_t> allowed) = 0;
  // Accepts any token except the end tokens. Returns false, and changes nothing, if it was not allowed.
  virtual bool accept(int32_t token_id) = 0;
  virtual void rollback(int64_t num_tokens) = 0;
  virtual bool is_complete() const = 0;
  // Returns true once a call has been given up because it took longer than one_mask_s, or because it and the
  // calls before it together took more memory than walked_bytes. From then on fill() sets nothing and
  // accept() returns false.
  virtual bool is_too_expensive() const = 0;
};

// BackendGrammar is the only class that derives from CompiledGrammar.
class BackendGrammar : public CompiledGrammar {
 public:
  virtual std::unique_ptr<GrammarWalker> start() const = 0;
  virtual const GrammarVocabulary& vocabulary() const = 0;
};

// CompileBudget is the processor time that its thread may use to compile one grammar, with all parts of it.
class CompileBudget {
 public:
  explicit CompileBudget(double seconds) : end_s_(thread_seconds() + seconds) {}
  // Returns 0 once the time is used up.
  double left_s() const { return std::max(end_s_ - thread_seconds(), 0.0); }

 private:
  const double end_s_;  // on this thread's clock
};

class GrammarBackend {
 public:
  virtual ~GrammarBackend() = default;
  // Compiles `spec`, which is within the limits, has a field, and contains a prepared schema. `hides_control`
  // is PreparedSchema's has_length. Any thread may call this function; its errors and exceptions are those of
  // GrammarCompiler::compile.
  virtual Result<std::shared_ptr<const BackendGrammar>> compile(const GrammarSpec& spec, bool hides_control,
                                                                const CompileBudget& budget,
                                                                const SharedPartHold& hold) = 0;
  // Checks that the library accepts `regex`. The error begins with `field`; if it names a position, this is a
  // position in `regex`. Any thread may call it. Throws std::bad_alloc.
  virtual Result<void> check_regex(const std::string& regex, std::string_view field,
                                   const CompileBudget& budget) = 0;
};

// Finds the expression that the library refuses, because the library does not say which of several is broken.
// `patterns` has each expression's place and text. The error names the place and begins with `field`. Only
// the first 256 expressions are tried, and only until the budget is used up: then none is blamed.
Result<void> check_patterns(GrammarBackend& backend,
                            const std::vector<std::pair<std::string, std::string>>& patterns,
                            std::string_view field, const CompileBudget& budget);

// Returns kUnsupported if the build lacks the library.
Result<std::unique_ptr<GrammarBackend>> make_grammar_backend(GrammarVocabulary vocabulary);

}  // namespace hadal
