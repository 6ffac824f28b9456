// Compiles the grammars of a request on the background threads, and answers on the request's I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "server/admission/request_memory.h"
#include "server/http/http.h"
#include "server/server_context.h"
#include "text/grammar/grammar.h"

namespace hadal::server {

using CompiledGrammars = std::vector<std::shared_ptr<const CompiledGrammar>>;

using GrammarSpecs = std::vector<std::shared_ptr<const GrammarSpec>>;

// Compiles `specs`, equal ones once; entry i of the result belongs to specs[i] and is null if that is. `done`
// is called on `io`: immediately if nothing has to be compiled, otherwise later. The errors are that of the
// first failing spec (see GrammarCompiler::compile); kInvalidArgument without a compiler; kResourceExhausted
// when too many are waiting, or too many of `client` (HttpRequest::client), or there is no memory; and
// kCancelled when the background threads stop before all are compiled; what is being compiled is given up
// then. Clients take turns, and a client's grammars are compiled one after another.
//
// Returns a function that says, on `io`, that nobody waits for the result any more. From then on `done` is
// not called, and what has not begun is skipped: work that waits for its turn is dropped with everything that
// it owns, `done` included, before that function returns.
std::function<void()> compile_grammars(ServerContext& context, IoThread& io, const std::string& client,
                                       GrammarSpecs specs,
                                       std::function<void(Result<CompiledGrammars>)> done);

// Counts what the different grammars of a request take, in a charge of their own: an estimate by their texts
// before they are compiled, and in its place their sizes afterwards.
Result<void> charge_grammars(MemoryCharge& charge, const GrammarSpecs& specs);
Result<void> charge_grammars(MemoryCharge& charge, const CompiledGrammars& grammars);

}  // namespace hadal::server
