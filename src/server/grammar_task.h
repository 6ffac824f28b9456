// Compiling the grammars of a request: on the background threads, the answer on the request's I/O thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "server/http.h"
#include "server/server_context.h"
#include "text/grammar.h"

namespace hadal::server {

using CompiledGrammars = std::vector<std::shared_ptr<const CompiledGrammar>>;

using GrammarSpecs = std::vector<std::shared_ptr<const GrammarSpec>>;

// Compiles `specs`, equal ones once; entry i of the result belongs to specs[i] and is null where there is
// none. `done` is called on `io`: at once when nothing has to be compiled, else later. Work that has not
// begun is left out, with kCancelled, once `*cancelled` is true (the client has gone; any thread may set it)
// or the background threads stop. Errors: the first spec's that fails (see GrammarCompiler::compile);
// kUnsupported without a compiler; kResourceExhausted when too many wait.
void compile_grammars(ServerContext& context, IoThread& io, GrammarSpecs specs,
                      std::shared_ptr<const std::atomic<bool>> cancelled,
                      std::function<void(Result<CompiledGrammars>)> done);

}  // namespace hadal::server
