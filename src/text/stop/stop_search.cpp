#include "text/stop/stop_search.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "text/stop/stop_regex.h"
#include "text/stop/stop_regex_detector.h"
#include "text/utf8.h"

namespace hadal {
struct StopPatterns::Impl {
  std::shared_ptr<const StopStrings> strings;
  std::vector<StopRegex> regexes;
  std::vector<StopRegexTable> tables;  // of `regexes`
};

StopPatterns::StopPatterns(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StopPatterns::~StopPatterns() = default;

Result<std::shared_ptr<const StopPatterns>> StopPatterns::compile(const std::vector<std::string>& strings,
                                                                  const std::vector<std::string>& regexes,
                                                                  StopRegexBudget& budget) {
  auto impl = std::make_unique<Impl>();
  impl->strings = std::make_shared<const StopStrings>(strings);
  for (size_t i = 0; i < regexes.size(); ++i) {
    if (regexes[i].empty()) continue;
    if (impl->regexes.size() == kMaxStopRegexes) {
      return invalid_argument("has more than {} entries", kMaxStopRegexes);
    }
    auto regex = StopRegex::compile(regexes[i], budget.states);
    if (!regex.ok()) {
      const std::string pattern = is_valid_utf8(regexes[i]) ? printable(cut_text(regexes[i])) : "?";
      return invalid_argument("entry {} '{}': {}", i, pattern, regex.status().message);
    }
    budget.states -= regex->num_states();
    impl->regexes.push_back(std::move(regex).value());
  }
  for (const StopRegex& regex : impl->regexes) impl->tables.emplace_back(regex);
  return std::shared_ptr<const StopPatterns>(new StopPatterns(std::move(impl)));
}

size_t StopPatterns::size() const {
  return impl_->strings->size() + impl_->regexes.size();
}

size_t StopPatterns::num_regexes() const {
  return impl_->regexes.size();
}

size_t StopPatterns::bytes() const {
  size_t out = sizeof(Impl) + impl_->strings->bytes() + impl_->regexes.capacity() * sizeof(StopRegex);
  for (const StopRegex& regex : impl_->regexes) out += regex.bytes();
  for (const StopRegexTable& table : impl_->tables) out += sizeof(StopRegexTable) + table.bytes();
  return out;
}

// Regexes holds the searches for the expressions, and the text that has not been shown yet.
struct StopSearch::Regexes {
  std::vector<StopRegexSearch> all;
  std::string text;       // the stream's bytes from `begin` on
  uint64_t begin = 0;     // position in the stream of text[0]; at most half of `text` has been returned
  uint64_t shown = 0;     // bytes of the stream that were returned
  uint64_t released = 0;  // bytes that the string matcher let through

  uint64_t end() const { return begin + text.size(); }

  std::string_view slice(uint64_t from, uint64_t to) const {
    return std::string_view(text).substr(from - begin, to - from);
  }

  // Finds the match that ends first, if any.
  std::optional<StopRegexSearch::Match> search(std::string_view piece) {
    std::optional<StopRegexSearch::Match> best;
    for (StopRegexSearch& one : all) {
      const auto& found = one.append(piece);
      if (found && (!best || found->end < best->end)) best = found;
    }
    return best;
  }

  // Returns the first byte that may belong to a later match.
  uint64_t hold() const {
    uint64_t out = end();
    for (const StopRegexSearch& one : all) out = std::min(out, one.hold());
    return out;
  }

  void show(uint64_t to, std::string& out) {
    out.clear();
    if (to <= shown) return;
    out = slice(shown, to);
    shown = to;
    if (shown - begin < text.size() - (shown - begin)) return;
    text.erase(0, shown - begin);
    begin = shown;
  }
};

size_t StopPatterns::search_bytes() const {
  size_t out = sizeof(StopSearch) + impl_->strings->search_bytes();
  if (impl_->regexes.empty()) return out;
  out += sizeof(StopSearch::Regexes);
  for (const StopRegex& regex : impl_->regexes) out += sizeof(StopRegexSearch) + regex.search_bytes();
  return out;
}

size_t StopPatterns::check_bytes() const {
  size_t out = sizeof(StopCheck) + impl_->strings->search_bytes();
  for (const StopRegexTable& table : impl_->tables) out += sizeof(StopRegexDetector) + table.detector_bytes();
  return out;
}

StopCheck::StopCheck(std::shared_ptr<const StopPatterns> patterns)
    : patterns_(std::move(patterns)), strings_(patterns_->impl_->strings) {
  const auto& tables = patterns_->impl_->tables;
  detectors_.reserve(tables.size());
  for (const StopRegexTable& table : tables) detectors_.emplace_back(table);
}

StopCheck::~StopCheck() = default;
StopCheck::StopCheck(StopCheck&&) noexcept = default;
StopCheck& StopCheck::operator=(StopCheck&&) noexcept = default;

bool StopCheck::append(std::string_view piece) {
  if (stopped_) return true;
  strings_.append(piece);
  stopped_ = strings_.stopped();
  for (size_t i = 0; i < detectors_.size() && !stopped_; ++i) stopped_ = detectors_[i].append(piece);
  return stopped_;
}

StopSearch::StopSearch(std::shared_ptr<const StopPatterns> patterns, bool no_stop_trim)
    : patterns_(std::move(patterns)),
      strings_(patterns_->impl_->strings, no_stop_trim),
      no_stop_trim_(no_stop_trim) {
  const auto& regexes = patterns_->impl_->regexes;
  if (regexes.empty()) return;
  regexes_ = std::make_unique<Regexes>();
  regexes_->all.reserve(regexes.size());
  for (const StopRegex& regex : regexes) regexes_->all.emplace_back(regex);
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
  Regexes& all = *regexes_;
  all.text += piece;
  all.released += passed.size();
  const auto found = all.search(piece);
  uint64_t end = std::min(all.released, all.hold());
  // This is the end of the string's match; with no_stop_trim the matched text was released too.
  const uint64_t string_end = all.released + (no_stop_trim_ ? 0 : strings_.matched().size());
  if (found && (!strings_.stopped() || found->end < string_end)) {
    stopped_ = true;
    matched_ = all.slice(found->begin, found->end);
    end = no_stop_trim_ ? found->end : found->begin;
  } else if (strings_.stopped()) {
    stopped_ = true;
    matched_ = strings_.matched();
    end = all.released;
  }
  all.show(end, out_);
  return out_;
}

std::string_view StopSearch::finish() {
  if (stopped_) return {};
  if (regexes_ == nullptr) return strings_.finish();
  regexes_->show(regexes_->end(), out_);
  return out_;
}

uint64_t StopSearch::steps() const {
  uint64_t out = 0;
  if (regexes_ == nullptr) return out;
  for (const StopRegexSearch& one : regexes_->all) out += one.steps();
  return out;
}

size_t StopSearch::held_bytes() const {
  return regexes_ == nullptr ? 0 : regexes_->text.size();
}

}  // namespace hadal
