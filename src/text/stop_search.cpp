#include "text/stop_search.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/pcre2_handles.h"
#include "text/utf8.h"

namespace hadal {
namespace {

constexpr uint32_t kMatchLimit = 200'000;  // backtracking steps after one piece, for all expressions together

using pcre2::Code;
using pcre2::MatchContext;
using pcre2::MatchData;

Result<Code> compile_regex(const std::string& pattern) {
  if (!is_valid_utf8(pattern)) return invalid_argument("is not UTF-8");
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                          &offset, nullptr));
  if (code == nullptr) {
    char message[160] = {};
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return invalid_argument("'{}' is not a regular expression: {} at byte {}", pattern, message, offset);
  }
  // Patterns that it cannot translate are interpreted: the results are the same.
  pcre2_jit_compile(code.get(), PCRE2_JIT_PARTIAL_SOFT);
  return code;
}

}  // namespace

struct StopPatterns::Impl {
  std::shared_ptr<const StopStrings> strings;
  std::vector<Code> regexes;
};

StopPatterns::StopPatterns(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StopPatterns::~StopPatterns() = default;

Result<std::shared_ptr<const StopPatterns>> StopPatterns::compile(const std::vector<std::string>& strings,
                                                                  const std::vector<std::string>& regexes) {
  auto impl = std::make_unique<Impl>();
  impl->strings = std::make_shared<const StopStrings>(strings);
  for (const std::string& pattern : regexes) {
    if (pattern.empty()) continue;
    if (impl->regexes.size() == kMaxStopRegexes) {
      return invalid_argument("has more than {} entries", kMaxStopRegexes);
    }
    HADAL_ASSIGN_OR_RETURN(Code code, compile_regex(pattern));
    impl->regexes.push_back(std::move(code));
  }
  return std::shared_ptr<const StopPatterns>(new StopPatterns(std::move(impl)));
}

size_t StopPatterns::size() const {
  return impl_->strings->size() + impl_->regexes.size();
}

size_t StopPatterns::num_regexes() const {
  return impl_->regexes.size();
}

// The state of the expressions: where a match could still begin.
struct StopSearch::Regexes {
  struct One {
    const pcre2_code* code = nullptr;
    MatchData match;
    size_t begin = 0;  // nothing before it can be part of a new match
  };
  struct Found {
    size_t begin = std::string::npos;
    size_t end = std::string::npos;
  };
  std::vector<One> all;
  MatchContext context;
  bool failed = false;  // one needed more steps than its share

  // Finds the match that ends first, if any. Afterwards hold() is the first byte that may belong to a later
  // match.
  Found search(const std::string& text) {
    Found best;
    for (One& one : all) {
      const auto match = [&](uint32_t more) {
        return pcre2_match(one.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), one.begin,
                           PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY | PCRE2_PARTIAL_SOFT | more, one.match.get(),
                           context.get());
      };
      int count = match(0);
      // Translated code has a small stack; the interpreter's is bounded only by the limit.
      if (count == PCRE2_ERROR_JIT_STACKLIMIT) count = match(PCRE2_NO_JIT);
      const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(one.match.get());
      if (count > 0 && ends[1] > ends[0]) {
        if (best.end == std::string::npos || ends[1] < best.end) best = {ends[0], ends[1]};
      } else if (count == PCRE2_ERROR_PARTIAL) {
        one.begin = std::min<size_t>(ends[0], text.size());
      } else if (count == PCRE2_ERROR_NOMATCH || count > 0) {
        one.begin = text.size();
      } else {
        failed = true;
      }
    }
    return best;
  }

  size_t hold(size_t end) const {
    for (const One& one : all) {
      end = std::min(end, one.begin);
    }
    return end;
  }
};

StopSearch::StopSearch(std::shared_ptr<const StopPatterns> patterns, bool no_stop_trim)
    : patterns_(std::move(patterns)),
      strings_(patterns_->impl_->strings, no_stop_trim),
      no_stop_trim_(no_stop_trim) {
  const auto& codes = patterns_->impl_->regexes;
  if (codes.empty()) return;
  regexes_ = std::make_unique<Regexes>();
  regexes_->context.reset(pcre2_match_context_create(nullptr));
  HADAL_CHECK(regexes_->context != nullptr, "out of memory for a match context");
  const uint32_t limit = kMatchLimit / static_cast<uint32_t>(codes.size());
  pcre2_set_match_limit(regexes_->context.get(), limit);
  pcre2_set_depth_limit(regexes_->context.get(), limit);
  for (const Code& code : codes) {
    MatchData match(pcre2_match_data_create_from_pattern(code.get(), nullptr));
    HADAL_CHECK(match != nullptr, "out of memory for match data");
    regexes_->all.push_back({code.get(), std::move(match), 0});
  }
}

StopSearch::~StopSearch() = default;
StopSearch::StopSearch(StopSearch&&) noexcept = default;
StopSearch& StopSearch::operator=(StopSearch&&) noexcept = default;

std::string_view StopSearch::append(std::string_view piece) {
  if (stopped_) return {};
  const std::string_view passed = strings_.append(piece);
  if (regexes_ == nullptr) {
    if (strings_.stopped()) {
      stopped_ = true;
      matched_ = strings_.matched();
    }
    return passed;
  }
  if (piece.empty()) return {};
  text_ += piece;
  released_ += passed.size();
  const Regexes::Found found = regexes_->search(text_);
  if (regexes_->failed) {
    stopped_ = true;
    failure_ = fmt::format("stop_regex: the search in {} bytes of text needed more than {} steps",
                           text_.size(), kMatchLimit);
    return {};
  }
  size_t end = std::min(released_, regexes_->hold(text_.size()));
  // The end of the string's match in text_: with no_stop_trim it was released too.
  const size_t string_end =
      strings_.stopped() ? released_ + (no_stop_trim_ ? 0 : strings_.matched().size()) : std::string::npos;
  if (found.end != std::string::npos && found.end < string_end) {
    stopped_ = true;
    matched_ = text_.substr(found.begin, found.end - found.begin);
    end = no_stop_trim_ ? found.end : found.begin;
  } else if (strings_.stopped()) {
    stopped_ = true;
    matched_ = strings_.matched();
    end = released_;
  }
  out_.clear();
  if (end > shown_) {
    out_ = text_.substr(shown_, end - shown_);
    shown_ = end;
  }
  return out_;
}

std::string_view StopSearch::finish() {
  if (stopped_) return {};
  if (regexes_ == nullptr) return strings_.finish();
  out_ = text_.substr(shown_);
  shown_ = text_.size();
  return out_;
}

}  // namespace hadal
