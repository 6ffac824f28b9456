#include "server/generation/stop_condition.h"

#include <fmt/format.h>

#include <utility>

#include "text/tokenizer/detokenizer.h"

namespace hadal::server {
namespace {

class TextStop final : public StopCondition {
 public:
  TextStop(const Tokenizer& tokenizer, std::shared_ptr<const StopPatterns> patterns, bool skip_special_tokens)
      : detokenizer_(tokenizer, skip_special_tokens), check_(std::move(patterns)) {}

  bool on_token(int32_t token_id) override { return check_.append(detokenizer_.append(token_id)); }

 private:
  Detokenizer detokenizer_;
  StopCheck check_;
};

class GrammarConstraint final : public TokenConstraint {
 public:
  GrammarConstraint(std::shared_ptr<const CompiledGrammar> grammar, GrammarMatcherOptions options)
      : matcher_(std::move(grammar), options) {}

  void fill_mask(std::span<uint32_t> allowed) override {
    matcher_.fill_mask(allowed);
    check();
  }
  bool accept_token(int32_t token_id) override {
    const bool accepted = matcher_.accept_token(token_id);
    check();
    return accepted;
  }
  void rollback(int64_t num_tokens) override { matcher_.rollback(num_tokens); }

 private:
  void check() const {
    if (!matcher_.is_too_expensive()) return;
    throw BadRequest(fmt::format(
        "the grammar is too expensive: one of its masks took more than {} s of processor time, or all "
        "of them too much memory",
        matcher_.limits().one_mask_s));
  }

  GrammarMatcher matcher_;
};

}  // namespace

std::unique_ptr<StopCondition> make_stop_condition(const Tokenizer& tokenizer,
                                                   std::shared_ptr<const StopPatterns> patterns,
                                                   bool skip_special_tokens) {
  return std::make_unique<TextStop>(tokenizer, std::move(patterns), skip_special_tokens);
}

std::unique_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<const CompiledGrammar> grammar,
                                                         std::optional<int32_t> start_after_token) {
  GrammarMatcherOptions options;
  if (start_after_token) options.start_after_token = *start_after_token;
  return std::make_unique<GrammarConstraint>(std::move(grammar), options);
}

}  // namespace hadal::server
