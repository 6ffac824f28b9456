// This file holds the part of matching that every build shares: the tokens before the grammar begins, and
// those that end the answer.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/grammar/grammar.h"
#include "text/grammar/grammar_backend.h"

namespace hadal {

namespace {

void set_bit(std::span<uint32_t> words, int32_t token_id) {
  words[token_id / 32] |= 1U << (token_id % 32);
}

bool has_bit(std::span<const uint32_t> words, int32_t token_id) {
  return (words[token_id / 32] >> (token_id % 32) & 1U) != 0;
}

}  // namespace

// The accepted tokens are, in this order: free tokens up to and including the start token, tokens of the
// grammar, and end tokens.
struct GrammarMatcher::Impl {
  std::shared_ptr<const BackendGrammar> grammar;
  GrammarMatcherOptions options;
  std::unique_ptr<GrammarWalker> walker;
  bool has_started = true;
  int64_t num_free = 0;
  int64_t num_inside = 0;
  int64_t num_ends = 0;

  const GrammarVocabulary& vocabulary() const { return grammar->vocabulary(); }
  bool is_end(int32_t token_id) const {
    const auto& ends = vocabulary().end_ids;
    return std::binary_search(ends.begin(), ends.end(), token_id);
  }
  void fill(std::span<uint32_t> allowed) const {
    const int64_t size = vocabulary().size;
    HADAL_CHECK(static_cast<int64_t>(allowed.size()) == (size + 31) / 32, "a mask of {} words for {} tokens",
                allowed.size(), size);
    if (!has_started) {
      std::fill(allowed.begin(), allowed.end(), ~0U);
      if (size % 32 != 0) allowed.back() = (1U << (size % 32)) - 1;
      for (const int32_t id : vocabulary().end_ids) allowed[id / 32] &= ~(1U << (id % 32));
      return;
    }
    if (num_ends == 0) {
      walker->fill(allowed);
      if (std::any_of(allowed.begin(), allowed.end(), [](uint32_t word) { return word != 0; })) return;
    }
    for (const int32_t id : vocabulary().end_ids) set_bit(allowed, id);
  }
};

GrammarMatcher::GrammarMatcher(std::shared_ptr<const CompiledGrammar> grammar, GrammarMatcherOptions options)
    : impl_(std::make_unique<Impl>()) {
  impl_->grammar = std::static_pointer_cast<const BackendGrammar>(std::move(grammar));
  impl_->options = options;
  impl_->walker = impl_->grammar->start();
  impl_->has_started = options.start_after_token < 0;
}

GrammarMatcher::~GrammarMatcher() = default;
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;

void GrammarMatcher::fill_mask(std::span<uint32_t> allowed) {
  impl_->fill(allowed);
}

bool GrammarMatcher::accept_token(int32_t token_id) {
  Impl& impl = *impl_;
  if (token_id < 0 || token_id >= impl.vocabulary().size) return false;
  const bool is_end = impl.is_end(token_id);
  if (!impl.has_started) {
    if (is_end) return false;
    ++impl.num_free;
    impl.has_started = token_id == impl.options.start_after_token;
    return true;
  }
  if (is_end) {
    if (impl.num_ends == 0 && !impl.walker->is_complete()) {
      std::vector<uint32_t> words((impl.vocabulary().size + 31) / 32);
      impl.fill(words);
      if (!has_bit(words, token_id)) return false;
    }
    ++impl.num_ends;
    return true;
  }
  if (impl.num_ends > 0 || !impl.walker->accept(token_id)) return false;
  ++impl.num_inside;
  return true;
}

bool GrammarMatcher::is_too_expensive() const {
  return impl_->walker->is_too_expensive();
}

const MaskLimits& GrammarMatcher::limits() const {
  return impl_->vocabulary().masks;
}

bool GrammarMatcher::is_terminated() const {
  return impl_->num_ends > 0;
}

bool GrammarMatcher::is_complete() const {
  return impl_->has_started && impl_->walker->is_complete();
}

void GrammarMatcher::rollback(int64_t num_tokens) {
  Impl& impl = *impl_;
  HADAL_CHECK(num_tokens >= 0 && num_tokens <= impl.num_free + impl.num_inside + impl.num_ends,
              "cannot undo {} tokens", num_tokens);
  const int64_t ends = std::min(num_tokens, impl.num_ends);
  const int64_t inside = std::min(num_tokens - ends, impl.num_inside);
  const int64_t free = num_tokens - ends - inside;
  impl.num_ends -= ends;
  if (inside > 0) impl.walker->rollback(inside);
  impl.num_inside -= inside;
  impl.num_free -= free;
  if (free > 0) impl.has_started = false;  // the last free token is the one that started the grammar
}

}  // namespace hadal
