#include "model/config_modules.h"

#include <pcre2.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace hadal {
namespace {

constexpr std::string_view kPatternPrefix = "re:";
constexpr uint32_t kMaxHeapKib = 4096;
// At most this many answers are cached; the largest published model has 45,000 linears.
constexpr size_t kMaxAnswers = 262'144;

// These are the longest names of each kind of module, and one name that is longer than all of these.
constexpr std::string_view kUsualModules[] = {
    "model.layers.61.mlp.experts.255.down_proj",
    "model.layers.61.self_attn.kv_a_proj_with_mqa",
    "lm_head",
    "model.language_model.model.layers.1234.mlp.shared_experts.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa.gate_up_proj",
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;

struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};
using MatchContext = std::unique_ptr<pcre2_match_context, FreeContext>;

struct FreeData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeData>;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

Result<Code> compile(std::string_view pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code(pcre2_compile(units(pattern), pattern.size(), PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C, &error,
                          &offset, nullptr));
  if (code) return code;
  PCRE2_UCHAR message[128] = {};
  pcre2_get_error_message(error, message, sizeof(message));
  return invalid_argument("at character {}: {}", offset, reinterpret_cast<const char*>(message));
}

struct Pattern {
  std::string entry;
  Code code;
};

enum class Matched : uint8_t { kNo, kYes, kGaveUp };

Matched match(const Pattern& pattern, std::string_view module, pcre2_match_context* limits,
              pcre2_match_data* data) {
  const int result = pcre2_match(pattern.code.get(), units(module), module.size(), 0, 0, data, limits);
  if (result == PCRE2_ERROR_NOMATCH) return Matched::kNo;
  return result >= 0 ? Matched::kYes : Matched::kGaveUp;  // limits of match, depth and heap, among others
}

}  // namespace

// Names are looked up in a table, because lists of published checkpoints have thousands of entries.
struct ModuleList::Compiled {
  std::unordered_set<std::string> names;
  std::vector<Pattern> patterns;
  MatchContext limits;
  MatchData data;  // guarded by mutex, like the answers

  mutable std::mutex mutex;
  mutable std::unordered_map<std::string, bool> answers;  // results of the patterns

  bool any_pattern_matches(std::string_view module) const {
    const std::lock_guard lock(mutex);
    std::string key(module);
    if (const auto known = answers.find(key); known != answers.end()) return known->second;
    bool matches = false;
    for (size_t i = 0; i < patterns.size() && !matches; ++i) {
      const Matched matched = match(patterns[i], module, limits.get(), data.get());
      HADAL_CHECK(matched != Matched::kGaveUp, "\"{}\" needs more than {} steps to match {}",
                  patterns[i].entry, kMaxSteps, module);
      matches = matched == Matched::kYes;
    }
    if (answers.size() < kMaxAnswers) answers.emplace(std::move(key), matches);
    return matches;
  }
};

Result<ModuleList> ModuleList::parse(std::vector<std::string> entries) {
  ModuleList list;
  if (entries.empty()) return list;
  if (entries.size() > kMaxEntries)
    return invalid_argument("contains {} entries; at most {} are allowed", entries.size(), kMaxEntries);
  auto compiled = std::make_shared<Compiled>();
  for (const std::string& entry : entries) {
    if (entry.empty() || entry.size() > kMaxEntryBytes)
      return invalid_argument("contains an entry of {} bytes; allowed: 1 to {}", entry.size(),
                              kMaxEntryBytes);
    if (!entry.starts_with(kPatternPrefix)) {
      compiled->names.insert(entry);
      continue;
    }
    if (compiled->patterns.size() == kMaxPatterns)
      return invalid_argument("contains more than {} entries that begin with \"re:\"", kMaxPatterns);
    auto code = compile(std::string_view(entry).substr(kPatternPrefix.size()));
    if (!code.ok())
      return invalid_argument("contains \"{}\", which is not a regular expression: {}", entry,
                              code.status().message);
    compiled->patterns.push_back({entry, std::move(code).value()});
  }
  compiled->limits.reset(pcre2_match_context_create(nullptr));
  HADAL_CHECK(compiled->limits != nullptr, "out of memory for a match context");
  pcre2_set_match_limit(compiled->limits.get(), kMaxSteps);
  pcre2_set_heap_limit(compiled->limits.get(), kMaxHeapKib);
  compiled->data.reset(pcre2_match_data_create(1, nullptr));
  HADAL_CHECK(compiled->data != nullptr, "out of memory for a match");
  for (const Pattern& pattern : compiled->patterns) {
    for (const std::string_view module : kUsualModules) {
      if (match(pattern, module, compiled->limits.get(), compiled->data.get()) == Matched::kGaveUp)
        return invalid_argument(
            "contains \"{}\", which needs more than {} steps to match {}; simpler patterns "
            "are allowed",
            pattern.entry, kMaxSteps, module);
    }
  }
  list.entries_ = std::move(entries);
  list.compiled_ = std::move(compiled);
  return list;
}

bool ModuleList::contains(std::string_view module) const {
  if (!compiled_) return false;
  if (!compiled_->names.empty()) {  // every run of whole components
    for (size_t begin = 0; begin <= module.size();) {
      for (size_t end = module.find('.', begin);; end = module.find('.', end + 1)) {
        const size_t length = (end == std::string_view::npos ? module.size() : end) - begin;
        if (compiled_->names.contains(std::string(module.substr(begin, length)))) return true;
        if (end == std::string_view::npos) break;
      }
      const size_t dot = module.find('.', begin);
      if (dot == std::string_view::npos) break;
      begin = dot + 1;
    }
  }
  return !compiled_->patterns.empty() && compiled_->any_pattern_matches(module);
}

}  // namespace hadal
