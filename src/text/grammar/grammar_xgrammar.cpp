// Only this file uses xgrammar: none of the library's types, exceptions and log lines leave it.
#include <dlpack/dlpack.h>
#include <json_spaces.h>
#include <time_limit.h>
#include <time_limit_error.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <new>
#include <optional>

#include "base/cancel.h"
#include "text/grammar/grammar_backend.h"
#include "text/grammar/grammar_schema.h"
#include "text/grammar/grammar_structural.h"
#include "text/grammar/memory_limit.h"

namespace hadal {

namespace {

thread_local std::vector<std::string>* warnings_of_thread = nullptr;

// WarningCollector collects the library's warnings while this thread converts a grammar, because each warning
// names a part that the library ignores.
class WarningCollector {
 public:
  explicit WarningCollector(std::vector<std::string>& warnings) { warnings_of_thread = &warnings; }
  ~WarningCollector() { warnings_of_thread = nullptr; }
  WarningCollector(const WarningCollector&) = delete;
  WarningCollector& operator=(const WarningCollector&) = delete;
};

// Returns the library's message on one line, without the failed condition at its front.
std::string clean(std::string_view message) {
  constexpr std::string_view kCheck = ") is false: ";
  if (message.starts_with("Check failed: "))
    if (const size_t at = message.find(kCheck); at != message.npos) message.remove_prefix(at + kCheck.size());
  while (!message.empty() && (message.back() == '.' || message.back() == '\n')) message.remove_suffix(1);
  return one_line(message);
}

// Does the same for an expression, which the library translates to EBNF. A place in that EBNF is left out,
// because the client has not written the EBNF.
std::string clean_of_expression(std::string_view message) {
  std::string line = clean(message);
  if (const size_t at = line.find(": "); line.starts_with("EBNF ") && at != line.npos) line.erase(0, at + 2);
  return line;
}

}  // namespace

}  // namespace hadal

// The library is built to call these (XGRAMMAR_LOG_CUSTOMIZE).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (hadal::warnings_of_thread != nullptr && level >= kWarning)
    hadal::warnings_of_thread->push_back(message);
}

}  // namespace xgrammar

namespace hadal {

namespace {

// Says that compiling a grammar's text (`bytes` long) takes longer than the limit.
Status too_slow(std::string_view field, size_t bytes, double limit_s) {
  return invalid_argument(
      "{}: compiling its {} bytes takes too long; at most {:g} s of processor time are allowed", field, bytes,
      limit_s);
}

// Says that compiling a grammar's text (`bytes` long) takes more memory than the limit.
Status too_big(std::string_view field, size_t bytes, int64_t limit_bytes) {
  return invalid_argument("{}: compiling its {} bytes takes too much memory; at most {} MiB are allowed",
                          field, bytes, limit_bytes >> 20);
}

// This byte precedes the text of an added token: no UTF-8 contains it, so no grammar matches it.
constexpr char kHidden = '\xFF';

class XgrammarWalker : public GrammarWalker {
 public:
  XgrammarWalker(xgrammar::GrammarMatcher matcher, const GrammarVocabulary& vocabulary)
      : vocabulary_(vocabulary), matcher_(std::move(matcher)) {}

  void fill(std::span<uint32_t> allowed) override {
    if (is_too_expensive()) return;
    int64_t shape = static_cast<int64_t>(allowed.size());
    DLTensor tensor{};
    tensor.data = allowed.data();
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 1;
    tensor.dtype = xgrammar::GetBitmaskDLType();
    tensor.shape = &shape;
    if (!guarded([&] { matcher_.FillNextTokenBitmask(&tensor); })) {
      std::fill(allowed.begin(), allowed.end(), 0);
      return;
    }
    // The library's own handling of end tokens and of the rest of the last word is overridden.
    if (vocabulary_.size % 32 != 0) allowed.back() &= (1U << (vocabulary_.size % 32)) - 1;
    const bool may_end = matcher_.IsCompleted();
    for (const int32_t id : vocabulary_.end_ids) {
      const uint32_t bit = 1U << (id % 32);
      allowed[id / 32] = may_end ? allowed[id / 32] | bit : allowed[id / 32] & ~bit;
    }
  }

  bool accept(int32_t token_id) override {
    if (is_too_expensive()) return false;
    bool is_accepted = false;
    return guarded([&] { is_accepted = matcher_.AcceptToken(token_id); }) && is_accepted;
  }

  void rollback(int64_t num_tokens) override {
    const MemoryLimit memory(left_bytes_);
    matcher_.Rollback(static_cast<int>(num_tokens));
    left_bytes_ = memory.left_bytes();
  }

  bool is_complete() const override { return matcher_.IsCompleted(); }
  bool is_too_expensive() const override { return end_ == End::kCost; }

 private:
  enum class End { kNone, kCost, kFailure };

  // Calls `work` within the time of one mask and the remaining memory. Returns false if `work` takes more.
  // Any other exception leaves the library's matcher in an unknown state, so the matcher is not called again.
  template <typename Work>
  bool guarded(Work work) {
    if (end_ == End::kFailure) throw Error("the grammar's position was lost when an earlier call failed");
    try {
      const hadal_xgrammar::TimeLimit limit(vocabulary_.masks.one_mask_s);
      const MemoryLimit memory(left_bytes_, hadal_xgrammar::look);
      work();
      left_bytes_ = memory.left_bytes();
      return true;
    } catch (const hadal_xgrammar::TimeLimitError&) {
      end_ = End::kCost;
      return false;
    } catch (const MemoryLimitError&) {
      end_ = End::kCost;
      return false;
    } catch (const std::bad_alloc&) {
      end_ = End::kFailure;
      throw;
    } catch (const std::exception& error) {
      end_ = End::kFailure;
      throw Error("the grammar's library failed: " + clean(error.what()));
    }
  }

  const GrammarVocabulary& vocabulary_;
  xgrammar::GrammarMatcher matcher_;
  int64_t left_bytes_ = vocabulary_.memory.walked_bytes;
  End end_ = End::kNone;  // why the matcher is not called any more
};

// A Variant is a vocabulary in the library's form. Grammars that need the same one share it.
struct Variant {
  std::mutex mutex;  // held while the vocabulary is made
  std::optional<xgrammar::TokenizerInfo> tokenizer;
};

// Returns the memory of a variant. The library keeps the texts of the tokens twice (once with the ids in the
// order of the texts), and an index over them.
int64_t variant_bytes(const GrammarVocabulary& vocabulary) {
  constexpr size_t kInline = 15;  // bytes that std::string stores inline
  int64_t bytes = 0;
  for (const std::string& text : vocabulary.texts) {
    const size_t heap = text.size() > kInline ? text.size() + 1 : 0;
    bytes += static_cast<int64_t>(2 * (sizeof(std::string) + heap) + sizeof(int64_t) + sizeof(int32_t));
  }
  return bytes;
}

class XgrammarGrammar : public BackendGrammar {
 public:
  // `variant` is the vocabulary for which the grammar was made, if that is not the backend's own, and has
  // `variant_bytes`. `start` is the position before the first token; it is kept because making a position may
  // take a second, but copying one is fast.
  XgrammarGrammar(xgrammar::CompiledGrammar grammar, xgrammar::GrammarMatcher start,
                  std::shared_ptr<const GrammarVocabulary> vocabulary, std::shared_ptr<const Variant> variant,
                  int64_t variant_bytes)
      : grammar_(std::move(grammar)),
        start_(std::move(start)),
        vocabulary_(std::move(vocabulary)),
        variant_(std::move(variant)),
        variant_bytes_(variant_bytes) {}

  int64_t size_bytes() const override { return static_cast<int64_t>(grammar_.MemorySizeBytes()); }
  std::unique_ptr<GrammarWalker> start() const override {
    return std::make_unique<XgrammarWalker>(start_.Fork(), *vocabulary_);
  }
  const GrammarVocabulary& vocabulary() const override { return *vocabulary_; }
  std::shared_ptr<const void> shared_part() const override { return variant_; }
  int64_t shared_bytes() const override { return variant_ == nullptr ? 0 : variant_bytes_; }

 private:
  xgrammar::CompiledGrammar grammar_;
  xgrammar::GrammarMatcher start_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  std::shared_ptr<const Variant> variant_;
  const int64_t variant_bytes_;
};

class XgrammarBackend : public GrammarBackend {
 public:
  explicit XgrammarBackend(GrammarVocabulary vocabulary)
      : vocabulary_(std::make_shared<const GrammarVocabulary>(std::move(vocabulary))),
        variant_bytes_(variant_bytes(*vocabulary_)),
        spaces_{vocabulary_->json_spaces.is_compact, vocabulary_->json_spaces.pattern} {
    for (size_t id = 0; id < vocabulary_->texts.size(); ++id)
      if (vocabulary_->is_added[id] != 0 && !is_end(id))
        added_tokens_.emplace(vocabulary_->texts[id], static_cast<int32_t>(id));
    plain_->tokenizer = make_tokenizer({}, false);
  }

  Result<std::shared_ptr<const BackendGrammar>> compile(const GrammarSpec& spec, bool hides_control,
                                                        const CompileBudget& budget,
                                                        const SharedPartHold& hold) override;
  Result<void> check_regex(const std::string& regex, std::string_view field,
                           const CompileBudget& budget) override;

 private:
  bool is_end(size_t id) const {
    return std::binary_search(vocabulary_->end_ids.begin(), vocabulary_->end_ids.end(),
                              static_cast<int32_t>(id));
  }
  // Returns a vocabulary in which the added tokens `shown` (ids, sorted) represent their text, and no token
  // has control characters except '\n' and '\r'.
  xgrammar::TokenizerInfo make_tokenizer(const std::vector<int32_t>& shown, bool hides_control) const;
  Result<std::shared_ptr<const Variant>> variant_for(const std::vector<std::string>& literals,
                                                     bool hides_control, const SharedPartHold& hold);
  Result<std::shared_ptr<const BackendGrammar>> compile_prepared(const GrammarSpec& spec,
                                                                 const PreparedTag& tag, bool hides_control,
                                                                 const CompileBudget& budget,
                                                                 const SharedPartHold& hold);
  Result<xgrammar::Grammar> convert(const GrammarSpec& spec, const PreparedTag& tag,
                                    const xgrammar::TokenizerInfo& tokenizer) const;

  std::shared_ptr<const GrammarVocabulary> vocabulary_;
  const int64_t variant_bytes_;  // of each variant
  hadal_xgrammar::JsonSpaces spaces_;
  AddedTokenIds added_tokens_;
  const std::shared_ptr<Variant> plain_ = std::make_shared<Variant>();  // all added tokens are hidden
  std::mutex mutex_;                                                    // guards variants_
  // The other vocabularies that some grammar uses, by `shown` and `hides_control` of make_tokenizer.
  std::map<std::pair<std::vector<int32_t>, bool>, std::weak_ptr<Variant>> variants_;
};

xgrammar::TokenizerInfo XgrammarBackend::make_tokenizer(const std::vector<int32_t>& shown,
                                                        bool hides_control) const {
  const auto is_control = [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 && c != '\n' && c != '\r';
  };
  std::vector<std::string> texts = vocabulary_->texts;
  for (size_t id = 0; id < texts.size(); ++id) {
    const bool is_added = vocabulary_->is_added[id] != 0 &&
                          !std::binary_search(shown.begin(), shown.end(), static_cast<int32_t>(id));
    if (is_added || (hides_control && std::any_of(texts[id].begin(), texts[id].end(), is_control)))
      texts[id].insert(texts[id].begin(), kHidden);
  }
  std::vector<int32_t> ends;
  for (const int32_t id : vocabulary_->end_ids)
    if (static_cast<size_t>(id) < texts.size()) ends.push_back(id);
  return xgrammar::TokenizerInfo(texts, xgrammar::VocabType::RAW, static_cast<int>(vocabulary_->size), ends);
}

Result<std::shared_ptr<const Variant>> XgrammarBackend::variant_for(const std::vector<std::string>& literals,
                                                                    bool hides_control,
                                                                    const SharedPartHold& hold) {
  std::vector<int32_t> shown;
  for (const auto& [text, id] : added_tokens_)
    if (std::any_of(literals.begin(), literals.end(),
                    [&](const std::string& literal) { return literal.find(text) != literal.npos; }))
      shown.push_back(id);
  if (shown.empty() && !hides_control) return std::shared_ptr<const Variant>(plain_);
  std::sort(shown.begin(), shown.end());
  std::shared_ptr<Variant> variant;
  {
    const std::lock_guard lock(mutex_);
    const std::pair key(shown, hides_control);
    if (const auto found = variants_.find(key); found != variants_.end()) variant = found->second.lock();
    if (variant == nullptr) {
      std::erase_if(variants_, [](const auto& known) { return known.second.expired(); });
      variant = std::make_shared<Variant>();
      variants_[key] = variant;
    }
  }
  if (hold) HADAL_RETURN_IF_ERROR(hold(variant, variant_bytes_));
  const std::lock_guard lock(variant->mutex);
  if (!variant->tokenizer) variant->tokenizer = make_tokenizer(shown, hides_control);
  return std::shared_ptr<const Variant>(variant);
}

Result<xgrammar::Grammar> XgrammarBackend::convert(const GrammarSpec& spec, const PreparedTag& tag,
                                                   const xgrammar::TokenizerInfo& tokenizer) const {
  std::vector<std::string> warnings;
  const WarningCollector collector(warnings);
  const hadal_xgrammar::JsonSpacesScope spaces(spaces_);
  xgrammar::Grammar grammar{xgrammar::NullObj()};
  switch (spec.kind) {
    case GrammarKind::kJsonObject:
    case GrammarKind::kJsonSchema:
      grammar =
          xgrammar::Grammar::FromJSONSchema(spec.text, /*any_whitespace=*/!spaces_.is_compact,
                                            /*indent=*/std::nullopt, /*separators=*/std::nullopt,
                                            /*strict_mode=*/true, /*max_whitespace_cnt=*/kMaxJsonBlanks);
      break;
    case GrammarKind::kRegex:
      grammar = xgrammar::Grammar::FromRegex(spec.text);
      break;
    case GrammarKind::kEbnf:
      grammar = xgrammar::Grammar::FromEBNF(spec.text);
      break;
    case GrammarKind::kStructuralTag: {
      auto converted = xgrammar::Grammar::FromStructuralTag(tag.json, tokenizer);
      if (const auto* failure = std::get_if<xgrammar::StructuralTagError>(&converted))
        return invalid_argument(
            "{}: {}", spec.field,
            clean(std::visit([](const auto& error) { return std::string(error.what()); }, *failure)));
      grammar = std::get<xgrammar::Grammar>(converted);
      break;
    }
  }
  if (!warnings.empty()) return invalid_argument("{}: {}", spec.field, clean(warnings.front()));
  return grammar;
}

Result<void> XgrammarBackend::check_regex(const std::string& regex, std::string_view field,
                                          const CompileBudget& budget) {
  try {
    const hadal_xgrammar::TimeLimit limit(budget.left_s(), check_cancelled);
    const MemoryLimit memory(vocabulary_->memory.compile_bytes, hadal_xgrammar::look);
    std::vector<std::string> warnings;
    const WarningCollector collector(warnings);
    xgrammar::Grammar::FromRegex(regex);
    if (!warnings.empty()) return invalid_argument("{}: {}", field, clean(warnings.front()));
  } catch (const MemoryLimitError&) {
    return too_big(field, regex.size(), vocabulary_->memory.compile_bytes);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const hadal_xgrammar::TimeLimitError&) {
    return too_slow(field, regex.size(), vocabulary_->max_compile_seconds);
  } catch (const std::exception& error) {
    return invalid_argument("{}: {}", field, clean_of_expression(error.what()));
  }
  return {};
}

Result<std::shared_ptr<const BackendGrammar>> XgrammarBackend::compile(const GrammarSpec& spec,
                                                                       bool hides_control,
                                                                       const CompileBudget& budget,
                                                                       const SharedPartHold& hold) {
  PreparedTag tag;
  if (spec.kind == GrammarKind::kStructuralTag) {
    HADAL_ASSIGN_OR_RETURN(tag, prepare_structural_tag(spec.text, spec.field, added_tokens_));
    hides_control = tag.has_length;
  } else if (spec.kind == GrammarKind::kEbnf) {
    tag.literals.push_back(spec.text);
  }
  auto compiled = compile_prepared(spec, tag, hides_control, budget, hold);
  // If all expressions are valid, a place in EBNF that the error names is in a grammar of the tag.
  if (!compiled.ok() && compiled.status().code == StatusCode::kInvalidArgument)
    HADAL_RETURN_IF_ERROR(check_patterns(*this, tag.patterns, spec.field, budget));
  return compiled;
}

Result<std::shared_ptr<const BackendGrammar>> XgrammarBackend::compile_prepared(const GrammarSpec& spec,
                                                                                const PreparedTag& tag,
                                                                                bool hides_control,
                                                                                const CompileBudget& budget,
                                                                                const SharedPartHold& hold) {
  try {
    HADAL_ASSIGN_OR_RETURN(const std::shared_ptr<const Variant> variant,
                           variant_for(tag.literals, hides_control, hold));
    const xgrammar::TokenizerInfo& tokenizer = *variant->tokenizer;
    const hadal_xgrammar::TimeLimit limit(budget.left_s(), check_cancelled);
    const MemoryLimit memory(vocabulary_->memory.compile_bytes, hadal_xgrammar::look);
    HADAL_ASSIGN_OR_RETURN(const xgrammar::Grammar grammar, convert(spec, tag, tokenizer));
    // The caller's thread does all the work, because an exception in a worker of the library would end the
    // process.
    xgrammar::GrammarCompiler compiler(tokenizer, /*max_threads=*/1, /*cache_enabled=*/false);
    const xgrammar::CompiledGrammar compiled = compiler.CompileGrammar(grammar);
    const int64_t left_bytes = memory.left_bytes();
    xgrammar::GrammarMatcher start(compiled);
    if (const int64_t bytes = left_bytes - memory.left_bytes(); bytes > vocabulary_->memory.position_bytes)
      return invalid_argument(
          "{}: its rules begin in so many ways at once that a position takes {} KiB; at most {} KiB are "
          "allowed",
          spec.field, bytes >> 10, vocabulary_->memory.position_bytes >> 10);
    return std::shared_ptr<const BackendGrammar>(std::make_shared<XgrammarGrammar>(
        compiled, std::move(start), vocabulary_, variant == plain_ ? nullptr : variant, variant_bytes_));
  } catch (const MemoryLimitError&) {
    return too_big(spec.field, spec.text.size(), vocabulary_->memory.compile_bytes);
  } catch (const std::bad_array_new_length&) {
    return invalid_argument(
        "{}: its {} bytes describe more than a compiled grammar can hold; must have smaller repeats",
        spec.field, spec.text.size());
  } catch (const std::bad_alloc&) {
    throw;  // it says nothing about the grammar
  } catch (const hadal_xgrammar::TimeLimitError&) {
    return too_slow(spec.field, spec.text.size(), vocabulary_->max_compile_seconds);
  } catch (const std::exception& error) {
    const bool has_ebnf = spec.kind == GrammarKind::kEbnf || spec.kind == GrammarKind::kStructuralTag;
    return invalid_argument("{}: {}", spec.field,
                            has_ebnf ? clean(error.what()) : clean_of_expression(error.what()));
  }
}

}  // namespace

bool grammar_available() {
  return true;
}

Result<std::unique_ptr<GrammarBackend>> make_grammar_backend(GrammarVocabulary vocabulary) {
  try {
    return std::unique_ptr<GrammarBackend>(std::make_unique<XgrammarBackend>(std::move(vocabulary)));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return make_status(StatusCode::kInternal, "grammars for this tokenizer: {}", clean(error.what()));
  }
}

}  // namespace hadal
