// Compiling the grammars of a request: on the background threads, the answer on the request's I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "server/http.h"
#include "server/server_context.h"
#include "text/grammar.h"

namespace hadal::server {

using CompiledGrammars = std::vector<std::shared_ptr<const CompiledGrammar>>;

// Compiles `specs`; entry i of the result belongs to specs[i] and is null where there is none. `done` is
// called on `io`: at once when nothing has to be compiled, else later. Errors: the first spec's that fails
// (see GrammarCompiler::compile); kUnsupported without a compiler; kResourceExhausted when too many wait.
void compile_grammars(ServerContext& context, IoThread& io, std::vector<std::optional<GrammarSpec>> specs,
                      std::function<void(Result<CompiledGrammars>)> done);

}  // namespace hadal::server
