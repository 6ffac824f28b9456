#include "server/grammar_task.h"

#include <algorithm>
#include <utility>

#include "server/background_pool.h"

namespace hadal::server {
namespace {

Result<CompiledGrammars> compile_all(GrammarCompiler& compiler,
                                     const std::vector<std::optional<GrammarSpec>>& specs) {
  CompiledGrammars compiled(specs.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    if (!specs[i]) continue;
    HADAL_ASSIGN_OR_RETURN(compiled[i], compiler.compile(*specs[i]));
  }
  return compiled;
}

}  // namespace

void compile_grammars(ServerContext& context, IoThread& io, std::vector<std::optional<GrammarSpec>> specs,
                      std::function<void(Result<CompiledGrammars>)> done) {
  const auto first =
      std::find_if(specs.begin(), specs.end(), [](const auto& spec) { return spec.has_value(); });
  if (first == specs.end()) return done(CompiledGrammars(specs.size()));
  if (context.grammars == nullptr) {
    return done(unsupported("{}: this server constrains no output ({})",
                            (*first)->field.empty() ? to_string((*first)->kind) : (*first)->field,
                            grammar_available() ? "--grammar-backend none, or it runs without a tokenizer"
                                                : "it was built without xgrammar"));
  }
  const auto callback = std::make_shared<std::function<void(Result<CompiledGrammars>)>>(std::move(done));
  const bool posted = context.background.post([&context, &io, specs = std::move(specs), callback] {
    Result<CompiledGrammars> compiled =
        make_status(StatusCode::kInternal, "the grammar could not be compiled");
    try {
      compiled = compile_all(*context.grammars, specs);
    } catch (const std::exception& error) {
      compiled = make_status(StatusCode::kInternal, "the grammar could not be compiled: {}", error.what());
    }
    io.post([callback, compiled = std::move(compiled)]() mutable { (*callback)(std::move(compiled)); });
  });
  if (!posted) {
    (*callback)(
        make_status(StatusCode::kResourceExhausted, "too many grammars wait to be compiled; try again"));
  }
}

}  // namespace hadal::server
