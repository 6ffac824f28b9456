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

// Compiles `specs`, equal ones once. Entry i of the result belongs to specs[i] and is null if specs[i] is.
// `done` is called on `io`: immediately if nothing has to be compiled, otherwise later. Clients take turns,
// and a client's grammars are compiled one after another. The errors are that of the first failing spec (see
// GrammarCompiler::compile); kInvalidArgument without a compiler; kResourceExhausted if too many tasks are
// waiting, of all clients or of `client` (HttpRequest::client), or if there is no memory; and kCancelled if
// the background threads stop before all are compiled, which cancels the running compilation.
//
// Returns a function that says, on `io`, that the result is not needed any more. From then on `done` is not
// called, and work that has not begun is skipped. Work that waits for its turn is destroyed with everything
// that it owns, `done` included, before that function returns.
std::function<void()> compile_grammars(ServerContext& context, IoThread& io, const std::string& client,
                                       GrammarSpecs specs,
                                       std::function<void(Result<CompiledGrammars>)> done);

// Counts the memory of the different grammars of a request, in a charge of their own. Before compilation that
// is an estimate from their texts, which their sizes replace afterwards.
Result<void> charge_grammars(MemoryCharge& charge, const GrammarSpecs& specs);
Result<void> charge_grammars(MemoryCharge& charge, const CompiledGrammars& grammars);

}  // namespace hadal::server
