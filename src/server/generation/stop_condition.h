// Connects the engine's interfaces to text/: stop strings and expressions become a StopCondition, a grammar
// becomes a TokenConstraint. Once made, they belong to the engine.
#pragma once

#include <memory>
#include <optional>

#include "engine/engine.h"
#include "text/grammar/grammar.h"
#include "text/stop/stop_search.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::server {

// Ends a request when `patterns` match its text, without saying what has matched: that takes a slower search,
// which TextStream does for the text, outside of the engine thread. skip_special_tokens must be that of the
// code that shows the text, because both must decode the same text. `tokenizer` must outlive the condition.
std::unique_ptr<StopCondition> make_stop_condition(const Tokenizer& tokenizer,
                                                   std::shared_ptr<const StopPatterns> patterns,
                                                   bool skip_special_tokens);

// Allows only tokens that the grammar allows. If `start_after_token` is given, every token except the end
// tokens is allowed until that token has been generated.
std::unique_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<const CompiledGrammar> grammar,
                                                         std::optional<int32_t> start_after_token);

}  // namespace hadal::server
