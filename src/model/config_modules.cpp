#include "model/config_modules.h"

#include <pcre2.h>

#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace hadal {
namespace {

constexpr std::string_view kPatternPrefix = "re:";
constexpr uint32_t kMaxSteps = 100'000;
constexpr uint32_t kMaxHeapKib = 4096;

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

}  // namespace

// Names are looked up by their own text: lists of published checkpoints run to thousands of entries.
struct ModuleList::Compiled {
  std::unordered_set<std::string> names;
  std::vector<Code> patterns;
  MatchContext limits;
};

Result<ModuleList> ModuleList::parse(std::vector<std::string> entries) {
  ModuleList list;
  if (entries.empty()) return list;
  if (entries.size() > kMaxEntries)
    return invalid_argument("holds {} entries; at most {} are allowed", entries.size(), kMaxEntries);
  auto compiled = std::make_shared<Compiled>();
  for (const std::string& entry : entries) {
    if (entry.empty() || entry.size() > kMaxEntryBytes)
      return invalid_argument("holds an entry of {} bytes; allowed: 1 to {}", entry.size(), kMaxEntryBytes);
    if (!entry.starts_with(kPatternPrefix)) {
      compiled->names.insert(entry);
      continue;
    }
    if (compiled->patterns.size() == kMaxPatterns)
      return invalid_argument("holds more than {} entries that begin with \"re:\"", kMaxPatterns);
    auto code = compile(std::string_view(entry).substr(kPatternPrefix.size()));
    if (!code.ok())
      return invalid_argument("holds \"{}\", which is no regular expression {}", entry,
                              code.status().message);
    compiled->patterns.push_back(std::move(code).value());
  }
  compiled->limits.reset(pcre2_match_context_create(nullptr));
  HADAL_CHECK(compiled->limits != nullptr, "out of memory for a match context");
  pcre2_set_match_limit(compiled->limits.get(), kMaxSteps);
  pcre2_set_heap_limit(compiled->limits.get(), kMaxHeapKib);
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
  for (const Code& pattern : compiled_->patterns) {
    const MatchData data(pcre2_match_data_create(1, nullptr));
    HADAL_CHECK(data != nullptr, "out of memory for a match");
    if (pcre2_match(pattern.get(), units(module), module.size(), 0, 0, data.get(), compiled_->limits.get()) >=
        0)
      return true;
  }
  return false;
}

}  // namespace hadal
