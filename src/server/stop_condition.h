// What the engine calls and what text/ knows, joined: stop strings and expressions as a StopCondition, a
// grammar as a TokenConstraint. Used by the engine thread once made.
#pragma once

#include <memory>
#include <optional>

#include "engine/engine.h"
#include "text/grammar.h"
#include "text/stop_search.h"
#include "text/tokenizer.h"

namespace hadal::server {

// Ends a request where `patterns` match its text, or where the search gives up (TextStream::failure says so
// to whoever shows the text). skip_special_tokens as for whoever shows the text of the same request: both
// have to see the same. `tokenizer` must outlive it.
std::unique_ptr<StopCondition> make_stop_condition(const Tokenizer& tokenizer,
                                                   std::shared_ptr<const StopPatterns> patterns,
                                                   bool skip_special_tokens);

// Lets only tokens through that the grammar allows; until `start_after_token` has come (if given) every token
// but the end ones.
std::unique_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<const CompiledGrammar> grammar,
                                                         std::optional<int32_t> start_after_token);

}  // namespace hadal::server
