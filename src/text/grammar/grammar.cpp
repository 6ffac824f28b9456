// This file holds the parts of compiling grammars that every build shares: the checks of limits, and the
// cache.
#include "text/grammar/grammar.h"

#include <algorithm>
#include <future>
#include <list>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>

#include "base/cancel.h"
#include "base/printable.h"
#include "text/grammar/expression_depth.h"
#include "text/grammar/grammar_backend.h"
#include "text/grammar/grammar_schema.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal {

namespace {

constexpr size_t kMaxFailures = 256;           // failed grammars that are remembered
constexpr int64_t kMaxFailureBytes = 8 << 20;  // of their texts
constexpr size_t kMaxBlamed = 256;             // patterns that are tried one by one to find the broken one

const std::string& field_of(const GrammarSpec& spec, std::string& storage) {
  if (!spec.field.empty()) return spec.field;
  return storage = to_string(spec.kind);
}

Result<void> check_bounds(const GrammarSpec& spec, std::string_view field) {
  if (spec.text.size() > kMaxGrammarBytes)
    return invalid_argument("{} has {} bytes; at most {} are allowed", field, spec.text.size(),
                            kMaxGrammarBytes);
  if (const size_t at = spec.text.find('\0'); at != spec.text.npos)
    return invalid_argument("{}: byte {} is zero; zero bytes are not allowed", field, at);
  if (spec.kind != GrammarKind::kRegex && spec.kind != GrammarKind::kEbnf) return {};
  if (spec.text.empty())
    return invalid_argument("{}: it is empty; must have 1 to {} bytes", field, kMaxGrammarBytes);
  const std::string why = spec.kind == GrammarKind::kRegex ? why_regex_is_too_deep(spec.text)
                                                           : why_groups_are_too_deep(spec.text);
  if (!why.empty()) return invalid_argument("{}: {}", field, why);
  return {};
}

// Returns a schema for any object, with a separate definition for each of the first levels, because each
// level has its own indentation.
std::string any_object_schema() {
  constexpr int kLevels = 4;
  std::string definitions;
  for (int level = 2; level <= kLevels; ++level) {
    const std::string inner = level == kLevels ? "{}" : fmt::format(R"({{"$ref": "#/$defs/{}"}})", level + 1);
    definitions += fmt::format(
        R"({}"{}": {{"anyOf": [{{"type": ["string", "number", "boolean", "null"]}}, {{"type": "object", "additionalProperties": {}}}, {{"type": "array", "items": {}}}]}})",
        definitions.empty() ? "" : ", ", level, inner, inner);
  }
  return fmt::format(
      R"({{"type": "object", "additionalProperties": {{"$ref": "#/$defs/2"}}, "$defs": {{{}}}}})",
      definitions);
}

}  // namespace

const char* to_string(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonObject:
      return "json_object";
    case GrammarKind::kJsonSchema:
      return "json_schema";
    case GrammarKind::kRegex:
      return "regex";
    case GrammarKind::kEbnf:
      return "ebnf";
    case GrammarKind::kStructuralTag:
      return "structural_tag";
  }
  return "unknown";
}

Result<void> check_patterns(GrammarBackend& backend,
                            const std::vector<std::pair<std::string, std::string>>& patterns,
                            std::string_view field, const CompileBudget& budget) {
  for (size_t i = 0; i < std::min(patterns.size(), kMaxBlamed); ++i) {
    const auto& [at, pattern] = patterns[i];
    const std::string where = fmt::format("{}: \"pattern\" at {}", field, at.empty() ? "the root" : at);
    const Result<void> checked = backend.check_regex(pattern, one_line(where), budget);
    if (budget.left_s() <= 0.0) return {};  // this one may be fine, and is only the last of many
    HADAL_RETURN_IF_ERROR(checked);
  }
  return {};
}

struct GrammarCompiler::Impl {
  using Compiled = Result<std::shared_ptr<const CompiledGrammar>>;
  // One thread makes an entry by compiling; the others wait for it.
  struct Entry {
    std::string key;
    std::shared_future<Compiled> compiled;
    int64_t size_bytes = -1;  // -1: still being compiled
    std::shared_ptr<const void> shared;
  };

  std::unique_ptr<GrammarBackend> backend;
  int64_t cache_bytes = 0;
  GrammarMemoryLimits limits;
  double max_compile_seconds = 0.0;

  mutable std::mutex mutex;  // guards everything below
  std::list<Entry> entries;  // most recently used first
  std::unordered_map<std::string_view, std::list<Entry>::iterator> by_key;
  GrammarCacheStats stats;
  struct Shared {
    int64_t size_bytes = 0;
    int64_t num_entries = 0;
  };
  std::unordered_map<std::shared_ptr<const void>, Shared> shared;  // memory that entries share, counted once

  // Holds the errors of the last grammars that were not compiled, by field and text, the newest first.
  std::list<std::pair<std::string, Status>> failures;
  int64_t failure_bytes = 0;

  Compiled compile_now(const GrammarSpec& spec, const SharedPartHold& hold) const;
  std::optional<Status> known_failure(const std::string& field, const std::string& key) const;
  void keep_failure(const std::string& field, const std::string& key, const Status& status);
  void keep(std::list<Entry>::iterator entry, const CompiledGrammar& grammar);
  void drop(std::list<Entry>::iterator entry);

  // Pending is the entry that this thread compiles. An exception during the compilation removes the entry,
  // and the threads that wait for it get the same exception.
  class Pending {
   public:
    explicit Pending(Impl& impl) : impl_(impl) {}
    ~Pending() {
      if (!entry_) return;
      const std::lock_guard lock(impl_.mutex);
      impl_.drop(*entry_);
    }
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;

    // Adds the entry. The caller holds the lock.
    void begin(std::string key);
    Compiled compile(const GrammarSpec& spec, const std::string& field, const SharedPartHold& hold);

   private:
    Compiled compile_and_keep(const GrammarSpec& spec, const std::string& field, const SharedPartHold& hold);

    Impl& impl_;
    std::promise<Compiled> promise_;
    std::optional<std::list<Entry>::iterator> entry_;  // not in the cache for good, and not dropped
  };
};

GrammarCompiler::Impl::Compiled GrammarCompiler::Impl::compile_now(const GrammarSpec& spec,
                                                                   const SharedPartHold& hold) const {
  const CompileBudget budget(max_compile_seconds);
  GrammarSpec checked = spec;
  std::string storage;
  checked.field = field_of(spec, storage);
  bool hides_control = false;
  std::vector<std::pair<std::string, std::string>> patterns;
  if (checked.kind == GrammarKind::kJsonObject) {
    checked.text = any_object_schema();
  } else if (checked.kind == GrammarKind::kJsonSchema) {
    HADAL_ASSIGN_OR_RETURN(PreparedSchema schema, prepare_json_schema(spec.text, checked.field));
    checked.text = std::move(schema.json);
    hides_control = schema.has_length;
    patterns = std::move(schema.patterns);
  }
  auto compiled = backend->compile(checked, hides_control, budget, hold);
  if (!compiled.ok()) {
    if (compiled.status().code == StatusCode::kInvalidArgument)
      HADAL_RETURN_IF_ERROR(check_patterns(*backend, patterns, checked.field, budget));
    return compiled.status();
  }
  const std::shared_ptr<const BackendGrammar> grammar = std::move(compiled).value();
  // A grammar that matches no text ("a" ::= "a" "x", a $ref to itself) would end every answer at its
  // beginning.
  const GrammarVocabulary& vocabulary = grammar->vocabulary();
  std::vector<uint32_t> words((vocabulary.size + 31) / 32);
  const auto walker = grammar->start();
  walker->fill(words);
  if (walker->is_too_expensive())
    return invalid_argument(
        "{}: the first mask of its {} bytes takes more than {:g} s of processor time or {} MiB, which are "
        "the "
        "limits for a mask",
        checked.field, spec.text.size(), vocabulary.masks.one_mask_s, vocabulary.memory.walked_bytes >> 20);
  if (!walker->is_complete() &&
      std::all_of(words.begin(), words.end(), [](uint32_t word) { return word == 0; }))
    return invalid_argument(
        "{}: no text of the model's tokens matches {}; must match one or more, so no rule may need itself at "
        "its beginning",
        checked.field, shown_text(spec.text));
  return std::shared_ptr<const CompiledGrammar>(grammar);
}

std::optional<Status> GrammarCompiler::Impl::known_failure(const std::string& field,
                                                           const std::string& key) const {
  for (const auto& [failed, status] : failures)
    if (failed.size() == field.size() + key.size() && failed.ends_with(key) && failed.starts_with(field))
      return status;
  return std::nullopt;
}

void GrammarCompiler::Impl::keep_failure(const std::string& field, const std::string& key,
                                         const Status& status) {
  if (status.code != StatusCode::kInvalidArgument) return;
  failures.emplace_front(field + key, status);
  failure_bytes += static_cast<int64_t>(failures.front().first.size());
  while (failures.size() > kMaxFailures || failure_bytes > kMaxFailureBytes) {
    failure_bytes -= static_cast<int64_t>(failures.back().first.size());
    failures.pop_back();
  }
}

void GrammarCompiler::Impl::drop(std::list<Entry>::iterator entry) {
  if (entry->size_bytes >= 0) {
    stats.size_bytes -= entry->size_bytes;
    --stats.entries;
    if (const auto part = shared.find(entry->shared);
        part != shared.end() && --part->second.num_entries == 0) {
      stats.size_bytes -= part->second.size_bytes;
      shared.erase(part);
    }
  }
  by_key.erase(entry->key);
  entries.erase(entry);
}

// Keeps an entry in the cache. Changes nothing if it throws. An entry that alone is larger than the cache is
// dropped at once.
void GrammarCompiler::Impl::keep(std::list<Entry>::iterator entry, const CompiledGrammar& grammar) {
  const int64_t size_bytes = grammar.size_bytes() + static_cast<int64_t>(entry->key.size());
  if (const auto part_of = grammar.shared_part(); part_of != nullptr) {
    Shared& part = shared[part_of];
    if (part.num_entries++ == 0) stats.size_bytes += part.size_bytes = grammar.shared_bytes();
    entry->shared = part_of;
  }
  entry->size_bytes = size_bytes;
  stats.size_bytes += size_bytes;
  ++stats.entries;
  // Starts with the least recently used; entries that are still being compiled have no size yet.
  for (auto it = entries.end(); stats.size_bytes > cache_bytes && it != entries.begin();) {
    const auto last = std::prev(it);
    if (last->size_bytes < 0)
      it = last;
    else
      drop(last);
  }
}

void GrammarCompiler::Impl::Pending::begin(std::string key) {
  entry_ = impl_.entries.insert(impl_.entries.begin(), {std::move(key), promise_.get_future().share()});
  impl_.by_key.emplace((*entry_)->key, *entry_);
}

GrammarCompiler::Impl::Compiled GrammarCompiler::Impl::Pending::compile(const GrammarSpec& spec,
                                                                        const std::string& field,
                                                                        const SharedPartHold& hold) {
  try {
    Compiled compiled = compile_and_keep(spec, field, hold);
    Compiled for_others = compiled;
    promise_.set_value(std::move(for_others));
    return compiled;
  } catch (...) {
    promise_.set_exception(std::current_exception());
    throw;
  }
}

GrammarCompiler::Impl::Compiled GrammarCompiler::Impl::Pending::compile_and_keep(const GrammarSpec& spec,
                                                                                 const std::string& field,
                                                                                 const SharedPartHold& hold) {
  Compiled compiled = make_status(StatusCode::kInternal, "the grammar was not compiled");
  try {
    compiled = impl_.compile_now(spec, hold);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    compiled = make_status(StatusCode::kInternal, "the grammar was not compiled: {}", error.what());
  }
  // An exception that the library throws when it is cancelled may have become any other error by now.
  if (!compiled.ok() && is_cancelled())
    compiled = make_status(StatusCode::kCancelled, "the grammar is no longer needed");
  const std::lock_guard lock(impl_.mutex);
  if (compiled.ok()) {
    impl_.keep(*entry_, *compiled.value());
  } else {
    impl_.keep_failure(field, (*entry_)->key, compiled.status());
    impl_.drop(*entry_);
  }
  entry_.reset();
  return compiled;
}

Result<std::unique_ptr<GrammarCompiler>> GrammarCompiler::create(const Tokenizer& tokenizer,
                                                                 GrammarCompilerOptions options) {
  GrammarVocabulary vocabulary;
  const int64_t num_tokens = tokenizer.vocab_size();
  vocabulary.size = options.vocab_size == 0 ? num_tokens : options.vocab_size;
  if (vocabulary.size < num_tokens || vocabulary.size > INT32_MAX)
    return invalid_argument("vocab_size is {}; the tokenizer has {} tokens", vocabulary.size, num_tokens);
  vocabulary.end_ids = std::move(options.end_ids);
  if (vocabulary.end_ids.empty() && tokenizer.eos_id()) vocabulary.end_ids.push_back(*tokenizer.eos_id());
  if (vocabulary.end_ids.empty()) return invalid_argument("the tokenizer has no token that ends an answer");
  std::sort(vocabulary.end_ids.begin(), vocabulary.end_ids.end());
  vocabulary.end_ids.erase(std::unique(vocabulary.end_ids.begin(), vocabulary.end_ids.end()),
                           vocabulary.end_ids.end());
  for (const int32_t id : vocabulary.end_ids)
    if (id < 0 || id >= vocabulary.size)
      return invalid_argument("the end token {} is outside of the vocabulary of {}", id, vocabulary.size);
  for (int32_t id = 0; id < num_tokens; ++id) {
    vocabulary.texts.emplace_back(tokenizer.token_bytes(id));
    vocabulary.is_added.push_back(tokenizer.is_added(id) || tokenizer.is_special(id));
  }
  vocabulary.max_compile_seconds = options.max_compile_seconds;
  vocabulary.memory = options.memory;
  vocabulary.masks = options.masks;
  vocabulary.json_spaces = options.json_spaces;
  auto impl = std::make_unique<Impl>();
  HADAL_ASSIGN_OR_RETURN(impl->backend, make_grammar_backend(std::move(vocabulary)));
  if (const std::string& pattern = options.json_spaces.pattern; !pattern.empty())
    HADAL_RETURN_IF_ERROR(impl->backend->check_regex(pattern, "--constrained-json-whitespace-pattern",
                                                     CompileBudget(options.max_compile_seconds)));
  impl->cache_bytes = options.cache_bytes;
  impl->limits = options.memory;
  impl->max_compile_seconds = options.max_compile_seconds;
  return std::unique_ptr<GrammarCompiler>(new GrammarCompiler(std::move(impl)));
}

GrammarCompiler::GrammarCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::compile(const GrammarSpec& spec,
                                                                        const SharedPartHold& hold) {
  std::string storage;
  const std::string& field = field_of(spec, storage);
  HADAL_RETURN_IF_ERROR(check_bounds(spec, field));  // before anything is copied
  std::string key = to_string(spec.kind);
  if (spec.kind != GrammarKind::kJsonObject) key += '\0' + spec.text;
  Impl::Pending pending(*impl_);
  std::shared_future<Impl::Compiled> others;
  {
    const std::lock_guard lock(impl_->mutex);
    if (auto failure = impl_->known_failure(field, key)) return std::move(*failure);
    if (const auto found = impl_->by_key.find(key); found != impl_->by_key.end()) {
      const auto entry = found->second;
      impl_->entries.splice(impl_->entries.begin(), impl_->entries, entry);
      ++impl_->stats.num_hits;
      others = entry->compiled;
    } else {
      ++impl_->stats.num_misses;
      pending.begin(std::move(key));
    }
  }
  return others.valid() ? others.get() : pending.compile(spec, field, hold);
}

const GrammarMemoryLimits& GrammarCompiler::limits() const {
  return impl_->limits;
}

GrammarCacheStats GrammarCompiler::cache_stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

void GrammarCompiler::clear_cache() {
  const std::lock_guard lock(impl_->mutex);
  for (auto it = impl_->entries.begin(); it != impl_->entries.end();) {
    const auto entry = it++;
    if (entry->size_bytes >= 0) impl_->drop(entry);
  }
}

}  // namespace hadal
