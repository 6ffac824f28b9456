#include "server/grammar_task.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "server/background_pool.h"

namespace hadal::server {
namespace {

Result<CompiledGrammars> compile_all(GrammarCompiler& compiler, const GrammarSpecs& specs,
                                     const std::function<bool()>& unwanted) {
  CompiledGrammars compiled(specs.size());
  // Equal objects have equal texts, and usually it is the same object.
  std::map<std::pair<GrammarKind, std::string_view>, size_t> seen;
  const GrammarSpec* last = nullptr;
  for (size_t i = 0; i < specs.size(); ++i) {
    const GrammarSpec* spec = specs[i].get();
    if (spec == nullptr) continue;
    if (spec == last) {
      compiled[i] = compiled[i - 1];
      continue;
    }
    const auto [at, is_new] = seen.emplace(std::pair(spec->kind, std::string_view(spec->text)), i);
    if (is_new) {
      if (unwanted()) return make_status(StatusCode::kCancelled, "the grammar is no longer needed");
      HADAL_ASSIGN_OR_RETURN(compiled[i], compiler.compile(*spec));
    } else {
      compiled[i] = compiled[at->second];
    }
    last = i + 1 < specs.size() && specs[i + 1].get() == spec ? spec : nullptr;
  }
  return compiled;
}

}  // namespace

void compile_grammars(ServerContext& context, IoThread& io, GrammarSpecs specs,
                      std::shared_ptr<const std::atomic<bool>> cancelled,
                      std::function<void(Result<CompiledGrammars>)> done) {
  const auto first =
      std::find_if(specs.begin(), specs.end(), [](const auto& spec) { return spec != nullptr; });
  if (first == specs.end()) return done(CompiledGrammars(specs.size()));
  if (context.grammars == nullptr) {
    return done(unsupported("{}: this server does not support structured output ({})",
                            (*first)->field.empty() ? to_string((*first)->kind) : (*first)->field,
                            grammar_available() ? "--grammar-backend none, or it runs without a tokenizer"
                                                : "it was built without xgrammar"));
  }
  const auto callback = std::make_shared<std::function<void(Result<CompiledGrammars>)>>(std::move(done));
  const bool posted = context.background.post([&context, &io, specs = std::move(specs),
                                               cancelled = std::move(cancelled), callback] {
    Result<CompiledGrammars> compiled =
        make_status(StatusCode::kInternal, "the grammar could not be compiled");
    try {
      compiled =
          compile_all(*context.grammars, specs, [&] { return *cancelled || context.background.stopping(); });
    } catch (const std::exception& error) {
      compiled = make_status(StatusCode::kInternal, "the grammar could not be compiled: {}", error.what());
    }
    io.post([callback, compiled = std::move(compiled)]() mutable { (*callback)(std::move(compiled)); });
  });
  if (!posted) {
    (*callback)(make_status(StatusCode::kResourceExhausted,
                            "too many grammars are waiting to be compiled; try again"));
  }
}

}  // namespace hadal::server
